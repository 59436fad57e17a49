//! Reads of the published state: versions, history, references.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::revision_id::RevisionId;
use weir_protocol::stored_body::{StoredBody, stored_bodies};
use weir_protocol::versions::{ListedVersion, Versions};
use weir_source::Service;
use weir_store::{Area, ObjectError};

use super::positions::{Positions, ReadPositions};
use super::revision_name::{CURRENT, Called, PREVIOUS};
use crate::config::RetentionConfig;
use crate::error::PublishError;
use crate::stored::history::{Collected, Entry, HistoryPage, LARGEST_PAGE, Query};
use crate::stored::load::{ReadError, read_manifest, read_page};
use crate::stored::row::parsed;
use crate::write::repositories::Repositories;

const CONCURRENT_MANIFESTS: usize = 8;

/// The newest segments of a history that tell the order of publications: about 10,000 publications and tips.
const MAX_SEGMENTS: usize = 32;

const CONCURRENT_READS: usize = 8;

/// Reads of the published state.
pub struct Queries {
    pub(crate) repositories: Arc<Repositories>,
    /// How much of the history is shown.
    pub(crate) retention: RetentionConfig,
    pub(crate) read_positions: ReadPositions,
}

impl Queries {
    /// The descriptor of a current or retained version.
    pub async fn version(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
        digest: &TarballDigest,
    ) -> Result<Option<Descriptor>, PublishError> {
        enum Location {
            Current(Arc<Descriptor>),
            Retained,
        }
        let found = self.repositories.known_service(repository, service, |known| {
            let current = known.current.as_ref().map(|current| &current.descriptor);
            match current.filter(|current| current.publication().digest == *digest) {
                Some(current) => Some(Location::Current(current.clone())),
                None => known.retained.iter().any(|one| one.digest == *digest).then_some(Location::Retained),
            }
        });
        match found.flatten() {
            None => Ok(None),
            Some(Location::Current(current)) => Ok(Some(Arc::unwrap_or_clone(current))),
            Some(Location::Retained) => {
                let row = self.repositories.row(repository, service).await?;
                row.as_ref().and_then(|row| row.version(digest)).map(parsed).transpose()
            }
        }
    }

    /// The current and all retained versions of a service, the newest first.
    pub async fn versions(&self, repository: &RepositoryName, service: &ServiceName) -> Result<Versions, PublishError> {
        let Some(row) = self.repositories.row(repository, service).await? else { return Ok(Versions::default()) };
        let current = row.current.into_iter().map(|version| (version, true));
        let all = current.chain(row.retained.into_iter().map(|retained| (retained.version, retained.followed)));
        let listed = all.map(|(version, followed)| ListedVersion { descriptor: version.into_raw(), followed });
        Ok(Versions { versions: listed.collect() })
    }

    /// The current and retained versions of a service that are called `name`, the newest first.
    pub async fn called(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
        name: &str,
    ) -> Result<Vec<Entry>, PublishError> {
        let Some(row) = self.repositories.row(repository, service).await? else { return Ok(Vec::new()) };
        let of_row: Vec<_> = match name {
            CURRENT => row.current.iter().collect(),
            // Nothing goes back to a version that was never in force by calling it the previous one.
            PREVIOUS => {
                let previous = row.retained.iter().find(|retained| !retained.only_staged);
                previous.map(|retained| &retained.version).into_iter().collect()
            }
            _ => row.versions().collect(),
        };
        let is_meant = |entry: &Entry| {
            let Entry { revision_id: revision, version, digest, .. } = entry;
            matches!(name, CURRENT | PREVIOUS)
                || Called { revision, version: version.as_ref(), digest: Some(digest) }.is(name)
        };
        let mut called = Vec::new();
        for version in of_row {
            let entry = Entry::new(&parsed(version)?, version.why, version.by.clone());
            called.extend(Some(entry).filter(is_meant));
        }
        Ok(called)
    }

    /// Part of a service's history, the newest publications first: those before a generation (`None`: from the
    /// newest), at most `limit` and never more than `LARGEST_PAGE`.
    pub async fn history(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
        before: Option<Generation>,
        limit: usize,
    ) -> Result<HistoryPage, PublishError> {
        let since = SystemTime::now().checked_sub(self.retention.history_age).unwrap_or(SystemTime::UNIX_EPOCH);
        let remembered = self.retention.history;
        let limit = limit.clamp(1, LARGEST_PAGE);
        let mut collected = Collected::new(Query { service: service.clone(), before, limit, remembered, since });
        let segments = self.repositories.repository(repository).map(|known| known.known().record.history.clone());
        for segment in segments.unwrap_or_default().iter().rev() {
            if collected.is_complete() {
                break;
            }
            match self.repositories.objects().get(repository, Area::Private, &segment.digest).await {
                Ok(bytes) => collected.add(&bytes),
                Err(error @ (ObjectError::Missing(_) | ObjectError::Corrupt(_))) => {
                    tracing::error!(%repository, %error, "a segment of the history is lost");
                }
                Err(error) => return Err(error.into()),
            }
        }
        let row = self.repositories.row(repository, service).await?;
        let current = row.as_ref().and_then(|row| row.current.as_ref());
        let current = match current {
            Some(version) => Some(Entry::new(&parsed(version)?, version.why, version.by.clone())),
            None => None,
        };
        Ok(collected.page(current.as_ref(), |digest| row.as_ref().is_some_and(|row| row.version(digest).is_some())))
    }

    /// The revisions of a repository in all current and retained versions, which a rebuild may need. `homes`: the other
    /// repositories whose composed services have parts in it.
    pub async fn revisions(
        &self,
        repository: &RepositoryName,
        homes: &BTreeSet<RepositoryName>,
    ) -> Result<Vec<(ServiceName, RevisionId)>, PublishError> {
        let mut revisions = HashSet::new();
        for home in homes.iter().chain([repository]) {
            for page in self.page_digests(home) {
                for row in read_page(self.repositories.objects(), home, &page).await?.rows() {
                    let row = row.map_err(|error| PublishError::Object(error.to_string()))?;
                    for version in row.versions() {
                        let version = parsed(version)?;
                        let publication = version.publication();
                        let parts = publication.parts.iter().filter(|part| part.repository == *repository);
                        let own = (home == repository).then_some(&publication.revision_id);
                        let all = parts.map(|part| &part.revision_id).chain(own);
                        revisions.extend(all.map(|revision| (row.service.clone(), revision.clone())));
                    }
                }
            }
        }
        Ok(revisions.into_iter().collect())
    }

    /// Finds a version that references a public object, current versions first. It reads manifests one after another,
    /// because it is needed only for a missing or damaged object. An unreadable manifest is skipped.
    pub async fn find_reference(
        &self,
        repository: &RepositoryName,
        digest: &ObjectDigest,
    ) -> Result<Option<Descriptor>, PublishError> {
        let known = self.repositories.repository(repository);
        let current: Vec<Descriptor> = known.map_or_else(Vec::new, |known| {
            let known = known.known();
            let versions = known.services.values().filter_map(|service| service.current.as_ref());
            versions.map(|version| Descriptor::clone(&version.descriptor)).collect()
        });
        if let Some(descriptor) = self.first_reference(repository, digest, current).await? {
            return Ok(Some(descriptor));
        }
        for page in self.page_digests(repository) {
            let mut retained = Vec::new();
            for row in read_page(self.repositories.objects(), repository, &page).await?.rows().flatten() {
                let versions = row.retained.iter().filter_map(|retained| parsed(&retained.version).ok());
                retained.extend(versions);
            }
            if let Some(descriptor) = self.first_reference(repository, digest, retained).await? {
                return Ok(Some(descriptor));
            }
        }
        Ok(None)
    }

    async fn first_reference(
        &self,
        repository: &RepositoryName,
        digest: &ObjectDigest,
        descriptors: Vec<Descriptor>,
    ) -> Result<Option<Descriptor>, PublishError> {
        let is_named = |descriptor: &&Descriptor| stored_bodies(descriptor).iter().any(|body| body.digest == *digest);
        if let Some(named) = descriptors.iter().find(is_named) {
            return Ok(Some(named.clone()));
        }
        let manifests: Vec<(usize, StoredBody)> = descriptors
            .iter()
            .enumerate()
            .flat_map(|(number, descriptor)| stored_bodies(descriptor).into_iter().map(move |body| (number, body)))
            .filter(|(_, body)| body.frames > 1)
            .collect();
        let mut read = stream::iter(manifests.into_iter().map(|(number, body)| async move {
            (number, read_manifest(self.repositories.objects(), repository, &body.digest).await)
        }))
        .buffered(CONCURRENT_MANIFESTS);
        let mut failed = None;
        while let Some((number, manifest)) = read.next().await {
            match manifest {
                Ok(manifest) if manifest.frames().iter().any(|frame| frame.digest == *digest) => {
                    return Ok(Some(descriptors[number].clone()));
                }
                // Another manifest may reference the object.
                Err(ReadError::Failed(error)) => failed = Some(error),
                Ok(_) | Err(ReadError::Damaged(_)) => {}
            }
        }
        failed.map_or(Ok(None), |error| Err(PublishError::Object(error)))
    }

    /// The recipe of the current version, the base of the next build. `None`: there is none, or it cannot be read.
    pub async fn recipe(&self, service: &Service) -> Option<Bytes> {
        let repository = &service.repository;
        let recipe =
            self.repositories.known_service(repository, &service.name, |known| known.current.as_ref()?.recipe)??;
        let read = self.repositories.objects().get(repository, Area::Private, &recipe).await;
        read.inspect_err(|error| tracing::warn!(service = %service.name, %error, "the last recipe cannot be read: the next build reuses no frames")).ok()
    }

    /// The order of a repository's publications. Also of one that another origin owns, as it was last read.
    pub async fn positions(&self, repository: &RepositoryName) -> Result<Arc<Positions>, PublishError> {
        let Some(known) = self.repositories.repository(repository) else { return Ok(Arc::default()) };
        let segments = known.known().record.history.clone();
        let newest = segments.len().saturating_sub(MAX_SEGMENTS);
        let segments: Vec<ObjectDigest> = segments[newest..].iter().map(|segment| segment.digest).collect();
        if let Some(positions) = self.read_positions.get(repository, &segments) {
            return Ok(positions);
        }
        let read = |digest: ObjectDigest| async move {
            match self.repositories.objects().get(repository, Area::Private, &digest).await {
                // What is lost is not known; the history logs it.
                Err(ObjectError::Missing(_) | ObjectError::Corrupt(_)) => Ok(None),
                read => read.map(Some),
            }
        };
        let read: Vec<_> = stream::iter(segments.clone()).map(read).buffered(CONCURRENT_READS).try_collect().await?;
        let order = move || {
            let mut positions = Positions::default();
            for segment in &read {
                match segment {
                    Some(segment) => positions.add(segment),
                    // Across a gap nothing can be compared.
                    None => positions = Positions::default(),
                }
            }
            Arc::new(positions)
        };
        let positions = tokio::task::spawn_blocking(order).await.map_err(|_| PublishError::ShuttingDown)?;
        self.read_positions.set(repository, segments, positions.clone());
        Ok(positions)
    }

    fn page_digests(&self, repository: &RepositoryName) -> Vec<ObjectDigest> {
        let known = self.repositories.repository(repository);
        known.map_or_else(Vec::new, |known| known.known().record.pages.iter().map(|page| page.digest).collect())
    }
}

//! The mark phase: the objects that a repository's state references. Used by garbage collection and `weir-origin
//! verify`.

use std::collections::HashSet;

use futures_util::{StreamExt, stream};
use weir_model::stored_mirror::StoredLfsObject;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::stored_body::{StoredBody, stored_bodies};
use weir_store::{Area, Objects};

use super::load::{ReadError, parse_list, read_manifest, read_mirror, read_page};
use super::record::RepositoryRecord;
use super::row::{Row, StoredVersion, parsed};

const CONCURRENT_MANIFESTS: usize = 8;

/// The referenced objects.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    /// Pages, history segments, recipes, bundles.
    pub(crate) private: HashSet<ObjectDigest>,
    pub(crate) versions: Vec<MarkedVersion>,
    /// Unreadable pages; they may reference any object.
    pub(crate) unreadable_pages: Vec<String>,
    /// Unreadable descriptors; they may reference any object.
    pub(crate) unreadable_versions: Vec<String>,
    /// Unreadable manifests; they may reference any public object.
    pub(crate) unreadable_manifests: Vec<String>,
    /// The store did not answer: try again.
    pub(crate) failure: Option<String>,
}

/// A version with its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MarkedVersion {
    pub(crate) service: ServiceName,
    pub(crate) digest: TarballDigest,
    /// Unix milliseconds; `None` for the current version and the staged one.
    pub(crate) superseded_at: Option<u64>,
    pub(crate) is_staged: bool,
    pub(crate) recipe: Option<ObjectDigest>,
    /// Frames and manifests with their sizes, each once.
    pub(crate) objects: Vec<(ObjectDigest, u64)>,
}

impl Mark {
    /// Marks every object that a record references.
    pub(crate) async fn of(objects: &Objects, repository: &RepositoryName, record: &RepositoryRecord) -> Self {
        let mut mark = Self { private: record.objects().collect(), ..Self::default() };
        if let Some(mirror) = &record.mirror {
            match mirror_objects(objects, repository, mirror).await {
                Ok(parts) => mark.private.extend(parts),
                // Nothing can be read from its parts, and the next bundle is a full one.
                Err(ReadError::Damaged(_)) => {}
                Err(ReadError::Failed(error)) => {
                    mark.failure = Some(error);
                    return mark;
                }
            }
        }
        for page in &record.pages {
            let rows = match read_page(objects, repository, &page.digest).await {
                Ok(rows) => rows,
                Err(ReadError::Damaged(error)) => {
                    mark.unreadable_pages.push(error);
                    continue;
                }
                Err(ReadError::Failed(error)) => {
                    mark.failure = Some(error);
                    return mark;
                }
            };
            for row in rows.rows() {
                match row {
                    Ok(row) => mark.add(objects, repository, &row).await,
                    Err(error) => mark.unreadable_pages.push(format!("page {}: {error}", page.digest)),
                }
            }
        }
        mark
    }

    /// Marks the objects of a service's versions.
    pub(crate) async fn add(&mut self, objects: &Objects, repository: &RepositoryName, row: &Row) {
        self.private.extend(row.versions().filter_map(|version| version.recipe));
        let superseded = row.retained.iter().map(|retained| (&retained.version, Some(retained.superseded_at)));
        for (version, superseded_at) in row.current.iter().map(|current| (current, None)).chain(superseded) {
            let objects = self.objects_of(objects, repository, &row.service, version).await;
            let (service, digest, recipe) = (row.service.clone(), version.digest, version.recipe);
            let is_staged = row.is_staged(&digest);
            let superseded_at = superseded_at.filter(|_| !is_staged);
            self.versions.push(MarkedVersion { service, digest, superseded_at, is_staged, recipe, objects });
        }
    }

    async fn objects_of(
        &mut self,
        objects: &Objects,
        repository: &RepositoryName,
        service: &ServiceName,
        version: &StoredVersion,
    ) -> Vec<(ObjectDigest, u64)> {
        let descriptor = match parsed(version) {
            Ok(descriptor) => descriptor,
            Err(error) => {
                self.unreadable_versions.push(format!("version {} of service `{service}`: {error}", version.digest));
                return Vec::new();
            }
        };
        let (frames, manifests): (Vec<StoredBody>, Vec<StoredBody>) =
            stored_bodies(&descriptor).into_iter().partition(|body| body.frames == 1);
        let mut found: Vec<_> = frames.iter().map(|frame| (frame.digest, frame.size)).collect();
        let mut read = stream::iter(manifests.into_iter().map(|manifest| async move {
            (manifest.digest, read_manifest(objects, repository, &manifest.digest).await)
        }))
        .buffered(CONCURRENT_MANIFESTS);
        while let Some((digest, manifest)) = read.next().await {
            match manifest {
                Ok(manifest) => {
                    let size = manifest.to_bytes().map_or(0, |bytes| bytes.len() as u64);
                    found.push((digest, size));
                    found.extend(manifest.frames().iter().map(|frame| (frame.digest, frame.size)));
                }
                Err(ReadError::Damaged(error)) => {
                    found.push((digest, 0));
                    self.unreadable_manifests.push(format!("service `{service}`: {error}"));
                }
                Err(ReadError::Failed(error)) => {
                    found.push((digest, 0));
                    self.failure = Some(error);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// All objects of a stored mirror, without the manifest itself.
async fn mirror_objects(
    objects: &Objects,
    repository: &RepositoryName,
    digest: &ObjectDigest,
) -> Result<Vec<ObjectDigest>, ReadError> {
    let manifest = read_mirror(objects, repository, digest).await?;
    let mut found: Vec<_> = manifest.parts().map(|part| part.digest).collect();
    if let Some(page) = &manifest.lfs {
        let read = objects.get(repository, Area::Private, &page.digest).await.map_err(ReadError::from);
        match read.and_then(|bytes| parse_list::<Vec<StoredLfsObject>>(&bytes)) {
            Ok(stored) => found.extend(stored.iter().flat_map(|object| &object.parts).map(|part| part.digest)),
            // They are stored again.
            Err(ReadError::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

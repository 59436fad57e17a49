//! Which objects a repository's state refers to.

use std::collections::HashSet;

use futures_util::{StreamExt, stream};
use weir_shared::descriptor::Representation;
use weir_shared::digest::ObjectDigest;
use weir_shared::name::RepositoryName;

use super::draft::parsed;
use super::load::{ReadError, read_page};
use super::publisher::Publisher;
use super::queries::ManifestReadError;
use super::record::RepositoryRecord;
use super::retention::{Superseded, Usage};
use super::row::{Row, StoredVersion};

/// Manifests that are read at a time.
const CONCURRENT_MANIFESTS: usize = 8;

/// What a state refers to.
#[derive(Debug, Default)]
pub(super) struct Mark {
    /// Pages, history, recipes.
    pub(super) private: HashSet<ObjectDigest>,
    /// Frames and manifests of all versions.
    pub(super) public: Usage,
    /// The superseded versions.
    pub(super) superseded: Vec<Superseded>,
    /// What cannot be read, and so may refer to anything.
    pub(super) unreadable_pages: Vec<String>,
    /// The same; it may refer to public objects only.
    pub(super) unreadable_manifests: Vec<String>,
    /// The store did not answer: try again.
    pub(super) failure: Option<String>,
}

impl Publisher {
    /// Reads everything that a record names.
    pub(super) async fn mark(&self, repository: &RepositoryName, record: &RepositoryRecord) -> Mark {
        let mut mark = Mark { private: record.objects().collect(), ..Mark::default() };
        for page in &record.pages {
            let rows = match read_page(self.objects(), repository, &page.digest).await {
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
                    Ok(row) => self.mark_row(repository, &row, &mut mark).await,
                    Err(error) => mark.unreadable_pages.push(format!("page {}: {error}", page.digest)),
                }
            }
        }
        mark
    }

    async fn mark_row(&self, repository: &RepositoryName, row: &Row, mark: &mut Mark) {
        mark.private.extend(row.versions().filter_map(|version| version.recipe));
        if let Some(current) = &row.current {
            let objects = self.objects_of(repository, current, mark).await;
            mark.public.add(&objects);
        }
        for retained in &row.retained {
            let objects = self.objects_of(repository, &retained.version, mark).await;
            mark.public.add(&objects);
            let (service, digest) = (row.service.clone(), retained.version.digest);
            let superseded = Superseded { service, digest, superseded_at: retained.superseded_at, objects };
            mark.superseded.push(superseded);
        }
    }

    /// The frames and manifests of a version, each with its size.
    async fn objects_of(
        &self,
        repository: &RepositoryName,
        version: &StoredVersion,
        mark: &mut Mark,
    ) -> Vec<(ObjectDigest, u64)> {
        let descriptor = match parsed(version) {
            Ok(descriptor) => descriptor,
            Err(error) => {
                mark.unreadable_pages.push(error.to_string());
                return Vec::new();
            }
        };
        // Of a service that was moved here, the objects of earlier versions are where it was.
        if descriptor.publication().repository != *repository {
            return Vec::new();
        }
        let (frames, manifests): (Vec<Representation>, Vec<Representation>) =
            descriptor.representations().iter().cloned().partition(|representation| representation.frames == 1);
        let mut objects: Vec<_> = frames.iter().map(|frame| (frame.digest, frame.size)).collect();
        let mut read = stream::iter(
            manifests
                .into_iter()
                .map(|manifest| async move { (manifest.digest, self.manifest(repository, &manifest.digest).await) }),
        )
        .buffered(CONCURRENT_MANIFESTS);
        while let Some((digest, manifest)) = read.next().await {
            match manifest {
                Ok(manifest) => {
                    let size = manifest.to_bytes().map_or(0, |bytes| bytes.len() as u64);
                    objects.push((digest, size));
                    objects.extend(manifest.frames().iter().map(|frame| (frame.digest, frame.size)));
                }
                Err(ManifestReadError::Damaged(error)) => {
                    objects.push((digest, 0));
                    let service = &descriptor.publication().service;
                    mark.unreadable_manifests.push(format!("service `{service}`: {error}"));
                }
                Err(ManifestReadError::Failed(error)) => mark.failure = Some(error),
            }
        }
        // A frame that a body repeats counts once.
        objects.sort_unstable();
        objects.dedup();
        objects
    }
}

//! The stored copy of a repository's mirror: Git bundles, in objects of the repository. A manifest lists them, and the
//! record names the manifest.
//!
//! Everything here can be had again from the upstream. So damage costs a clone, and no previous copy is kept.

use std::sync::Arc;

use bytes::Bytes;
use weir_model::stored_mirror::{MirrorManifest, StoredLfsObject};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;
use weir_store::{Area, ObjectError, Objects};

use super::protection::Protection;
use super::repositories::Repositories;
use crate::decide::draft::Draft;
use crate::error::PublishError;
use crate::stored::load::{ReadError, parse_list, read_mirror};

/// The objects of a mirror that is being stored. Garbage collection deletes none of them until it is dropped.
pub struct MirrorUpload {
    objects: Objects,
    repository: RepositoryName,
    protection: Protection,
}

impl MirrorUpload {
    /// Stores a part.
    pub async fn put(&self, bytes: Bytes) -> Result<ObjectDigest, ObjectError> {
        self.protection.add(ObjectDigest::of(&bytes)).await;
        self.objects.put(&self.repository, Area::Private, bytes).await
    }
}

/// The stored mirrors of repositories.
pub struct Mirrors {
    pub(crate) repositories: Arc<Repositories>,
}

impl Mirrors {
    /// The stored mirror of a repository; `None` if there is none that can be used.
    pub async fn read(&self, repository: &RepositoryName) -> Result<Option<MirrorManifest>, PublishError> {
        let digest = self.repositories.repository(repository).and_then(|known| known.known().record.mirror);
        let Some(digest) = digest else { return Ok(None) };
        match read_mirror(self.repositories.objects(), repository, &digest).await {
            Ok(manifest) => Ok(Some(manifest)),
            Err(ReadError::Damaged(error)) => {
                tracing::warn!(%repository, error, "the stored bundles of the mirror are lost; they are written again");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The LFS objects of a stored mirror; none if they cannot be read.
    pub async fn stored_lfs(&self, repository: &RepositoryName) -> Vec<StoredLfsObject> {
        let Ok(Some(MirrorManifest { lfs: Some(page), .. })) = self.read(repository).await else { return Vec::new() };
        let read = self.repositories.objects().get(repository, Area::Private, &page.digest).await;
        read.map_err(ReadError::from).and_then(|bytes| parse_list(&bytes)).unwrap_or_default()
    }

    /// The objects of stored mirrors. They would push all others out of the local copy of a bucket.
    pub fn objects(&self) -> Objects {
        self.repositories.objects().past_cache()
    }

    /// An upload of a mirror.
    pub fn begin(&self, repository: &RepositoryName) -> MirrorUpload {
        let protection = Protection::new(self.repositories.handle(repository).repository.protected.clone());
        MirrorUpload { objects: self.objects(), repository: repository.clone(), protection }
    }

    /// Lets the record name these bundles, instead of those before.
    pub async fn set(&self, upload: &MirrorUpload, manifest: &MirrorManifest) -> Result<(), PublishError> {
        let bytes = serde_json::to_vec(manifest).map_err(|error| PublishError::Object(error.to_string()))?;
        let digest = upload.put(bytes.into()).await?;
        self.name(&upload.repository, Some(digest)).await
    }

    /// Forgets the bundles of a deleted repository. Garbage collection deletes them.
    pub async fn forget(&self, repository: &RepositoryName) -> Result<(), PublishError> {
        let is_named =
            self.repositories.repository(repository).is_some_and(|known| known.known().record.mirror.is_some());
        if is_named { self.name(repository, None).await } else { Ok(()) }
    }

    async fn name(&self, repository: &RepositoryName, manifest: Option<ObjectDigest>) -> Result<(), PublishError> {
        let name = move |draft: &mut Draft<'_>| {
            draft.record.mirror = manifest;
            draft.set_changed();
            Ok(())
        };
        self.repositories.handle(repository).edit(Vec::new(), name).await
    }
}

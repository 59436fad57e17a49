//! A cache of parsed manifests.

use std::sync::Arc;

use foyer_memory::{Cache, CacheBuilder, S3FifoConfig};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::manifest::{Frame, Manifest};

use super::fill::FillError;
use super::representation::BodyRequest;

/// The most memory for manifests, in bytes.
const MAX_BYTES: usize = 32 << 20;

const SHARDS: usize = 4;

pub(super) struct Manifests(Cache<ObjectDigest, Arc<Manifest>>);

impl Manifests {
    pub(super) fn new() -> Self {
        let cache = CacheBuilder::new(MAX_BYTES)
            .with_shards(SHARDS)
            .with_eviction_config(S3FifoConfig::default())
            .with_weighter(|_, manifest: &Arc<Manifest>| size_of_val(manifest.frames()) + size_of::<Frame>());
        Self(cache.build())
    }

    /// The cached manifest of a request.
    ///
    /// # Errors
    /// The manifest contradicts the descriptor of the request.
    pub(super) fn get(&self, digest: &ObjectDigest, request: &BodyRequest) -> Result<Option<Arc<Manifest>>, FillError> {
        let manifest = self.0.get(digest).map(|entry| entry.value().clone());
        manifest.map(|manifest| request.check(&manifest).map(|()| manifest)).transpose()
    }

    /// Parses the manifest of a request and caches it.
    ///
    /// # Errors
    /// The bytes are no manifest, or it contradicts the descriptor.
    pub(super) fn parse(
        &self,
        digest: &ObjectDigest,
        request: &BodyRequest,
        bytes: &[u8],
    ) -> Result<Arc<Manifest>, FillError> {
        let manifest = Manifest::parse(bytes).map_err(|error| FillError::BadManifest(error.to_string()))?;
        let manifest = Arc::new(manifest);
        request.check(&manifest)?;
        self.0.insert(*digest, manifest.clone());
        Ok(manifest)
    }

    pub(super) fn remove(&self, digest: &ObjectDigest) {
        self.0.remove(digest);
    }

    /// Bytes in use, and the limit.
    pub(super) fn usage(&self) -> (u64, u64) {
        (self.0.usage() as u64, MAX_BYTES as u64)
    }
}

//! Reads the tar of a stored version, frame by frame.

use std::collections::VecDeque;
use std::io::{self, Read};

use bytes::Bytes;
use tokio::runtime::Handle;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::encoding::Encoding;
use weir_protocol::manifest::{Manifest, ManifestError};
use weir_protocol::name::RepositoryName;
use weir_store::{Area, ObjectError, Objects};

/// The frames of a stored version.
#[derive(Debug)]
pub(crate) struct TarReader {
    objects: Objects,
    repository: RepositoryName,
    frames: VecDeque<ObjectDigest>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("the version has no zstd representation")]
    NoZstd,
}

impl TarReader {
    /// Reads the manifest of a version, and verifies every frame in the store, past the cache.
    ///
    /// # Errors
    /// The manifest cannot be read, or an object is missing or damaged.
    pub(crate) async fn open(objects: &Objects, version: &Descriptor) -> Result<Self, ReadError> {
        let stored = objects.past_cache();
        let Self { repository, frames, .. } = Self::list(&stored, version).await?;
        for frame in &frames {
            stored.get(&repository, Area::Public, frame).await?;
        }
        Ok(Self { objects: objects.clone(), repository, frames })
    }

    /// Reads the manifest of a version. Whether its frames can be read is seen when they are.
    ///
    /// # Errors
    /// The manifest cannot be read.
    pub(crate) async fn list(objects: &Objects, version: &Descriptor) -> Result<Self, ReadError> {
        let zstd = version.representation(Encoding::Zstd).ok_or(ReadError::NoZstd)?;
        let repository = version.publication().repository.clone();
        let mut frames = VecDeque::from([zstd.digest]);
        if zstd.frames > 1 {
            let manifest = objects.get(&repository, Area::Public, &zstd.digest).await?;
            frames = Manifest::parse(&manifest)?.frames().iter().map(|frame| frame.digest).collect();
        }
        Ok(Self { objects: objects.clone(), repository, frames })
    }

    /// The tar's bytes, for a thread that may block.
    pub(crate) fn blocking(self, runtime: Handle) -> impl Read {
        BlockingTar { tar: self, runtime, frame: None }
    }
}

/// Holds one frame at a time in memory.
struct BlockingTar {
    tar: TarReader,
    runtime: Handle,
    frame: Option<zstd::Decoder<'static, io::BufReader<bytes::buf::Reader<Bytes>>>>,
}

impl Read for BlockingTar {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(buffer)?;
                if read > 0 || buffer.is_empty() {
                    return Ok(read);
                }
            }
            let TarReader { objects, repository, frames } = &mut self.tar;
            let Some(digest) = frames.pop_front() else { return Ok(0) };
            let bytes = self.runtime.block_on(objects.get(repository, Area::Public, &digest));
            let bytes = bytes.map_err(io::Error::other)?;
            self.frame = Some(zstd::Decoder::new(bytes::Buf::reader(bytes))?);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use object_store::local::LocalFileSystem;
    use weir_protocol::descriptor::{DescriptorFields, FORMAT, Publication, Representation, Selector};
    use weir_protocol::digest::{Sha256, TarballDigest};
    use weir_store::StoreMetrics;
    use weir_store::testing::FaultyStore;

    use super::*;

    fn version(repository: RepositoryName, frame: ObjectDigest) -> Descriptor {
        let (encoding, dictionary) = (Encoding::Zstd, None);
        Descriptor::new(DescriptorFields {
            publication: Publication {
                service: "shop-prod".parse().unwrap(),
                repository,
                generation: 1,
                digest: TarballDigest::of(b"one"),
                sha256: Sha256::of(b"one"),
                size: 3,
                commit: None,
                revision_id: format!("sha1:{:040x}", 1).parse().unwrap(),
                version: None,
                parts: Vec::new(),
                selector: Selector,
                published_at: SystemTime::UNIX_EPOCH,
                format: FORMAT,
                omitted: Vec::new(),
            },
            followed_ref: "main".to_owned(),
            revision: 1,
            representations: vec![Representation { encoding, dictionary, digest: frame, size: 3, frames: 1 }],
            oci: None,
            staged: None,
        })
    }

    #[tokio::test]
    async fn a_version_is_verified_in_the_store_and_not_in_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("objects")).unwrap();
        let local = LocalFileSystem::new_with_prefix(dir.path().join("objects")).unwrap();
        let metrics = StoreMetrics::register(&prometheus::Registry::new()).unwrap();
        let store = FaultyStore::over(Arc::new(local));
        let objects = Objects::over_cached(store, dir.path().join("object-cache"), metrics);
        let shop: RepositoryName = "shop".parse().unwrap();
        let frame = objects.put(&shop, Area::Public, "one".into()).await.unwrap();
        std::fs::write(dir.path().join("objects/shop/public").join(frame.hex()), "damaged").unwrap();
        assert_eq!(objects.get(&shop, Area::Public, &frame).await.unwrap(), "one", "it is in the cache");
        let rolled_back_to = TarReader::open(&objects, &version(shop, frame)).await;
        assert!(matches!(rolled_back_to, Err(ReadError::Object(ObjectError::Corrupt(_)))), "{rolled_back_to:?}");
    }
}

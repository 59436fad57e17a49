//! Content, and what an origin says of it.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use weir_shared::descriptor::{Descriptor, DescriptorFields, FORMAT, Publication, Representation};
use weir_shared::digest::{BlobDigest, Sha256, TarballDigest};
use weir_shared::encoding::Encoding;

/// Content with its stored form.
#[derive(Clone)]
pub(crate) struct Tarball {
    pub(crate) tar: Bytes,
    pub(crate) zstd: Bytes,
}

impl Tarball {
    /// Bytes that do not compress, different for each seed.
    pub(crate) fn random(seed: u64, length: usize) -> Self {
        let mut reader = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
        let mut tar = vec![0; length];
        reader.fill(&mut tar);
        Self::in_frames(tar, length.max(1))
    }

    /// Content in several zstd frames, of `frame` bytes each.
    pub(crate) fn in_frames(tar: Vec<u8>, frame: usize) -> Self {
        let zstd: Vec<u8> = tar.chunks(frame).flat_map(|part| zstd::encode_all(part, 1).unwrap()).collect();
        Self { tar: tar.into(), zstd: zstd.into() }
    }

    pub(crate) fn digest(&self) -> TarballDigest {
        TarballDigest::of(&self.tar)
    }

    pub(crate) fn blob(&self) -> BlobDigest {
        BlobDigest::of(&self.zstd)
    }

    pub(crate) fn sha256(&self) -> Sha256 {
        let digest = ring::digest::digest(&ring::digest::SHA256, &self.tar);
        Sha256::from_bytes(digest.as_ref().try_into().unwrap())
    }

    pub(crate) fn descriptor(&self, service: &str, generation: u64, revision: u64) -> Descriptor {
        Descriptor::new(DescriptorFields {
            publication: Publication {
                service: service.parse().unwrap(),
                repository: "shop".parse().unwrap(),
                generation,
                digest: self.digest(),
                sha256: self.sha256(),
                size: self.tar.len() as u64,
                commit: format!("{generation:040x}").parse().unwrap(),
                published_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_164_249),
                format: FORMAT,
                omitted: Vec::new(),
            },
            revision,
            representations: vec![Representation {
                encoding: Encoding::Zstd,
                dictionary: None,
                digest: self.blob(),
                size: self.zstd.len() as u64,
            }],
        })
    }
}

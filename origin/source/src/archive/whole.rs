//! An archive as its upstream has it, in a file until it is published.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use weir_protocol::digest::{Sha256, Sha256Hasher};
use weir_protocol::manifest::Frame;
use weir_protocol::oci::UpstreamManifest;
use weir_tarball::{FrameSink, TarballError, Whole, WholeBlob};

/// The bytes of a slice. Edges cache and fetch slices by themselves.
const SLICE_BYTES: u64 = 1 << 20;

/// What became of the bytes of an archive that was unpacked.
#[derive(Debug)]
pub(crate) enum Original {
    /// They were not needed.
    Dropped,
    /// They cannot be published as they are, with the manifest of this digest, if they have one.
    Unfit(Option<Sha256>),
    /// They are stored, with the manifest of this digest, if they have one.
    Stored(Option<Sha256>, WholeFile),
}

impl Original {
    /// Whether it was examined with a manifest.
    pub(crate) fn is_of(&self, manifest: Option<&Sha256>) -> bool {
        match self {
            Self::Dropped => false,
            Self::Unfit(of) | Self::Stored(of, _) => of.as_ref() == manifest,
        }
    }
}

/// The bytes of an archive, and of what belongs to it. The file has no name.
#[derive(Debug)]
pub(crate) struct WholeFile {
    file: File,
    manifest: Option<UpstreamManifest>,
    blobs: Vec<Blob>,
    size: u64,
}

#[derive(Debug)]
struct Blob {
    sha256: Sha256,
    media_type: String,
    offset: u64,
    size: u64,
}

impl WholeFile {
    /// With a file that has the archive and nothing else.
    pub(crate) fn new(
        file: File,
        manifest: Option<UpstreamManifest>,
        sha256: Sha256,
        media_type: String,
    ) -> io::Result<Self> {
        let size = file.metadata()?.len();
        Ok(Self { file, manifest, blobs: vec![Blob { sha256, media_type, offset: 0, size }], size })
    }

    /// Adds what belongs to it. It must not be empty.
    pub(crate) fn add(&mut self, sha256: Sha256, media_type: String, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.size))?;
        self.file.write_all(bytes)?;
        let (offset, size) = (self.size, bytes.len() as u64);
        self.blobs.push(Blob { sha256, media_type, offset, size });
        self.size += size;
        Ok(())
    }

    /// All its bytes on the disk.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Puts all bytes into a sink, and verifies them.
    ///
    /// # Errors
    /// They changed on the disk, or cannot be stored.
    pub(crate) fn store(&self, sink: &dyn FrameSink) -> Result<Whole, TarballError> {
        let blobs = self.blobs.iter().map(|blob| self.store_one(blob, sink));
        Ok(Whole { manifest: self.manifest.clone(), blobs: blobs.collect::<Result<_, _>>()? })
    }

    fn store_one(&self, blob: &Blob, sink: &dyn FrameSink) -> Result<WholeBlob, TarballError> {
        let damaged = |cause: &dyn std::fmt::Display| TarballError::Spool {
            path: blob.media_type.clone(),
            cause: cause.to_string(),
        };
        let (mut frames, mut sha256, mut at) = (Vec::new(), Sha256Hasher::default(), 0);
        while at < blob.size {
            let size = SLICE_BYTES.min(blob.size - at);
            let mut slice = vec![0; size as usize];
            self.file.read_exact_at(&mut slice, blob.offset + at).map_err(|error| damaged(&error))?;
            sha256.update(&slice);
            let digest = sink.put(Bytes::from(slice)).map_err(TarballError::Write)?;
            frames.push(Frame { digest, size, tar_size: size });
            at += size;
        }
        if sha256.finish() != blob.sha256 {
            return Err(damaged(&"its bytes changed on the disk"));
        }
        Ok(WholeBlob { sha256: blob.sha256, media_type: blob.media_type.clone(), frames })
    }
}

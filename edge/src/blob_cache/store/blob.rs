//! A blob that is at hand.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use weir_shared::digest::BlobDigest;

use super::file_stamp::FileStamp;

/// Bytes that are read at a time to compare a blob with its name.
const VERIFY_CHUNK: usize = 1 << 20;

/// A blob's bytes. Whoever holds them is not disturbed when the blob is evicted or replaced.
#[derive(Debug, Clone)]
pub(crate) enum Blob {
    /// In memory.
    Memory(Bytes),
    /// In an open file.
    File {
        /// The file.
        file: Arc<File>,
        /// Its bytes, as it was opened.
        length: u64,
        /// The state that it was in when it was opened.
        stamp: FileStamp,
    },
}

impl Blob {
    /// A blob in a file that has no name, or none that matters.
    pub(crate) fn of(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self::File { file: file.into(), length: metadata.len(), stamp: FileStamp::from(&metadata) })
    }

    /// Its bytes.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File { length, .. } => *length,
        }
    }

    /// The state of its file when it was opened; `None` when it is in memory.
    pub(super) fn stamp(&self) -> Option<FileStamp> {
        match self {
            Self::Memory(_) => None,
            Self::File { stamp, .. } => Some(*stamp),
        }
    }

    /// Whether its bytes are what the name says. Blocks for as long as it takes to read them all.
    pub(crate) fn is(&self, digest: &BlobDigest) -> io::Result<bool> {
        let (file, length) = match self {
            Self::Memory(bytes) => return Ok(BlobDigest::of(bytes) == *digest),
            Self::File { file, length, .. } => (file, *length),
        };
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; VERIFY_CHUNK];
        let mut offset = 0;
        loop {
            let read = read_at(file, &mut chunk, offset)?;
            if read == 0 {
                break;
            }
            hasher.update(&chunk[..read]);
            offset += read as u64;
        }
        Ok(offset == length && BlobDigest::from(hasher.finalize()) == *digest)
    }

    /// All of it in memory. Blocks.
    pub(super) fn read(&self) -> io::Result<Bytes> {
        match self {
            Self::Memory(bytes) => Ok(bytes.clone()),
            Self::File { file, length, .. } => {
                let length = usize::try_from(*length).map_err(|_| io::ErrorKind::OutOfMemory)?;
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, 0)?;
                Ok(bytes.into())
            }
        }
    }
}

/// Reads as much as is there, once. Blocks.
pub(super) fn read_at(file: &File, chunk: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(chunk, offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

//! Blobs on disk, each named by its digest: a file `blobs/ab/<64 hex>`, or a folder `blobs/ab/<64 hex>.parts` of files that
//! it shares with other blobs; its piece list stands beside it.
//!
//! A blob appears whole or not at all: its bytes go to a temporary file, to the disk, and then take their name. Nothing
//! leaves the store that was not verified by the same call (`BlobStore::piece`, `BlobStore::open_verified`), so that
//! a bit that flipped on the disk stays here. All of this blocks.

mod examine;
mod fragments;
mod layout;
mod pieces;
mod piecewise;
mod shared_parts;
mod stored;
mod sweep;
mod temporary;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_shared::digest::BlobDigest;
use weir_shared::piece::{PieceHasher, PieceList};

pub(crate) use examine::{Bytes, Examined, Listed};
pub(crate) use piecewise::OpenPieces;
pub(crate) use stored::MAX_DESCRIPTORS;
pub use stored::StoredBlob;
use temporary::sync_folder;
pub use temporary::{TemporaryBlob, WrittenBlob};

/// How much is read at a time while a blob is verified.
const VERIFY_READ_BYTES: usize = 256 << 10;

/// The folder of files that have no name yet.
const TEMPORARY: &str = "tmp";

/// The content-addressed blobs of an origin.
#[derive(Debug)]
pub struct BlobStore {
    root: PathBuf,
    /// Held while a blob's name changes what it stands for, so that a corrupt one is never taken for the one that replaced it,
    /// and whoever holds it finds something whole under each name, or nothing.
    names: Mutex<()>,
    /// Numbers what has lost its name.
    unnamed: AtomicU64,
}

/// A blob whose bytes were verified.
#[derive(Debug)]
pub(crate) struct OpenBlob {
    pub(crate) bytes: StoredBlob,
    /// Of a blob of more than one piece.
    pub(crate) pieces: Option<PieceList>,
}

/// Why a blob cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlobError {
    /// Nothing has its name.
    #[error("the blob is not here")]
    Missing,
    /// What had its name had other bytes.
    #[error("the blob's bytes were not those of its digest; it was removed")]
    Corrupt,
    /// What has its name may be right.
    #[error("the blob cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

impl BlobStore {
    /// Opens the store, creating its folders; what a killed process left half-written is removed.
    ///
    /// # Errors
    /// The folders cannot be created or emptied.
    pub fn open(root: &Path) -> io::Result<Self> {
        let temporary = root.join(TEMPORARY);
        match fs::remove_dir_all(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir_all(&temporary)?,
        }
        if let Some(parent) = root.parent() {
            sync_folder(parent)?;
        }
        Ok(Self::untouched(root))
    }

    fn path(&self, digest: &BlobDigest) -> PathBuf {
        let hex = digest.hex();
        self.root.join(&hex[..2]).join(&hex)
    }

    /// A path below the temporary folder for what loses its name.
    fn aside(&self) -> PathBuf {
        let number = self.unnamed.fetch_add(1, Ordering::Relaxed);
        self.root.join(TEMPORARY).join(format!("unnamed-{number}"))
    }

    fn names(&self) -> MutexGuard<'_, ()> {
        // It guards no data of its own, so that a panic in its holder leaves nothing half-changed.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that can be written before the disk is full.
    pub(crate) fn free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.root)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Whether a blob of that name and length is there. Its bytes are not looked at.
    pub(crate) fn contains(&self, digest: &BlobDigest, size: u64) -> bool {
        match self.size(digest) {
            Ok(found) => found == size,
            Err(BlobError::Missing | BlobError::Corrupt) => false,
            // Whoever reads it finds out.
            Err(BlobError::Unreadable(_)) => true,
        }
    }

    /// Opens a blob and reads it in full to verify it. One that fails is removed.
    pub(crate) fn open_verified(&self, digest: &BlobDigest) -> Result<OpenBlob, BlobError> {
        let bytes = self.open_stored(digest)?;
        match hash(&bytes) {
            Ok(found) if found.digest == *digest => {
                if let Some(list) = &found.pieces {
                    self.keep_pieces(digest, list);
                }
                Ok(OpenBlob { bytes, pieces: found.pieces })
            }
            Ok(_) => Err(self.discard_stored(digest, &bytes)),
            Err(error) if is_wrong(&error) => Err(self.discard_stored(digest, &bytes)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether the disk cannot read back what it was given: as good as other bytes.
fn is_lost(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    error.raw_os_error() == Some(EIO)
}

/// Whether a blob that cannot be read is as good as one of other bytes: lost, or shorter than it was.
fn is_wrong(error: &io::Error) -> bool {
    is_lost(error) || error.kind() == io::ErrorKind::UnexpectedEof
}

/// What a blob's bytes are.
struct Hashed {
    digest: BlobDigest,
    pieces: Option<PieceList>,
}

fn hash(blob: &StoredBlob) -> io::Result<Hashed> {
    let mut reader = blob.reader();
    let mut hasher = PieceHasher::new();
    let mut buffer = vec![0; VERIFY_READ_BYTES];
    loop {
        match reader.read(&mut buffer)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    let (digest, pieces) = hasher.finish();
    Ok(Hashed { digest, pieces })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    pub(super) fn keep(store: &BlobStore, bytes: &[u8]) -> BlobDigest {
        let digest = BlobDigest::of(bytes);
        let mut temporary = store.temporary().unwrap();
        temporary.write_all(bytes).unwrap();
        temporary.keep(&digest).unwrap();
        digest
    }

    #[test]
    fn a_flipped_bit_never_leaves_and_a_good_copy_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        let digest = keep(&store, b"some bytes");
        assert_eq!(store.open_verified(&digest).unwrap().bytes.size(), 10);
        assert!(store.contains(&digest, 10) && !store.contains(&digest, 9));

        fs::write(store.path(&digest), b"some bytEs").unwrap();
        assert!(matches!(store.open_verified(&digest), Err(BlobError::Corrupt)));
        assert!(matches!(store.open_verified(&digest), Err(BlobError::Missing)));
        keep(&store, b"some bytes");
        store.open_verified(&digest).unwrap();
    }

    #[test]
    fn a_bad_block_is_lost_and_a_want_of_memory_passes() {
        assert!(is_lost(&io::Error::from_raw_os_error(5)));
        assert!(!is_lost(&io::Error::from_raw_os_error(12)) && !is_lost(&io::ErrorKind::PermissionDenied.into()));
    }

    #[test]
    fn what_a_killed_process_left_is_removed_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        let digest = keep(&store, b"whole");
        let mut half = store.temporary().unwrap();
        half.write_all(b"half").unwrap();
        std::mem::forget(half);
        assert_eq!(fs::read_dir(dir.path().join(TEMPORARY)).unwrap().count(), 1);
        let store = BlobStore::open(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path().join(TEMPORARY)).unwrap().count(), 0);
        store.open_verified(&digest).unwrap();
    }

    #[test]
    fn a_temporary_that_is_not_kept_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        let mut temporary = store.temporary().unwrap();
        temporary.write_all(b"half").unwrap();
        drop(temporary);
        assert_eq!(fs::read_dir(dir.path().join(TEMPORARY)).unwrap().count(), 0);
    }
}

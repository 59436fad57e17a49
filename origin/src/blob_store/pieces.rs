//! Piece lists, each in a file beside its blob: `blobs/ab/<64 hex>.pieces`.
//!
//! A list falls off whenever a blob is written or verified, because both hash the same bytes. It is kept so that it need
//! not be made twice, and it is checked against the blob's digest whenever it is read: one that is missing or wrong is made
//! again from the blob, and none is ever believed.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use weir_shared::digest::BlobDigest;
use weir_shared::piece::{PIECE_BYTES, PieceList};

use super::{BlobError, BlobStore};

/// What follows the digest in the name of a list.
pub(super) const SUFFIX: &str = ".pieces";

impl BlobStore {
    pub(super) fn pieces_path(&self, digest: &BlobDigest) -> PathBuf {
        let mut path = self.path(digest).into_os_string();
        path.push(SUFFIX);
        path.into()
    }

    /// The piece list of a blob; `None` for a blob of one piece. A list that is kept is read without the blob;
    /// otherwise the blob is read in full, as [`BlobStore::open_verified`] does.
    pub(crate) fn pieces(&self, digest: &BlobDigest) -> Result<Option<PieceList>, BlobError> {
        // A blob that is no longer than a piece may be a longer one that was cut: only its bytes tell.
        let size = self.size(digest)?;
        if size > PIECE_BYTES
            && let Some(list) = self.kept_pieces(digest, size)
        {
            return Ok(Some(list));
        }
        Ok(self.open_verified(digest)?.pieces)
    }

    /// The list that is kept, if it is that of the blob. One that is not is removed.
    fn kept_pieces(&self, digest: &BlobDigest, size: u64) -> Option<PieceList> {
        let path = self.pieces_path(digest);
        let mut bytes = Vec::new();
        // What is longer than it should be is wrong, however long it is.
        let read = File::open(&path).and_then(|file| file.take(PieceList::length(size) + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(blob = %digest, %error, "a piece list on disk cannot be read; it is made again");
                return None;
            }
        }
        let error = match PieceList::parse(digest, size, &bytes) {
            Ok(list) => return Some(list),
            Err(error) => error,
        };
        tracing::warn!(blob = %digest, %error, "a piece list on disk is wrong; it is made again");
        if let Err(error) = fs::remove_file(&path) {
            tracing::debug!(blob = %digest, %error, "a wrong piece list cannot be removed");
        }
        None
    }

    /// Keeps a list that was made, unless there is one. The list is there to be used whether or not it can be kept.
    pub(super) fn keep_pieces(&self, digest: &BlobDigest, list: &PieceList) {
        let path = self.pieces_path(digest);
        if path.exists() {
            return;
        }
        let kept = self.temporary().and_then(|mut temporary| {
            temporary.write_all(&list.to_bytes())?;
            temporary.keep_as(&path)
        });
        if let Err(error) = kept {
            tracing::warn!(blob = %digest, %error, "a piece list cannot be kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::keep;
    use super::*;
    use std::path::Path;
    use tempfile::TempDir;

    fn store() -> (TempDir, BlobStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        (dir, store)
    }

    fn long() -> Vec<u8> {
        (0..(5 << 20) / 2).map(|i: u32| (i % 251) as u8).collect()
    }

    fn change(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(file).unwrap();
        change(&mut bytes);
        fs::write(file, bytes).unwrap();
    }

    #[test]
    fn a_list_is_made_when_its_blob_is_written_or_verified_and_read_without_it_after() {
        let (_dir, store) = store();
        let digest = keep(&store, &long());
        let written = fs::read(store.pieces_path(&digest)).unwrap();
        assert_eq!(store.pieces(&digest).unwrap().unwrap().to_bytes(), written);
        fs::remove_file(store.pieces_path(&digest)).unwrap();
        let made = store.open_verified(&digest).unwrap().pieces.unwrap();
        assert_eq!(fs::read(store.pieces_path(&digest)).unwrap(), made.to_bytes());
        // The list is right whatever became of the blob's bytes since.
        change(&store.path(&digest), |bytes| bytes[7] ^= 1);
        assert_eq!(store.pieces(&digest).unwrap(), Some(made));
    }

    #[test]
    fn a_list_that_is_missing_or_wrong_is_made_again() {
        let (_dir, store) = store();
        let digest = keep(&store, &long());
        let made = store.pieces(&digest).unwrap().unwrap();
        let path = store.pieces_path(&digest);
        fs::remove_file(&path).unwrap();
        assert_eq!(store.pieces(&digest).unwrap().as_ref(), Some(&made));
        let damages: [fn(&mut Vec<u8>); 4] =
            [|bytes| bytes[40] ^= 4, |bytes| bytes.truncate(64), |bytes| bytes.push(0), Vec::clear];
        for damage in damages {
            change(&path, damage);
            assert_eq!(store.pieces(&digest).unwrap().as_ref(), Some(&made));
            assert_eq!(fs::read(&path).unwrap(), made.to_bytes());
        }
    }

    #[test]
    fn a_blob_of_one_piece_has_none_and_one_that_was_cut_to_it_is_corrupt() {
        let (_dir, store) = store();
        let short = keep(&store, &long()[..1 << 20]);
        assert_eq!(store.pieces(&short).unwrap(), None);
        assert!(!store.pieces_path(&short).exists());

        let cut = keep(&store, &long());
        store.pieces(&cut).unwrap();
        change(&store.path(&cut), |bytes| bytes.truncate(1000));
        assert!(matches!(store.pieces(&cut), Err(BlobError::Corrupt)));
        assert!(matches!(store.pieces(&cut), Err(BlobError::Missing)));
    }

    #[test]
    fn a_blob_that_is_wrong_gives_no_list() {
        let (_dir, store) = store();
        let digest = keep(&store, &long());
        fs::remove_file(store.pieces_path(&digest)).unwrap();
        change(&store.path(&digest), |bytes| bytes[2_000_000] ^= 1);
        assert!(matches!(store.pieces(&digest), Err(BlobError::Corrupt)));
        assert!(!store.pieces_path(&digest).exists());
    }
}

//! A blob that is read piece by piece, each verified as it is read: what is sent was verified, and nothing else was
//! waited for.

use std::io;

use bytes::Bytes;
use weir_shared::digest::BlobDigest;
use weir_shared::piece::{self, PIECE_BYTES, PieceList};

use super::{BlobError, BlobStore, StoredBlob, is_wrong};

/// A blob that is open; it stays readable whatever happens to its name.
#[derive(Debug)]
pub(crate) struct OpenPieces {
    digest: BlobDigest,
    bytes: StoredBlob,
    /// Of a blob of more than one piece.
    list: Option<PieceList>,
}

impl OpenPieces {
    /// The blob's bytes.
    pub(crate) fn size(&self) -> u64 {
        self.bytes.size()
    }

    /// Files and folders that it holds open.
    pub(crate) fn descriptors(&self) -> usize {
        self.bytes.descriptors()
    }

    fn is(&self, index: u64, bytes: &[u8]) -> bool {
        match &self.list {
            Some(list) => list.verify(index, bytes).is_ok(),
            None => index == 0 && BlobDigest::of(bytes) == self.digest,
        }
    }

    fn read(&self, index: u64) -> io::Result<Vec<u8>> {
        let part = piece::bytes_of(index, self.size()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut bytes = vec![0; usize::try_from(part.end - part.start).expect("a piece fits in memory")];
        self.bytes.read_exact_at(&mut bytes, part.start)?;
        Ok(bytes)
    }
}

impl BlobStore {
    /// Opens a blob to read its pieces. The length of one of several pieces is verified, by the last of them; its piece
    /// list is made from all of its bytes when it is not there. A blob that fails is removed.
    pub(crate) fn open_pieces(&self, digest: &BlobDigest) -> Result<OpenPieces, BlobError> {
        // All that is said of the blob is of what is opened here, whatever has its name by then.
        let bytes = self.open_stored(digest)?;
        let size = bytes.size();
        let list = if size > PIECE_BYTES { self.pieces(digest)? } else { None };
        // The list is verified, but another blob may have taken the name in between.
        if list.as_ref().is_some_and(|list| list.size() != size) || (list.is_none() && size > PIECE_BYTES) {
            return Err(BlobError::Missing);
        }
        let blob = OpenPieces { digest: *digest, bytes, list };
        if let Some(last) = piece::count(size).checked_sub(1).filter(|_| blob.list.is_some()) {
            self.piece(&blob, last)?;
        }
        Ok(blob)
    }

    /// A piece of a blob, verified. When it is wrong the blob is removed.
    pub(crate) fn piece(&self, blob: &OpenPieces, index: u64) -> Result<Bytes, BlobError> {
        match blob.read(index) {
            Ok(bytes) if blob.is(index, &bytes) => Ok(bytes.into()),
            Ok(_) => Err(self.discard_stored(&blob.digest, &blob.bytes)),
            Err(error) if is_wrong(&error) => Err(self.discard_stored(&blob.digest, &blob.bytes)),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::keep;
    use super::*;
    use std::fs;
    use std::sync::Barrier;

    const PIECE: usize = PIECE_BYTES as usize;

    fn blob(size: usize) -> Vec<u8> {
        (0..size).map(|i| (i % 251) as u8).collect()
    }

    fn change(store: &BlobStore, digest: &BlobDigest, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(store.path(digest)).unwrap();
        change(&mut bytes);
        fs::write(store.path(digest), bytes).unwrap();
    }

    #[test]
    fn a_blob_is_what_its_pieces_are_on_both_sides_of_every_boundary() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        for size in [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1] {
            let bytes = blob(size);
            let digest = keep(&store, &bytes);
            let opened = store.open_pieces(&digest).unwrap();
            assert_eq!(opened.size(), size as u64);
            let pieces: Vec<_> = (0..piece::count(size as u64)).map(|n| store.piece(&opened, n).unwrap()).collect();
            assert_eq!(pieces.concat(), bytes, "{size}");
            assert!(matches!(store.piece(&opened, pieces.len() as u64), Err(BlobError::Corrupt)), "there is no such");
        }
    }

    #[test]
    fn a_wrong_piece_is_found_when_it_is_read_and_its_blob_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        let digest = keep(&store, &blob(3 * PIECE));
        change(&store, &digest, |bytes| bytes[PIECE + 7] ^= 1);
        let opened = store.open_pieces(&digest).unwrap();
        assert_eq!(store.piece(&opened, 0).unwrap(), blob(PIECE));
        assert!(matches!(store.piece(&opened, 1), Err(BlobError::Corrupt)));
        assert!(matches!(store.open_pieces(&digest), Err(BlobError::Missing)));
        // What replaced it is not removed for what the old one was.
        keep(&store, &blob(3 * PIECE));
        assert!(matches!(store.piece(&opened, 1), Err(BlobError::Corrupt)));
        store.open_pieces(&digest).unwrap();

        let small = keep(&store, b"one piece");
        change(&store, &small, |bytes| bytes[2] ^= 1);
        let opened = store.open_pieces(&small).unwrap();
        assert!(matches!(store.piece(&opened, 0), Err(BlobError::Corrupt)));
    }

    #[test]
    fn a_length_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        let lengths: [fn(&mut Vec<u8>); 4] = [
            |bytes| bytes.truncate(3 * PIECE - 1),
            |bytes| bytes.truncate(2 * PIECE),
            |bytes| bytes.truncate(5),
            |bytes| bytes.push(0),
        ];
        for length in lengths {
            let digest = keep(&store, &blob(3 * PIECE));
            change(&store, &digest, length);
            let first = store.open_pieces(&digest).and_then(|opened| store.piece(&opened, 0));
            assert!(matches!(first, Err(BlobError::Corrupt)));
        }
    }
    #[test]
    fn a_reader_of_a_cut_blob_leaves_the_good_one_that_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        let good = blob(3 * PIECE);
        let digest = keep(&store, &good);
        let (path, kept, next) = (store.path(&digest), dir.path().join("kept"), dir.path().join("next"));
        fs::copy(&path, &kept).unwrap();
        for _ in 0..500 {
            fs::remove_file(&path).unwrap();
            fs::write(&path, &good[..100]).unwrap();
            fs::hard_link(&kept, &next).unwrap();
            let both = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    both.wait();
                    store.open_pieces(&digest).and_then(|opened| store.piece(&opened, 0))
                });
                both.wait();
                let names = store.names();
                fs::rename(&next, &path).unwrap();
                drop(names);
            });
            assert!(store.contains(&digest, good.len() as u64));
        }
    }
}

//! Fragments of an earlier blob, taken over into a new one.
//!
//! An index says which fragments a blob is made of. A fragment that a new tarball needs too is copied from the earlier
//! blob: neither decoded from Git nor compressed again. The tar itself is needed for the digests, so a fragment is
//! decompressed, which costs a tenth of making it. Nothing that the disk says is believed: the index carries a checksum,
//! and each fragment is compared with its own hash before it is used. What is wrong is made anew from Git.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use weir_shared::digest::BlobDigest;

use super::fragment::Fragment;

/// What decides a fragment's bytes, all of it: an equal key is an equal fragment.
pub(super) type FragmentKey = [u8; 32];

/// One fragment of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexRow {
    pub(super) key: FragmentKey,
    /// BLAKE3 of the frame.
    pub(super) hash: [u8; 32],
    pub(super) frame_bytes: u64,
    pub(super) tar_bytes: u64,
}

const ROW_BYTES: usize = 80;
const CHECKSUM_BYTES: usize = 32;

/// The fragments that a blob is made of, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FragmentIndex {
    pub(super) rows: Vec<IndexRow>,
}

impl FragmentIndex {
    /// How many fragments the blob has.
    pub fn fragments(&self) -> usize {
        self.rows.len()
    }

    /// As it is kept beside the blob: a checksum, and 80 bytes for each fragment.
    pub fn to_bytes(&self, blob: &BlobDigest) -> Vec<u8> {
        let mut bytes = vec![0; CHECKSUM_BYTES];
        for row in &self.rows {
            bytes.extend_from_slice(&row.key);
            bytes.extend_from_slice(&row.hash);
            bytes.extend_from_slice(&row.frame_bytes.to_le_bytes());
            bytes.extend_from_slice(&row.tar_bytes.to_le_bytes());
        }
        let checksum = checksum(blob, &bytes[CHECKSUM_BYTES..]);
        bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum);
        bytes
    }

    /// `None` for anything but what was kept for this blob.
    pub fn parse(blob: &BlobDigest, bytes: &[u8]) -> Option<Self> {
        let (found, rows) = bytes.split_at_checked(CHECKSUM_BYTES)?;
        if found != checksum(blob, rows) {
            return None;
        }
        let (rows, []) = rows.as_chunks::<ROW_BYTES>() else { return None };
        let read = |row: &[u8; ROW_BYTES]| -> Option<IndexRow> {
            Some(IndexRow {
                key: row[..32].try_into().ok()?,
                hash: row[32..64].try_into().ok()?,
                frame_bytes: u64::from_le_bytes(row[64..72].try_into().ok()?),
                tar_bytes: u64::from_le_bytes(row[72..].try_into().ok()?),
            })
        };
        Some(Self { rows: rows.iter().map(read).collect::<Option<_>>()? })
    }
}

fn checksum(blob: &BlobDigest, rows: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("weir fragment index v1");
    hasher.update(blob.as_bytes()).update(rows);
    *hasher.finalize().as_bytes()
}

/// A blob that was built before, to take fragments from.
#[derive(Debug)]
pub struct Earlier {
    file: File,
    /// Where each fragment begins in the file.
    fragments: HashMap<FragmentKey, (u64, IndexRow)>,
}

impl Earlier {
    /// A blob's file, and what it is made of.
    pub fn new(file: File, index: &FragmentIndex) -> Self {
        let mut offset = 0u64;
        let mut fragments = HashMap::with_capacity(index.rows.len());
        for row in &index.rows {
            fragments.insert(row.key, (offset, *row));
            offset = offset.saturating_add(row.frame_bytes);
        }
        Self { file, fragments }
    }

    /// A fragment, if the blob has it and its bytes are still what they were.
    pub(super) fn take(&self, key: &FragmentKey) -> Option<Fragment> {
        let (offset, row) = self.fragments.get(key)?;
        let mut frame = vec![0; usize::try_from(row.frame_bytes).ok()?];
        let read = self.file.read_exact_at(&mut frame, *offset);
        if read.is_err() || *blake3::hash(&frame).as_bytes() != row.hash {
            tracing::warn!("a fragment of an earlier blob cannot be read or has changed; it is made anew");
            return None;
        }
        let tar_bytes = usize::try_from(row.tar_bytes).ok()?;
        let tar = zstd::bulk::decompress(&frame, tar_bytes).ok().filter(|tar| tar.len() == tar_bytes)?;
        Some(Fragment { tar: vec![tar], frame, frame_hash: row.hash, reused: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn earlier(parts: &[&[u8]]) -> (FragmentIndex, Vec<u8>) {
        let (mut index, mut blob) = (FragmentIndex::default(), Vec::new());
        for part in parts {
            let frame = zstd::bulk::compress(part, 3).unwrap();
            index.rows.push(IndexRow {
                key: *blake3::hash(part).as_bytes(),
                hash: *blake3::hash(&frame).as_bytes(),
                frame_bytes: frame.len() as u64,
                tar_bytes: part.len() as u64,
            });
            blob.extend_from_slice(&frame);
        }
        (index, blob)
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_fragment_is_taken_from_where_it_is_and_not_when_a_bit_of_it_has_changed() {
        let parts: [&[u8]; 3] = [b"one", b"the second", b"three"];
        let (index, mut blob) = earlier(&parts);
        let whole = Earlier::new(file(&blob), &index);
        for part in parts {
            assert_eq!(whole.take(blake3::hash(part).as_bytes()).unwrap().tar, [part.to_vec()]);
        }
        assert!(whole.take(blake3::hash(b"four").as_bytes()).is_none());

        let middle = blob.len() / 2;
        blob[middle] ^= 1;
        let changed = Earlier::new(file(&blob), &index);
        let cut = Earlier::new(file(&blob[..blob.len() - 1]), &index);
        assert!(changed.take(blake3::hash(b"one").as_bytes()).is_some());
        assert!(changed.take(blake3::hash(b"the second").as_bytes()).is_none());
        assert!(cut.take(blake3::hash(b"three").as_bytes()).is_none());
    }

    #[test]
    fn an_index_that_is_not_the_blob_s_is_not_believed() {
        let (index, blob) = earlier(&[b"one", b"two"]);
        let digest = BlobDigest::of(&blob);
        let bytes = index.to_bytes(&digest);
        assert_eq!(FragmentIndex::parse(&digest, &bytes), Some(index));
        assert_eq!(FragmentIndex::parse(&BlobDigest::of(b"another"), &bytes), None);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(FragmentIndex::parse(&digest, &changed), None, "bit of byte {at}");
            assert_eq!(FragmentIndex::parse(&digest, &bytes[..at]), None, "cut to {at}");
        }
    }
}

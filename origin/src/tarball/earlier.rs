//! Fragments of an earlier blob, taken over into a new one.
//!
//! An index says which fragments a blob is made of. A fragment that a new tarball needs too is taken from the earlier
//! blob: neither decoded from Git nor compressed again. Up to the first change the tar's digests are known, too; after it
//! they need the tar, so a fragment is decompressed, which costs a tenth of making it. Nothing that the disk says is
//! believed: the index carries a checksum, and each fragment is compared with its own hash before it is used. What is wrong
//! is made anew from Git.

use std::collections::HashMap;

use weir_shared::digest::BlobDigest;
use zstd::bulk::Decompressor;

use super::digests::TarDigests;
use super::fragment::{Fragment, Tar};
use crate::blob_store::StoredBlob;

/// What decides a fragment's bytes, all of it: an equal key is an equal fragment.
pub(super) type FragmentKey = [u8; 32];

/// One fragment of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexRow {
    pub(super) key: FragmentKey,
    /// BLAKE3 of the frame.
    pub(super) hash: [u8; 32],
    pub(super) frame_bytes: u64,
    pub(super) tar_bytes: u64,
    /// The tar's digests where the fragment ends.
    pub(super) digests: TarDigests,
}

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

    /// As it is kept beside the blob: a checksum, and 1 to 2 KiB for each fragment.
    pub fn to_bytes(&self, blob: &BlobDigest) -> Vec<u8> {
        let mut bytes = vec![0; CHECKSUM_BYTES];
        for row in &self.rows {
            bytes.extend_from_slice(&row.key);
            bytes.extend_from_slice(&row.hash);
            bytes.extend_from_slice(&row.frame_bytes.to_le_bytes());
            bytes.extend_from_slice(&row.tar_bytes.to_le_bytes());
            row.digests.write_to(&mut bytes);
        }
        let checksum = checksum(blob, &bytes[CHECKSUM_BYTES..]);
        bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum);
        bytes
    }

    /// `None` for anything but what was kept for this blob.
    pub fn parse(blob: &BlobDigest, bytes: &[u8]) -> Option<Self> {
        let (found, mut rest) = bytes.split_first_chunk::<CHECKSUM_BYTES>()?;
        if *found != checksum(blob, rest) {
            return None;
        }
        let mut rows = Vec::new();
        while !rest.is_empty() {
            let (key, hash) = (take(&mut rest)?, take(&mut rest)?);
            let (frame_bytes, tar_bytes) = (take(&mut rest)?, take(&mut rest)?);
            rows.push(IndexRow {
                key,
                hash,
                frame_bytes: u64::from_le_bytes(frame_bytes),
                tar_bytes: u64::from_le_bytes(tar_bytes),
                digests: TarDigests::take_from(&mut rest)?,
            });
        }
        Some(Self { rows })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let taken;
    (taken, *bytes) = bytes.split_first_chunk::<N>()?;
    Some(*taken)
}

fn checksum(blob: &BlobDigest, rows: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("weir fragment index v2");
    hasher.update(blob.as_bytes()).update(rows);
    *hasher.finalize().as_bytes()
}

/// A blob that was built before, to take fragments from.
#[derive(Debug)]
pub struct Earlier {
    blob: StoredBlob,
    /// In the order of the blob, each with where it begins.
    fragments: Vec<(u64, IndexRow)>,
    places: HashMap<FragmentKey, usize>,
}

impl Earlier {
    /// A blob, and what it is made of.
    pub fn new(blob: StoredBlob, index: FragmentIndex) -> Self {
        let mut offset = 0u64;
        let places = index.rows.iter().enumerate().map(|(place, row)| (row.key, place)).collect();
        let fragments = index.rows.into_iter().map(|row| {
            let begins = offset;
            offset = offset.saturating_add(row.frame_bytes);
            (begins, row)
        });
        Self { blob, fragments: fragments.collect(), places }
    }

    /// The blob itself.
    pub fn blob(&self) -> &StoredBlob {
        &self.blob
    }

    /// Whether the blob has this fragment at this place.
    pub(super) fn has_at(&self, place: usize, key: &FragmentKey) -> bool {
        self.fragments.get(place).is_some_and(|(_, row)| row.key == *key)
    }

    /// A fragment, if the blob has it and its bytes are still what they were. `same_so_far`: the new tarball is the same as
    /// the blob's up to the fragment's end, so that its tar is not needed.
    pub(super) fn take(
        &self,
        key: &FragmentKey,
        same_so_far: bool,
        decompressor: &mut Decompressor<'_>,
    ) -> Option<Fragment> {
        let (offset, row) = self.fragments.get(*self.places.get(key)?)?;
        let mut frame = vec![0; usize::try_from(row.frame_bytes).ok()?];
        let read = self.blob.read_exact_at(&mut frame, *offset);
        if read.is_err() || *blake3::hash(&frame).as_bytes() != row.hash {
            tracing::warn!("a fragment of an earlier blob cannot be read or has changed; it is made anew");
            return None;
        }
        let tar = if same_so_far {
            Tar::Known(row.digests.clone())
        } else {
            let tar_bytes = usize::try_from(row.tar_bytes).ok()?;
            let tar = decompressor.decompress(&frame, tar_bytes).ok().filter(|tar| tar.len() == tar_bytes)?;
            Tar::Bytes(vec![tar])
        };
        Some(Fragment { tar, tar_bytes: row.tar_bytes, frame, frame_hash: row.hash, earlier: Some(*offset) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn earlier(parts: &[&[u8]]) -> (FragmentIndex, Vec<u8>) {
        let (mut index, mut blob) = (FragmentIndex::default(), Vec::new());
        let mut digests = TarDigests::default();
        for part in parts {
            let frame = zstd::bulk::compress(part, 3).unwrap();
            digests.update(&[part.to_vec()]);
            index.rows.push(IndexRow {
                key: *blake3::hash(part).as_bytes(),
                hash: *blake3::hash(&frame).as_bytes(),
                frame_bytes: frame.len() as u64,
                tar_bytes: part.len() as u64,
                digests: digests.clone(),
            });
            blob.extend_from_slice(&frame);
        }
        (index, blob)
    }

    /// The tar of a part, and whether it was known to begin like the earlier one.
    fn take(earlier: &Earlier, part: &[u8], same_so_far: bool) -> Option<Tar> {
        let mut decompressor = Decompressor::new().unwrap();
        earlier.take(blake3::hash(part).as_bytes(), same_so_far, &mut decompressor).map(|fragment| fragment.tar)
    }

    fn stored(bytes: &[u8]) -> StoredBlob {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        StoredBlob::whole(file).unwrap()
    }

    #[test]
    fn a_fragment_is_taken_from_where_it_is_and_not_when_a_bit_of_it_has_changed() {
        let parts: [&[u8]; 3] = [b"one", b"the second", b"three"];
        let (index, mut blob) = earlier(&parts);
        let whole = Earlier::new(stored(&blob), index.clone());
        for part in parts {
            assert!(matches!(take(&whole, part, false), Some(Tar::Bytes(tar)) if tar == [part.to_vec()]));
        }
        assert!(take(&whole, b"four", false).is_none());

        let middle = blob.len() / 2;
        blob[middle] ^= 1;
        let changed = Earlier::new(stored(&blob), index.clone());
        let cut = Earlier::new(stored(&blob[..blob.len() - 1]), index);
        for same_so_far in [false, true] {
            assert!(take(&changed, b"one", same_so_far).is_some());
            assert!(take(&changed, b"the second", same_so_far).is_none());
            assert!(take(&cut, b"three", same_so_far).is_none());
        }
    }

    #[test]
    fn the_digests_of_what_begins_alike_are_known() {
        let parts: [&[u8]; 3] = [b"one", b"the second", b"three"];
        let (index, blob) = earlier(&parts);
        let read = FragmentIndex::parse(&BlobDigest::of(&blob), &index.to_bytes(&BlobDigest::of(&blob))).unwrap();
        let earlier = Earlier::new(stored(&blob), read);
        assert!(earlier.has_at(1, blake3::hash(b"the second").as_bytes()));
        assert!(!earlier.has_at(1, blake3::hash(b"three").as_bytes()));
        assert!(!earlier.has_at(3, blake3::hash(b"three").as_bytes()));
        let Some(Tar::Known(mut digests)) = take(&earlier, b"the second", true) else { panic!("it is there") };
        digests.update(&[b"another end".to_vec()]);
        let mut anew = TarDigests::default();
        anew.update(&[b"onethe secondanother end".to_vec()]);
        assert_eq!(digests.finish(), anew.finish());
    }

    #[test]
    fn an_index_that_is_not_the_blob_s_is_not_believed() {
        let (index, blob) = earlier(&[b"one", b"two"]);
        let digest = BlobDigest::of(&blob);
        let bytes = index.to_bytes(&digest);
        assert_eq!(FragmentIndex::parse(&digest, &bytes), Some(index));
        assert!(FragmentIndex::parse(&BlobDigest::of(b"another"), &bytes).is_none());
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(FragmentIndex::parse(&digest, &changed).is_none(), "bit of byte {at}");
            assert!(FragmentIndex::parse(&digest, &bytes[..at]).is_none(), "cut to {at}");
        }
    }
}

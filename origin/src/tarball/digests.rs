//! Both digests of a tar, as states that can be kept and gone on from.
//!
//! A tarball that begins like an earlier one has its digests' states where that beginning ends, so nobody needs the bytes
//! before. SHA-256 is a chain, and its state is small. BLAKE3 is a tree over chunks of 1024 bytes; a state of it is the
//! chaining values of the complete subtrees so far, at most one for each bit of the number of chunks, and the bytes after
//! the last complete chunk (BLAKE3 paper, section 5.1.2 and the crate's `hazmat`).

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use sha2::digest::common::hazmat::{SerializableState, SerializedState};
use sha2::{Digest, Sha256};
use weir_shared::digest::{self, TarballDigest};

/// The digests of the bytes so far.
#[derive(Debug, Clone, Default)]
pub(super) struct TarDigests {
    /// Bytes so far.
    size: u64,
    sha256: Sha256,
    blake3: TreeHasher,
}

impl PartialEq for TarDigests {
    fn eq(&self, other: &Self) -> bool {
        let kept = |digests: &Self| {
            let mut kept = Vec::new();
            digests.write_to(&mut kept);
            kept
        };
        kept(self) == kept(other)
    }
}

impl Eq for TarDigests {}

impl TarDigests {
    /// Bytes so far.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Goes on with the bytes of these parts, one after the other.
    pub(super) fn update(&mut self, parts: &[Vec<u8>]) {
        for part in parts {
            self.size += part.len() as u64;
            self.sha256.update(part);
        }
        self.blake3.update(parts);
    }

    /// BLAKE3 and SHA-256.
    pub(super) fn finish(self) -> (TarballDigest, digest::Sha256) {
        (self.blake3.finish().into(), digest::Sha256::from_bytes(self.sha256.finalize().into()))
    }

    /// As it is kept: 1 to 2 KiB.
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&self.sha256.serialize());
        for value in &self.blake3.subtrees {
            out.extend_from_slice(value);
        }
        out.extend_from_slice(&self.blake3.rest);
    }

    /// Takes what [`Self::write_to`] wrote off the front of `bytes`; the size says how long it is.
    pub(super) fn take_from(bytes: &mut &[u8]) -> Option<Self> {
        let mut take = |length: usize| -> Option<&[u8]> {
            let taken;
            (taken, *bytes) = bytes.split_at_checked(length)?;
            Some(taken)
        };
        let size = u64::from_le_bytes(take(8)?.try_into().ok()?);
        let sha256: &SerializedState<Sha256> = take(size_of::<SerializedState<Sha256>>())?.try_into().ok()?;
        let sha256 = Sha256::deserialize(sha256).ok()?;
        let chunks = size.saturating_sub(1) / CHUNK_BYTES;
        let subtrees = (0..chunks.count_ones()).map(|_| take(32)?.try_into().ok()).collect::<Option<_>>()?;
        let rest = take((size - chunks * CHUNK_BYTES) as usize)?.to_vec();
        Some(Self { size, sha256, blake3: TreeHasher { chunks, subtrees, rest } })
    }
}

const CHUNK_BYTES: u64 = blake3::CHUNK_LEN as u64;

/// BLAKE3 whose state can be kept.
#[derive(Debug, Clone, Default)]
struct TreeHasher {
    /// Chunks that are in `subtrees`.
    chunks: u64,
    /// The chaining values of complete subtrees, the largest first: one for each bit that is set in `chunks`.
    subtrees: Vec<ChainingValue>,
    /// The bytes after them: none at the beginning, and from then on up to a whole chunk, because only the end of the input
    /// tells whether a chunk is the root.
    rest: Vec<u8>,
}

impl TreeHasher {
    fn update(&mut self, parts: &[Vec<u8>]) {
        let rest = std::mem::take(&mut self.rest);
        let mut input = Input { first: &rest, others: parts };
        let bytes: u64 = rest.len() as u64 + parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let mut complete = bytes.saturating_sub(1) / CHUNK_BYTES;
        while complete > 0 {
            // The largest subtree that may begin here and that there is input for.
            let chunks = (1u64 << complete.ilog2()).min(match self.chunks {
                0 => u64::MAX,
                before => 1 << before.trailing_zeros(),
            });
            self.push(input.subtree(self.chunks * CHUNK_BYTES, chunks * CHUNK_BYTES), chunks);
            complete -= chunks;
        }
        self.rest = input.rest();
    }

    fn push(&mut self, subtree: ChainingValue, chunks: u64) {
        let mut subtree = subtree;
        self.chunks += chunks;
        // More input follows, so what is complete is not the root.
        while self.subtrees.len() >= self.chunks.count_ones() as usize {
            let Some(left) = self.subtrees.pop() else { break };
            subtree = merge_subtrees_non_root(&left, &subtree, Mode::Hash);
        }
        self.subtrees.push(subtree);
    }

    fn finish(mut self) -> blake3::Hash {
        let Some(mut left) = self.subtrees.pop() else { return blake3::hash(&self.rest) };
        let mut last = blake3::Hasher::new();
        last.set_input_offset(self.chunks * CHUNK_BYTES).update(&self.rest);
        let mut right = last.finalize_non_root();
        while let Some(above) = self.subtrees.pop() {
            right = merge_subtrees_non_root(&left, &right, Mode::Hash);
            left = above;
        }
        merge_subtrees_root(&left, &right, Mode::Hash)
    }
}

/// Bytes in parts, from the front.
struct Input<'a> {
    first: &'a [u8],
    others: &'a [Vec<u8>],
}

impl Input<'_> {
    /// The chaining value of the next `bytes`, of which there are as many, at an offset in the whole.
    fn subtree(&mut self, offset: u64, mut bytes: u64) -> ChainingValue {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(offset);
        while bytes > 0 {
            let length = self.first.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
            let (part, first) = self.first.split_at(length);
            hasher.update(part);
            bytes -= length as u64;
            self.first = first;
            if self.first.is_empty()
                && let Some((next, others)) = self.others.split_first()
            {
                (self.first, self.others) = (next, others);
            }
        }
        hasher.finalize_non_root()
    }

    fn rest(self) -> Vec<u8> {
        let mut rest = self.first.to_vec();
        self.others.iter().for_each(|part| rest.extend_from_slice(part));
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(size: usize) -> Vec<u8> {
        (0..size).map(|at| (at * 7 % 251) as u8).collect()
    }

    /// The digests of parts, each in a state that was kept and read again after the one before.
    fn in_parts(parts: &[Vec<u8>]) -> (TarballDigest, digest::Sha256) {
        let mut kept = Vec::new();
        TarDigests::default().write_to(&mut kept);
        for part in parts {
            let mut digests = TarDigests::take_from(&mut kept.as_slice()).unwrap();
            digests.update(&[part[..part.len() / 3].to_vec(), Vec::new(), part[part.len() / 3..].to_vec()]);
            kept.clear();
            digests.write_to(&mut kept);
            kept.push(7);
        }
        let mut read = kept.as_slice();
        let digests = TarDigests::take_from(&mut read).unwrap();
        assert_eq!(digests.size(), parts.iter().map(|part| part.len() as u64).sum::<u64>());
        assert_eq!(read.len(), usize::from(!parts.is_empty()), "what follows is left");
        digests.finish()
    }

    fn whole(bytes: &[u8]) -> (TarballDigest, digest::Sha256) {
        let sha256: [u8; 32] = Sha256::digest(bytes).into();
        (blake3::hash(bytes).into(), digest::Sha256::from_bytes(sha256))
    }

    #[test]
    fn the_digests_are_right_on_both_sides_of_every_boundary_of_a_chunk_and_of_a_subtree() {
        for size in (0..=8).flat_map(|power| [(1024 << power) - 1, 1024 << power, (1024 << power) + 1]).chain([0, 1]) {
            let all = bytes(size);
            assert_eq!(in_parts(std::slice::from_ref(&all)), whole(&all), "{size}");
            for at in [1, 512, 1024, 1025, 1536, 4096, size / 2, size.saturating_sub(1)] {
                let (first, second) = all.split_at(at.min(size));
                assert_eq!(in_parts(&[first.to_vec(), second.to_vec()]), whole(&all), "{size} at {at}");
            }
        }
        assert_eq!(in_parts(&[]), whole(&[]));
    }

    #[test]
    fn a_state_that_is_cut_is_none() {
        let mut digests = TarDigests::default();
        digests.update(&[bytes(7 * 1024 + 512)]);
        let mut kept = Vec::new();
        digests.write_to(&mut kept);
        for length in 0..kept.len() {
            assert!(TarDigests::take_from(&mut &kept[..length]).is_none(), "{length}");
        }
        assert!(TarDigests::take_from(&mut &[255; 300][..]).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn parts_of_any_size_give_the_digests_of_the_whole(sizes in proptest::collection::vec(0usize..40_000, 0..12)) {
            let all = bytes(sizes.iter().sum());
            let mut rest = all.as_slice();
            let parts: Vec<Vec<u8>> = sizes.iter().map(|size| {
                let part;
                (part, rest) = rest.split_at(*size);
                part.to_vec()
            }).collect();
            prop_assert_eq!(in_parts(&parts), whole(&all));
        }
    }
}

//! Both digests of a tar, with states that can be stored and resumed.
//!
//! If two tarballs begin alike, a stored state after the common part makes the bytes before it unnecessary. The state
//! of SHA-256 is small. BLAKE3 is a tree over chunks of 1024 bytes; its state has the chaining values of the complete
//! subtrees, at most one for each bit of the number of chunks, and the bytes after the last complete chunk (BLAKE3
//! paper, section 5.1.2, and the crate's `hazmat`).

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use serde::{Deserialize, Serialize};
use sha2::digest::common::hazmat::{SerializableState, SerializedState};
use sha2::{Digest, Sha256};
use weir_protocol::digest::{self, TarballDigest};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct TarDigests {
    size: u64,
    sha256: Sha256,
    blake3: TreeHasher,
}

impl PartialEq for TarDigests {
    fn eq(&self, other: &Self) -> bool {
        Vec::from(self.clone()) == Vec::from(other.clone())
    }
}

impl Eq for TarDigests {}

impl TarDigests {
    /// Hashes these parts one after another.
    pub fn update(&mut self, parts: &[Vec<u8>]) {
        for part in parts {
            self.size += part.len() as u64;
            self.sha256.update(part);
        }
        self.blake3.update(parts);
    }

    /// Returns BLAKE3 and SHA-256.
    pub fn finish(self) -> (TarballDigest, digest::Sha256) {
        (self.blake3.finish().into(), digest::Sha256::from_bytes(self.sha256.finalize().into()))
    }
}

impl From<TarDigests> for Vec<u8> {
    /// The form in a recipe: 1 to 2 KiB.
    fn from(digests: TarDigests) -> Self {
        let mut out = digests.size.to_le_bytes().to_vec();
        out.extend_from_slice(&digests.sha256.serialize());
        out.extend(digests.blake3.subtrees.iter().flatten());
        out.extend_from_slice(&digests.blake3.rest);
        out
    }
}

impl TryFrom<Vec<u8>> for TarDigests {
    type Error = &'static str;

    fn try_from(bytes: Vec<u8>) -> Result<Self, Self::Error> {
        Self::read(&bytes).ok_or("the state of a tar's digests is cut short or wrong")
    }
}

impl TarDigests {
    /// The size determines the length of all other fields.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (size, bytes) = bytes.split_first_chunk()?;
        let size = u64::from_le_bytes(*size);
        let (sha256, bytes) = bytes.split_at_checked(size_of::<SerializedState<Sha256>>())?;
        let sha256 = Sha256::deserialize(sha256.try_into().ok()?).ok()?;
        let chunks = size.saturating_sub(1) / CHUNK_BYTES;
        let (subtrees, rest) = bytes.split_at_checked(chunks.count_ones() as usize * size_of::<ChainingValue>())?;
        let (subtrees, _) = subtrees.as_chunks();
        let is_whole = rest.len() as u64 == size - chunks * CHUNK_BYTES;
        is_whole.then(|| Self {
            size,
            sha256,
            blake3: TreeHasher { chunks, subtrees: subtrees.to_vec(), rest: rest.to_vec() },
        })
    }
}

const CHUNK_BYTES: u64 = blake3::CHUNK_LEN as u64;

/// A BLAKE3 hasher whose state can be stored.
#[derive(Debug, Clone, Default)]
struct TreeHasher {
    /// Chunks in `subtrees`.
    chunks: u64,
    /// Chaining values of complete subtrees, the largest first: one for each bit set in `chunks`.
    subtrees: Vec<ChainingValue>,
    /// Bytes after the subtrees. After the first input at least one byte stays here, because the root is hashed
    /// differently and only the end of the input shows which chunk that is.
    rest: Vec<u8>,
}

impl TreeHasher {
    fn update(&mut self, parts: &[Vec<u8>]) {
        let rest = std::mem::take(&mut self.rest);
        let mut input = Input { first: &rest, others: parts };
        let bytes: u64 = rest.len() as u64 + parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let mut complete = bytes.saturating_sub(1) / CHUNK_BYTES;
        while complete > 0 {
            // The largest subtree that may begin here and is complete in the input.
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
        // More input follows, so a complete subtree is not the root.
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

/// A queue of bytes in several parts.
struct Input<'a> {
    first: &'a [u8],
    others: &'a [Vec<u8>],
}

impl Input<'_> {
    /// The chaining value of the next `bytes`, which the input must have; `offset` is their position in the whole.
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

    /// The digests of parts, with the state stored and parsed after each.
    fn in_parts(parts: &[Vec<u8>]) -> (TarballDigest, digest::Sha256) {
        let mut stored = Vec::from(TarDigests::default());
        for part in parts {
            let mut digests = TarDigests::read(&stored).unwrap();
            digests.update(&[part[..part.len() / 3].to_vec(), Vec::new(), part[part.len() / 3..].to_vec()]);
            stored = digests.into();
        }
        let digests = TarDigests::read(&stored).unwrap();
        assert_eq!(digests.size, parts.iter().map(|part| part.len() as u64).sum::<u64>());
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
    fn a_state_of_another_length_is_refused() {
        let mut digests = TarDigests::default();
        digests.update(&[bytes(7 * 1024 + 512)]);
        let mut stored = Vec::from(digests);
        for length in 0..stored.len() {
            assert!(TarDigests::read(&stored[..length]).is_none(), "{length}");
        }
        stored.push(7);
        assert!(TarDigests::read(&stored).is_none());
        assert!(TarDigests::read(&[255; 300]).is_none());
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

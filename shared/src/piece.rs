//! Pieces: the parts of a blob that can be verified alone.
//!
//! A blob's digest is the root of BLAKE3's tree over its bytes. Cut at [`PIECE_BYTES`], each part is a subtree of that
//! tree, and the list of their values reproduces the digest. Whoever has checked the list against the digest once can
//! verify every part as it comes, from wherever it comes, in any order. A blob of up to one piece needs no list: its
//! digest is that of its bytes.

use std::ops::Range;

use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt, Mode};
use blake3::hazmat::{left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

use crate::digest::BlobDigest;

/// The length of every piece but the last, in bytes: a power of two, so that pieces are subtrees.
pub const PIECE_BYTES: u64 = 1 << 20;

/// The length of an entry of a list, in bytes.
pub const ENTRY_BYTES: usize = blake3::OUT_LEN;

/// The values of the pieces of one blob of more than [`PIECE_BYTES`]: they reproduce its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceList {
    size: u64,
    values: Vec<ChainingValue>,
}

/// A piece of a blob of more than one, as it streams by.
#[derive(Debug)]
pub struct PartialPiece {
    index: u64,
    length: u64,
    hasher: Hasher,
}

/// Why bytes are not the piece list of a blob.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PieceListError {
    /// A blob of up to one piece has no list.
    #[error("a blob of {0} bytes has no piece list: it is one piece")]
    OnePiece(u64),
    /// Too short or too long.
    #[error("the piece list of a blob of {size} bytes has {expected} bytes and not {found}")]
    Length {
        /// Bytes of the blob.
        size: u64,
        /// Bytes that its list has.
        expected: u64,
        /// Bytes that were there.
        found: usize,
    },
    /// The values are another blob's, or changed.
    #[error("the piece list does not give the blob's digest")]
    OtherBlob,
}

/// Why bytes are not the piece of a blob that they were taken for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PieceError {
    /// The blob ends before it.
    #[error("the blob has {count} pieces and no piece {index}")]
    NoSuchPiece {
        /// What was asked for, from 0.
        index: u64,
        /// How many there are.
        count: u64,
    },
    /// Too short or too long.
    #[error("piece {index} has {expected} bytes and not {found}")]
    Length {
        /// Which, from 0.
        index: u64,
        /// Bytes that it has.
        expected: u64,
        /// Bytes that were there.
        found: u64,
    },
    /// Other bytes than the list says.
    #[error("the bytes of piece {0} are not those that the blob has there")]
    OtherBytes(u64),
}

/// How many pieces a blob of this many bytes has.
pub fn count(size: u64) -> u64 {
    size.div_ceil(PIECE_BYTES)
}

/// The bytes that a piece is of a blob of this size; `None` beyond its end.
pub fn bytes_of(index: u64, size: u64) -> Option<Range<u64>> {
    let start = index.checked_mul(PIECE_BYTES).filter(|start| *start < size)?;
    Some(start..size.min(start.saturating_add(PIECE_BYTES)))
}

/// The pieces that hold these bytes; none for an empty range.
pub fn covering(bytes: &Range<u64>) -> Range<u64> {
    if bytes.is_empty() { 0..0 } else { bytes.start / PIECE_BYTES..count(bytes.end) }
}

impl PieceList {
    /// Reads the list of a blob of `size` bytes: 32 bytes for each piece, in order, and nothing else.
    pub fn parse(blob: &BlobDigest, size: u64, bytes: &[u8]) -> Result<Self, PieceListError> {
        if size <= PIECE_BYTES {
            return Err(PieceListError::OnePiece(size));
        }
        let expected = Self::length(size);
        let (values, rest) = bytes.as_chunks::<ENTRY_BYTES>();
        if bytes.len() as u64 != expected || !rest.is_empty() {
            return Err(PieceListError::Length { size, expected, found: bytes.len() });
        }
        let list = Self { size, values: values.to_vec() };
        if list.digest() == *blob { Ok(list) } else { Err(PieceListError::OtherBlob) }
    }

    /// The bytes that the list of a blob of `size` bytes has.
    pub fn length(size: u64) -> u64 {
        count(size) * ENTRY_BYTES as u64
    }

    /// The list as it is sent and stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.values.concat()
    }

    /// Bytes of the blob.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many pieces the blob has.
    pub fn count(&self) -> u64 {
        self.values.len() as u64
    }

    /// The bytes of the blob that a piece is; `None` beyond its end.
    pub fn bytes_of(&self, index: u64) -> Option<Range<u64>> {
        bytes_of(index, self.size)
    }

    /// Whether these bytes are that piece of the blob: all of them, and no more.
    pub fn verify(&self, index: u64, bytes: &[u8]) -> Result<(), PieceError> {
        let mut piece = self.begin(index)?;
        piece.update(bytes);
        self.end(&piece)
    }

    /// Begins to verify a piece that comes bit by bit.
    pub fn begin(&self, index: u64) -> Result<PartialPiece, PieceError> {
        let part = self.bytes_of(index).ok_or(PieceError::NoSuchPiece { index, count: self.count() })?;
        let mut hasher = Hasher::new();
        hasher.set_input_offset(part.start);
        Ok(PartialPiece { index, length: 0, hasher })
    }

    /// Whether what came is that piece of the blob: all of it, and no more.
    pub fn end(&self, piece: &PartialPiece) -> Result<(), PieceError> {
        let PartialPiece { index, length: found, hasher } = piece;
        let (index, found) = (*index, *found);
        let part = self.bytes_of(index).ok_or(PieceError::NoSuchPiece { index, count: self.count() })?;
        let expected = part.end - part.start;
        if found != expected {
            return Err(PieceError::Length { index, expected, found });
        }
        // `bytes_of` says that the piece is there, and a list has a value for each that is.
        let value = usize::try_from(index).ok().and_then(|index| self.values.get(index));
        if value == Some(&hasher.finalize_non_root()) { Ok(()) } else { Err(PieceError::OtherBytes(index)) }
    }

    /// The blob's digest.
    fn digest(&self) -> BlobDigest {
        let (left, right) = children(&self.values, self.size);
        merge_subtrees_root(&left, &right, Mode::Hash).into()
    }
}

/// The values of the two halves of a subtree of more than one piece that has `size` bytes.
fn children(values: &[ChainingValue], size: u64) -> (ChainingValue, ChainingValue) {
    let left = left_subtree_len(size);
    let pieces = usize::try_from(left / PIECE_BYTES).expect("the values are in memory");
    (value(&values[..pieces], left), value(&values[pieces..], size - left))
}

/// The value of a subtree. It calls itself once for each level, of which there are at most 44.
fn value(values: &[ChainingValue], size: u64) -> ChainingValue {
    if let [value] = values {
        return *value;
    }
    let (left, right) = children(values, size);
    merge_subtrees_non_root(&left, &right, Mode::Hash)
}

impl PartialPiece {
    /// Takes what came next of it.
    pub fn update(&mut self, bytes: &[u8]) {
        // More than a piece has no place at its offset of the tree: it is counted, and refused at the end.
        let room = PIECE_BYTES.saturating_sub(self.length);
        let within = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        self.hasher.update(&bytes[..within]);
        self.length = self.length.saturating_add(bytes.len() as u64);
    }
}

/// Hashes a blob as it streams by, once, for both its digest and its list.
#[derive(Debug, Default)]
pub struct PieceHasher {
    /// Of the pieces before the one that is being hashed.
    values: Vec<ChainingValue>,
    piece: Hasher,
}

impl PieceHasher {
    /// A hasher that has read nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The bytes that were read.
    pub fn count(&self) -> u64 {
        self.values.len() as u64 * PIECE_BYTES + self.piece.count()
    }

    /// Reads on.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // A full piece is ended by the first byte after it only: a blob of one piece is hashed as a whole.
            if self.piece.count() == PIECE_BYTES {
                self.values.push(self.piece.finalize_non_root());
                // Not `reset`: that leaves the offset behind, and `count` stumbles over it.
                self.piece = Hasher::new();
                self.piece.set_input_offset(self.values.len() as u64 * PIECE_BYTES);
            }
            let room = PIECE_BYTES - self.piece.count();
            let (now, later) = bytes.split_at(usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len()));
            self.piece.update(now);
            bytes = later;
        }
    }

    /// The digest of what was read, and its list if it is more than one piece.
    pub fn finish(mut self) -> (BlobDigest, Option<PieceList>) {
        if self.values.is_empty() {
            return (self.piece.finalize().into(), None);
        }
        let size = self.count();
        self.values.push(self.piece.finalize_non_root());
        let list = PieceList { size, values: self.values };
        (list.digest(), Some(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blob(size: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        Hasher::new().update(&size.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn hashed(bytes: &[u8], at_a_time: usize) -> (BlobDigest, Option<PieceList>) {
        let mut hasher = PieceHasher::new();
        bytes.chunks(at_a_time).for_each(|part| hasher.update(part));
        assert_eq!(hasher.count(), bytes.len() as u64);
        hasher.finish()
    }

    fn list(bytes: &[u8]) -> PieceList {
        hashed(bytes, 300_000).1.unwrap()
    }

    fn piece<'b>(bytes: &'b [u8], list: &PieceList, index: u64) -> &'b [u8] {
        let part = list.bytes_of(index).unwrap();
        &bytes[usize::try_from(part.start).unwrap()..usize::try_from(part.end).unwrap()]
    }

    #[test]
    fn the_digest_is_blake3s_on_both_sides_of_every_boundary() {
        for size in (0..=7).flat_map(|k| [k << 20, (k << 20) + 1, ((k + 1) << 20) - 1]) {
            let bytes = blob(size);
            for at_a_time in [PIECE_BYTES as usize, 300_001, usize::MAX] {
                let (digest, list) = hashed(&bytes, at_a_time);
                assert_eq!(digest, BlobDigest::of(&bytes), "{size}");
                assert_eq!(list.is_some(), size > PIECE_BYTES, "{size}");
                let Some(list) = list else { continue };
                assert_eq!((list.size(), list.count()), (size, size.div_ceil(1 << 20)));
                assert_eq!(PieceList::length(size), list.to_bytes().len() as u64);
                assert_eq!(PieceList::parse(&digest, size, &list.to_bytes()), Ok(list.clone()), "{size}");
                for index in 0..list.count() {
                    assert_eq!(list.verify(index, piece(&bytes, &list, index)), Ok(()), "{index} of {size}");
                }
            }
        }
    }

    #[test]
    fn up_to_one_piece_there_is_no_list() {
        for size in [0, 1, PIECE_BYTES - 1, PIECE_BYTES] {
            let digest = BlobDigest::of(&blob(size));
            for bytes in [&[][..], digest.as_bytes()] {
                assert_eq!(PieceList::parse(&digest, size, bytes), Err(PieceListError::OnePiece(size)));
            }
        }
    }

    #[test]
    fn a_list_of_another_length_is_refused_in_plain_words() {
        let bytes = blob(2 * PIECE_BYTES + 1);
        let (digest, good) = (BlobDigest::of(&bytes), list(&bytes).to_bytes());
        for wrong in [&good[..64], &good[..95], &[&good[..], &[0]].concat(), &[&good[..], &good[..32]].concat(), &[]] {
            let error = PieceList::parse(&digest, bytes.len() as u64, wrong).unwrap_err();
            let said = format!("the piece list of a blob of 2097153 bytes has 96 bytes and not {}", wrong.len());
            assert_eq!(error.to_string(), said);
        }
        // The right list under a wrong size: another count, or the same.
        for size in [2 * PIECE_BYTES, 3 * PIECE_BYTES + 1] {
            assert!(matches!(PieceList::parse(&digest, size, &good), Err(PieceListError::Length { .. })));
        }
        let absurd = PieceList::parse(&digest, u64::MAX, &good);
        assert!(matches!(absurd, Err(PieceListError::Length { .. })));
    }

    #[test]
    fn a_list_of_one_blob_is_never_taken_for_anothers() {
        let (one, other) = (blob(3 * PIECE_BYTES), blob(3 * PIECE_BYTES - 1));
        let lists = [list(&one).to_bytes(), list(&other).to_bytes()];
        for (bytes, wrong) in [(&one, &lists[1]), (&other, &lists[0])] {
            let refused = PieceList::parse(&BlobDigest::of(bytes), bytes.len() as u64, wrong);
            assert_eq!(refused, Err(PieceListError::OtherBlob));
        }
        let mut swapped = lists[0].clone();
        swapped.rotate_left(32);
        let refused = PieceList::parse(&BlobDigest::of(&one), one.len() as u64, &swapped);
        assert_eq!(refused, Err(PieceListError::OtherBlob));
    }

    #[test]
    fn a_piece_has_exactly_its_length_and_its_place() {
        let bytes = blob(2 * PIECE_BYTES + 7);
        let list = list(&bytes);
        let last = piece(&bytes, &list, 2);
        assert_eq!(last.len(), 7);
        let length = |found| Err(PieceError::Length { index: 2, expected: 7, found });
        assert_eq!(list.verify(2, &last[..6]), length(6));
        assert_eq!(list.verify(2, &[last, &[0]].concat()), length(8));
        assert_eq!(list.verify(2, &[]), length(0));
        assert_eq!(list.verify(0, piece(&bytes, &list, 1)), Err(PieceError::OtherBytes(0)));
        assert_eq!(list.verify(1, piece(&bytes, &list, 0)), Err(PieceError::OtherBytes(1)));
        for index in [3, u64::MAX / PIECE_BYTES + 1, u64::MAX] {
            assert_eq!(list.verify(index, last), Err(PieceError::NoSuchPiece { index, count: 3 }));
        }
        // However it comes.
        for at_a_time in [1, 5, 7] {
            let mut partial = list.begin(2).unwrap();
            last.chunks(at_a_time).for_each(|part| partial.update(part));
            assert_eq!(list.end(&partial), Ok(()));
            partial.update(&vec![0; 3 << 20]);
            assert_eq!(list.end(&partial), length(7 + (3 << 20)), "and a piece at its offset is no longer");
        }
        // The same bytes at another place are another piece.
        let same = vec![7; 2 << 20];
        let list = hashed(&same, usize::MAX).1.unwrap();
        assert_ne!(list.values[0], list.values[1]);
    }

    #[test]
    fn ranges_and_the_pieces_that_cover_them() {
        assert_eq!(bytes_of(0, 0), None);
        assert_eq!(bytes_of(0, 5), Some(0..5));
        assert_eq!(bytes_of(1, PIECE_BYTES), None);
        assert_eq!(bytes_of(1, PIECE_BYTES + 1), Some(PIECE_BYTES..PIECE_BYTES + 1));
        assert_eq!(covering(&(5..5)), 0..0);
        assert_eq!(covering(&(0..1)), 0..1);
        assert_eq!(covering(&(0..PIECE_BYTES)), 0..1);
        assert_eq!(covering(&(PIECE_BYTES - 1..PIECE_BYTES + 1)), 0..2);
        assert_eq!(covering(&(PIECE_BYTES..2 * PIECE_BYTES)), 1..2);
    }

    /// The digest by another way: subtrees are merged from the left as soon as both halves are whole.
    fn merged_from_the_left(values: &[ChainingValue]) -> BlobDigest {
        let (last, whole) = values.split_last().unwrap();
        let mut stack: Vec<ChainingValue> = Vec::new();
        for (index, value) in whole.iter().enumerate() {
            let mut value = *value;
            for _ in 0..(index + 1).trailing_zeros() {
                value = merge_subtrees_non_root(&stack.pop().unwrap(), &value, Mode::Hash);
            }
            stack.push(value);
        }
        let mut value = *last;
        while stack.len() > 1 {
            value = merge_subtrees_non_root(&stack.pop().unwrap(), &value, Mode::Hash);
        }
        merge_subtrees_root(&stack[0], &value, Mode::Hash).into()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn many_pieces_give_one_digest_either_way(pieces in 2_u64..5_000, last in 1..=PIECE_BYTES, seed in any::<u64>()) {
            let value = |index: u64| *blake3::hash(&[seed.to_le_bytes(), index.to_le_bytes()].concat()).as_bytes();
            let values: Vec<ChainingValue> = (0..pieces).map(value).collect();
            let size = (pieces - 1) * PIECE_BYTES + last;
            let digest = merged_from_the_left(&values);
            let list = PieceList::parse(&digest, size, &values.concat()).unwrap();
            prop_assert_eq!(list.count(), pieces);
            let mut changed = list.to_bytes();
            let at = usize::try_from(seed % changed.len() as u64).unwrap();
            changed[at] ^= 1 << (seed % 8);
            prop_assert_eq!(PieceList::parse(&digest, size, &changed), Err(PieceListError::OtherBlob));
        }

        #[test]
        fn a_flipped_bit_is_found_in_its_piece_and_only_there(size in PIECE_BYTES + 1..4 * PIECE_BYTES, at in any::<u64>(), bit in 0_u32..8) {
            let mut bytes = blob(size);
            let list = list(&bytes);
            let at = at % size;
            bytes[usize::try_from(at).unwrap()] ^= 1_u8 << bit;
            for index in 0..list.count() {
                let expected = if index == at / PIECE_BYTES { Err(PieceError::OtherBytes(index)) } else { Ok(()) };
                prop_assert_eq!(list.verify(index, piece(&bytes, &list, index)), expected);
            }
        }

        #[test]
        fn pieces_cover_their_range_and_no_less_would(start in 0_u64..1 << 40, length in 1_u64..1 << 30) {
            let range = start..start + length;
            let size = range.end;
            let pieces = covering(&range);
            let (first, last) = (bytes_of(pieces.start, size).unwrap(), bytes_of(pieces.end - 1, size).unwrap());
            prop_assert!(first.contains(&range.start) && last.contains(&(range.end - 1)));
        }
    }
}

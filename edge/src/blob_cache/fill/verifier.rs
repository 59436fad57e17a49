//! What makes bytes of an origin a blob's: piece by piece with its piece list, or all at once.

use weir_shared::digest::BlobDigest;
use weir_shared::piece::{PIECE_BYTES, PartialPiece, PieceHasher, PieceList, bytes_of, count};

/// Verifies the pieces of one blob, which come in order. Bytes are hashed as they come, while they are in the processor's
/// cache: the last of them then decides almost at once, and no other thread is needed.
#[derive(Debug)]
pub(super) enum Verifier {
    /// Each piece alone.
    Pieces {
        /// The blob's.
        list: PieceList,
        /// What has come of a piece.
        piece: Option<Box<PartialPiece>>,
    },
    /// All of them together, once the last one is there: the blob is one piece, or its origin has no list of it.
    Whole {
        /// The blob.
        digest: BlobDigest,
        /// Its bytes.
        size: u64,
        /// What has come of it.
        hasher: Box<PieceHasher>,
    },
}

/// A piece, or the blob that it ended, is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wrong;

impl Verifier {
    /// `list`: the blob's, when there is one.
    pub(super) fn new(digest: BlobDigest, size: u64, list: Option<PieceList>) -> Self {
        match list {
            Some(list) => Self::Pieces { list, piece: None },
            None => Self::Whole { digest, size, hasher: Box::default() },
        }
    }

    /// Whether each piece is verified by itself.
    pub(super) fn is_by_piece(&self) -> bool {
        matches!(self, Self::Pieces { .. })
    }

    /// Takes what came next of a piece.
    pub(super) fn update(&mut self, index: u64, bytes: &[u8]) {
        match self {
            Self::Pieces { list, piece } => {
                // There is no piece beyond the end: that is found out at its end.
                if piece.is_none() {
                    *piece = list.begin(index).ok().map(Box::new);
                }
                if let Some(piece) = piece {
                    piece.update(bytes);
                }
            }
            Self::Whole { hasher, .. } => hasher.update(bytes),
        }
    }

    /// All of a piece has come. How many bytes from the blob's start are verified with it, given that all pieces before
    /// it were.
    ///
    /// # Errors
    /// [`Wrong`]: it, or one before it, is not the blob's. [`Verifier::begin_again`] says from where to ask anew.
    pub(super) fn end(&mut self, index: u64) -> Result<u64, Wrong> {
        match self {
            Self::Pieces { list, piece } => {
                let piece = piece.take().ok_or(Wrong)?;
                list.end(&piece).map_err(|_| Wrong)?;
                Ok(list.bytes_of(index).ok_or(Wrong)?.end)
            }
            Self::Whole { digest, size, hasher } => {
                if hasher.count() < *size {
                    return Ok(0);
                }
                let (digest, size) = (*digest, *size);
                let (found, list) = std::mem::take(&mut **hasher).finish();
                if found != digest {
                    return Err(Wrong);
                }
                // Whoever needs the bytes once more can have them piece by piece now.
                *self = Self::new(digest, size, list);
                Ok(size)
            }
        }
    }

    /// After a piece was wrong: the first one that has to come again.
    pub(super) fn begin_again(&mut self, wrong: u64) -> u64 {
        match self {
            Self::Pieces { piece, .. } => {
                *piece = None;
                wrong
            }
            Self::Whole { hasher, .. } => {
                **hasher = PieceHasher::new();
                0
            }
        }
    }
}

/// The length of a piece of a blob of `size` bytes; none beyond its end.
pub(super) fn length_of(index: u64, size: u64) -> usize {
    let part = bytes_of(index, size).unwrap_or(0..0);
    usize::try_from(part.end - part.start).expect("a piece fits in memory")
}

/// Whether all pieces before `index` are the whole blob.
pub(super) fn is_end(index: u64, size: u64) -> bool {
    index >= count(size)
}

/// Whether a blob of this size is one piece, which is held in memory until it is verified.
pub(super) fn is_one_piece(size: u64) -> bool {
    size <= PIECE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blob(size: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        blake3::Hasher::new().update(&size.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn list(bytes: &[u8]) -> Option<PieceList> {
        let mut hasher = PieceHasher::new();
        hasher.update(bytes);
        hasher.finish().1
    }

    /// Takes a piece, in parts as they come.
    fn take(verifier: &mut Verifier, index: u64, piece: &[u8]) -> Result<u64, Wrong> {
        piece.chunks(100_000).for_each(|part| verifier.update(index, part));
        verifier.end(index)
    }

    /// How far the blob is verified after each of its pieces.
    fn taken(bytes: &[u8], list: Option<PieceList>) -> Vec<Result<u64, Wrong>> {
        let mut verifier = Verifier::new(BlobDigest::of(bytes), bytes.len() as u64, list);
        let pieces = bytes.chunks(PIECE_BYTES as usize);
        pieces.zip(0..).map(|(piece, index)| take(&mut verifier, index, piece)).collect()
    }

    #[test]
    fn what_is_verified_after_each_piece_at_every_boundary() {
        let piece = PIECE_BYTES;
        for size in [1, piece - 1, piece, piece + 1, 2 * piece - 1, 2 * piece, 2 * piece + 1, 3 * piece] {
            let bytes = blob(size);
            let ends: Vec<u64> = (1..=count(size)).map(|index| (index * piece).min(size)).collect();
            let lengths: Vec<u64> = (0..count(size)).map(|index| length_of(index, size) as u64).collect();
            assert_eq!(lengths.iter().sum::<u64>(), size);
            assert!(is_end(count(size), size) && !is_end(count(size) - 1, size));
            let by_piece: Vec<_> = ends.iter().map(|end| Ok(*end)).collect();
            assert_eq!(taken(&bytes, list(&bytes)), by_piece, "{size}");
            let at_once: Vec<_> = ends.iter().map(|end| Ok(if *end == size { size } else { 0 })).collect();
            assert_eq!(taken(&bytes, None), at_once, "{size}");
            assert_eq!(is_one_piece(size), ends.len() == 1, "{size}");
        }
        assert_eq!(length_of(1, piece), 0);
    }

    #[test]
    fn whoever_has_read_all_of_it_has_its_list() {
        let bytes = blob(2 * PIECE_BYTES + 5);
        let mut verifier = Verifier::new(BlobDigest::of(&bytes), bytes.len() as u64, None);
        for (piece, index) in bytes.chunks(PIECE_BYTES as usize).zip(0..) {
            assert!(!verifier.is_by_piece());
            take(&mut verifier, index, piece).unwrap();
        }
        assert!(verifier.is_by_piece());
        assert_eq!(take(&mut verifier, 1, &bytes[1 << 20..2 << 20]), Ok(2 << 20));
    }

    #[test]
    fn a_piece_that_is_begun_again_is_as_good_as_new() {
        let bytes = blob(2 * PIECE_BYTES);
        for list in [list(&bytes), None] {
            let mut verifier = Verifier::new(BlobDigest::of(&bytes), bytes.len() as u64, list);
            verifier.update(0, &bytes[..1000]);
            assert_eq!(verifier.begin_again(0), 0);
            let (first, second) = bytes.split_at(1 << 20);
            take(&mut verifier, 0, first).unwrap();
            assert_eq!(take(&mut verifier, 1, second), Ok(2 << 20));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_wrong_bit_is_never_within_what_is_verified(size in 1..3 * PIECE_BYTES, at in any::<u64>(), by_piece in any::<bool>()) {
            let (mut bytes, good) = (blob(size), blob(size));
            let at = at % size;
            bytes[usize::try_from(at).unwrap()] ^= 1;
            let list = list(&good).filter(|_| by_piece);
            let mut verifier = Verifier::new(BlobDigest::of(&good), size, list);
            let mut index = 0;
            while !is_end(index, size) {
                let part = bytes_of(index, size).unwrap();
                let part = usize::try_from(part.start).unwrap()..usize::try_from(part.end).unwrap();
                match take(&mut verifier, index, &bytes[part]) {
                    Ok(verified) => prop_assert!(verified <= at),
                    Err(Wrong) => break,
                }
                index += 1;
            }
            // Asked for again from there, it is whole.
            prop_assert!(!is_end(index, size), "it was found");
            index = verifier.begin_again(index);
            let mut verified = 0;
            while !is_end(index, size) {
                let part = bytes_of(index, size).unwrap();
                let part = usize::try_from(part.start).unwrap()..usize::try_from(part.end).unwrap();
                verified = take(&mut verifier, index, &good[part]).unwrap();
                index += 1;
            }
            prop_assert_eq!(verified, size);
        }
    }
}

//! Composes a tar of frames: those that the release on disk has, and those that an edge sends.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use bytes::{Buf, Bytes};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::manifest::{Frame, Manifest};

use super::FetchError;
use super::decode::copy;

/// The most bytes that are requested as one range, unless a single frame is larger.
const MAX_RANGE_BYTES: u64 = 2 << 20;

/// The most ranges of one tarball: a download costs an edge less.
const MAX_RANGES: usize = 1024;

/// Where a frame of the new tar comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// From this offset of the old tar.
    Reused {
        offset: u64,
        tar_size: u64,
    },
    Fetched(Frame),
}

/// Neighbouring frames that are requested together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Their bytes in the encoded body.
    pub(crate) bytes: Range<u64>,
    pub(crate) frames: Vec<Frame>,
}

/// How a tar is composed.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    steps: Vec<Step>,
    pub(crate) missing: Vec<Missing>,
    /// The number of frames that are not fetched.
    pub(crate) reused: u64,
    /// The bytes of the missing ones.
    pub(crate) missing_bytes: u64,
}

impl Plan {
    /// `None`: more than three quarters of the bytes are missing, or the ranges are too many.
    pub(crate) fn new(old: &Manifest, new: &Manifest) -> Option<Self> {
        let offsets: Vec<u64> = old.frames().iter().scan(0, |at, frame| Some(advance(at, frame.tar_size))).collect();
        let (mut steps, mut missing) = (Vec::new(), Vec::<Missing>::new());
        let (mut position, mut missing_bytes, mut reused) = (0, 0, 0);
        for (frame, found) in new.frames().iter().zip(in_order(&occurrences(old, new))) {
            let start = advance(&mut position, frame.size);
            if let Some(index) = found {
                reused += 1;
                steps.push(Step::Reused { offset: offsets[index], tar_size: frame.tar_size });
                continue;
            }
            missing_bytes += frame.size;
            steps.push(Step::Fetched(*frame));
            match missing.last_mut() {
                Some(last) if last.bytes.end == start && position - last.bytes.start <= MAX_RANGE_BYTES => {
                    last.bytes.end = position;
                    last.frames.push(*frame);
                }
                _ => missing.push(Missing { bytes: start..position, frames: vec![*frame] }),
            }
        }
        let is_worth_it = missing_bytes * 4 <= new.size() * 3 && missing.len() <= MAX_RANGES;
        is_worth_it.then_some(Self { steps, missing, reused, missing_bytes })
    }
}

/// Adds to a position; returns the one before.
fn advance(position: &mut u64, by: u64) -> u64 {
    let before = *position;
    *position += by;
    before
}

/// For each new frame the index of the same frame in the old tar: of the second of equal ones that of the second.
fn occurrences(old: &Manifest, new: &Manifest) -> Vec<Option<usize>> {
    let mut positions: HashMap<ObjectDigest, VecDeque<usize>> = HashMap::new();
    old.frames()
        .iter()
        .enumerate()
        .for_each(|(index, frame)| positions.entry(frame.digest).or_default().push_back(index));
    let find = |frame: &Frame| {
        let index = positions.get_mut(&frame.digest)?.pop_front()?;
        (old.frames()[index].tar_size == frame.tar_size).then_some(index)
    };
    new.frames().iter().map(find).collect()
}

/// Keeps the longest series of indices that grow, because the old tar is read once from its start to its end.
fn in_order(indices: &[Option<usize>]) -> Vec<Option<usize>> {
    // For each length the position of the lowest index that ends a series of that length.
    let (mut ends, mut before) = (Vec::<usize>::new(), vec![None; indices.len()]);
    for (position, index) in indices.iter().enumerate().filter(|(_, index)| index.is_some()) {
        let length = ends.partition_point(|end| indices[*end] < *index);
        before[position] = length.checked_sub(1).map(|shorter| ends[shorter]);
        if length == ends.len() {
            ends.push(position);
        } else {
            ends[length] = position;
        }
    }
    let mut kept = vec![None; indices.len()];
    let mut at = ends.last().copied();
    while let Some(position) = at {
        kept[position] = indices[position];
        at = before[position];
    }
    kept
}

/// The composed tar. `base`: the old tar, `fetched`: the missing frames without gaps.
struct ComposedTar<B, F> {
    base: B,
    /// The position in the old tar.
    position: u64,
    fetched: F,
    steps: std::vec::IntoIter<Step>,
    /// Bytes to copy from the old tar.
    left: u64,
    decoded: Bytes,
}

impl<B: Read, F: Read> ComposedTar<B, F> {
    /// Reads some bytes; none at the end.
    fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.decoded.has_remaining() {
                let length = buffer.len().min(self.decoded.len());
                self.decoded.copy_to_slice(&mut buffer[..length]);
                return Ok(length);
            }
            if self.left > 0 {
                let read = self.base.by_ref().take(self.left).read(buffer)?;
                if read == 0 {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the files of the release were changed"));
                }
                self.left -= read as u64;
                self.position += read as u64;
                return Ok(read);
            }
            match self.steps.next() {
                None => return Ok(0),
                Some(Step::Reused { offset, tar_size }) => {
                    let skipped = self.base.by_ref().take(offset - self.position);
                    self.position += io::copy(&mut { skipped }, &mut io::sink())?;
                    self.left = tar_size;
                }
                Some(Step::Fetched(frame)) => {
                    let mut bytes = vec![0; usize::try_from(frame.size).map_err(io::Error::other)?];
                    self.fetched.read_exact(&mut bytes)?;
                    self.decoded = frame.decode(&bytes)?.into();
                }
            }
        }
    }
}

impl<B: Read, F: Read> Read for ComposedTar<B, F> {
    /// Fills the buffer, unless the tar ends: a file may be much smaller.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_some(&mut buffer[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(filled)
    }
}

/// Composes a tar into an unnamed file; returns it with its digest and size. Blocks.
pub(crate) fn compose(
    plan: Plan,
    base: impl Read,
    fetched: impl Read,
    incoming: &Path,
    max_bytes: u64,
) -> Result<(File, TarballDigest, u64), FetchError> {
    let mut file = tempfile::tempfile_in(incoming).map_err(FetchError::disk(incoming))?;
    let steps = plan.steps.into_iter();
    let composed = ComposedTar { base, position: 0, fetched, steps, left: 0, decoded: Bytes::new() };
    let (digest, size) = copy(composed, &mut file, incoming, max_bytes)?;
    Ok((file, digest, size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The frames of these parts of a tar, with their bytes.
    fn encoded(parts: &[Vec<u8>]) -> Vec<(Frame, Vec<u8>)> {
        let frame = |part: &Vec<u8>| {
            let bytes = zstd::encode_all(&part[..], 1).unwrap();
            let (digest, size) = (ObjectDigest::of(&bytes), bytes.len() as u64);
            (Frame { digest, size, tar_size: part.len() as u64 }, bytes)
        };
        parts.iter().map(frame).collect()
    }

    fn manifest(parts: &[Vec<u8>]) -> Manifest {
        Manifest::new(encoded(parts).into_iter().map(|(frame, _)| frame).collect()).unwrap()
    }

    /// What a plan composes of an old tar, if the edge sends the bytes that it asks for.
    fn composed(plan: Plan, old: &[u8], new: &[Vec<u8>]) -> Result<TarballDigest, FetchError> {
        let body: Vec<u8> = encoded(new).into_iter().flat_map(|(_, bytes)| bytes).collect();
        let of = |missing: &Missing| body[missing.bytes.start as usize..missing.bytes.end as usize].to_vec();
        let fetched: Vec<u8> = plan.missing.iter().flat_map(of).collect();
        let dir = tempfile::tempdir().unwrap();
        compose(plan, old, &fetched[..], dir.path(), 1 << 20).map(|(_, digest, _)| digest)
    }

    fn parts(numbers: &[u8]) -> Vec<Vec<u8>> {
        numbers.iter().map(|number| vec![*number; 100 + usize::from(*number)]).collect()
    }

    fn reused(old: &[u8], new: &[u8]) -> Option<u64> {
        Plan::new(&manifest(&parts(old)), &manifest(&parts(new))).map(|plan| plan.reused)
    }

    #[test]
    fn a_frame_out_of_order_is_fetched() {
        assert_eq!(reused(&[1, 2, 3, 4], &[1, 2, 9, 4]), Some(3));
        // One frame moved to the front does not cost the others.
        assert_eq!(reused(&[1, 2, 3, 4], &[4, 1, 2, 3]), Some(3));
        assert_eq!(reused(&[1, 2, 3, 4], &[2, 1, 4, 3]), Some(2));
        assert_eq!(reused(&[7, 7, 1], &[7, 7, 7, 1]), Some(3), "the third of equal frames is new");
    }

    /// A manifest of frames with these names and sizes.
    fn sized(frames: &[(u8, u64)]) -> Manifest {
        let frame = |(name, size): &(u8, u64)| Frame { digest: ObjectDigest::of(&[*name]), size: *size, tar_size: 1 };
        Manifest::new(frames.iter().map(frame).collect()).unwrap()
    }

    #[test]
    fn a_quarter_of_the_bytes_is_worth_it() {
        let old = sized(&[(1, 100), (2, 100)]);
        assert!(Plan::new(&old, &sized(&[(1, 100), (3, 300)])).is_some());
        assert!(Plan::new(&old, &sized(&[(1, 100), (3, 301)])).is_none());
    }

    #[test]
    fn a_tarball_of_too_many_ranges_is_fetched_whole() {
        let every_second = |ranges: usize| {
            let frames: Vec<_> = (0..ranges).flat_map(|_| [(1, 9), (2, 1)]).collect();
            let old: Vec<_> = (0..ranges).map(|_| (1, 9)).collect();
            Plan::new(&sized(&old), &sized(&frames)).map(|plan| plan.missing.len())
        };
        assert_eq!((every_second(MAX_RANGES), every_second(MAX_RANGES + 1)), (Some(MAX_RANGES), None));
    }

    #[test]
    fn neighbouring_frames_are_one_range() {
        let plan = Plan::new(&manifest(&parts(&[1, 2, 3, 4, 5, 6])), &manifest(&parts(&[1, 9, 8, 4, 7, 6]))).unwrap();
        assert_eq!(plan.missing.iter().map(|missing| missing.frames.len()).collect::<Vec<_>>(), [2, 1]);
        let (half, rest) = (MAX_RANGE_BYTES / 2 + 1, (1, 2 * MAX_RANGE_BYTES));
        let plan = Plan::new(&sized(&[rest, (2, 1)]), &sized(&[rest, (3, half), (4, half)])).unwrap();
        assert_eq!(plan.missing.len(), 2, "no range is larger than the limit");
    }

    #[test]
    fn a_lie_about_the_old_tar_ends_in_an_error() {
        let (old, new) = (parts(&[1, 2, 3, 4]), parts(&[1, 9, 3, 4]));
        let plan = || Plan::new(&manifest(&old), &manifest(&new)).unwrap();
        assert_eq!(composed(plan(), &old.concat(), &new).unwrap(), TarballDigest::of(&new.concat()));
        assert!(matches!(composed(plan(), &old.concat()[..300], &new), Err(FetchError::Decode(_))));
        let other = vec![7; old.concat().len()];
        assert_ne!(composed(plan(), &other, &new).unwrap(), TarballDigest::of(&new.concat()));
    }

    proptest! {
        #[test]
        fn every_plan_composes_the_new_tar(
            old in prop::collection::vec(0u8..12, 2..30), new in prop::collection::vec(0u8..12, 2..30),
        ) {
            let (old, new) = (parts(&old), parts(&new));
            if let Some(plan) = Plan::new(&manifest(&old), &manifest(&new)) {
                prop_assert_eq!(composed(plan, &old.concat(), &new).unwrap(), TarballDigest::of(&new.concat()));
            }
        }
    }
}

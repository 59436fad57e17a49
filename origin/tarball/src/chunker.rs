//! Splits a tarball into runs by the paths and sizes of its entries, and runs into frames.
//!
//! Each boundary depends only on the entries since the previous one, so a changed file moves only the boundaries next
//! to it. All other runs keep their bytes and their frames. Equal contents are split alike, whatever was built
//! before. A run larger than a frame is split again by its bytes. The first frame is small, so that readers soon have
//! verified bytes.

use std::ops::Range;

use fastcdc::v2020::FastCDC;
use weir_protocol::manifest::MAX_FRAME_TAR_BYTES;

/// The smallest run, in bytes of tar.
const MIN_RUN_BYTES: u64 = 512 << 10;

/// Beyond the minimum, an entry ends the run with a probability of its size divided by this. Runs of small files have
/// 1 MiB on average.
const MEAN_REST_BYTES: u64 = 512 << 10;

/// The approximate largest run in bytes of tar, unless it is a single file.
pub(crate) const MAX_RUN_BYTES: u64 = MAX_FRAME_TAR_BYTES;

/// The minimum (except for the last), average and maximum bytes of tar in a frame of a large run.
const SLICE_BYTES: [usize; 3] = [256 << 10, 1 << 20, MAX_FRAME_TAR_BYTES as usize];

/// The first frame of a tarball, if the first run has at least twice as many bytes of tar.
const HEAD_BYTES: usize = 256 << 10;

/// Decides where runs begin, one entry after another.
#[derive(Debug, Default)]
pub(crate) struct Chunker {
    /// Bytes of the current run.
    bytes: u64,
    /// The last entry ended its run.
    ended: bool,
}

impl Chunker {
    /// Whether a run begins with this entry. `bytes` is its approximate size in the tar.
    pub(crate) fn begins(&mut self, path: &[u8], bytes: u64) -> bool {
        let begins = self.bytes > 0 && (self.ended || self.bytes + bytes > MAX_RUN_BYTES);
        if begins {
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.ended = self.bytes >= MIN_RUN_BYTES && may_end(path, bytes);
        begins
    }
}

/// Whether an entry may end a run: a pseudorandom function of its path and size.
fn may_end(path: &[u8], bytes: u64) -> bool {
    let hash = blake3::hash(path);
    let at = hash.as_bytes().iter().take(8).fold(0, |at, byte| (at << 8) | u64::from(*byte));
    at % MEAN_REST_BYTES < bytes
}

/// The byte ranges of a run's frames. A run that fits into one frame is not split. A larger one, with a large file or
/// with expanded line ends, is split by content, so that a change moves few boundaries. In the first run of a tarball
/// this applies after the small first frame.
pub(crate) fn frames(tar: &[u8], is_first: bool) -> Vec<Range<usize>> {
    let head = if is_first && tar.len() >= 2 * HEAD_BYTES { HEAD_BYTES } else { 0 };
    let mut frames: Vec<_> = (head > 0).then_some(0..head).into_iter().collect();
    let [min, mean, max] = SLICE_BYTES;
    if tar.len() - head <= max {
        frames.push(head..tar.len());
    } else {
        let slices = FastCDC::new(&tar[head..], min, mean, max);
        frames.extend(slices.map(|slice| head + slice.offset..head + slice.offset + slice.length));
    }
    frames
}

/// Splits a run of more than two frames whose bytes come in pieces, as [`frames`] splits it.
pub(crate) struct Cutter {
    is_first: bool,
    /// What belongs to no frame yet.
    bytes: Vec<u8>,
}

impl Cutter {
    pub(crate) fn new(is_first: bool) -> Self {
        Self { is_first, bytes: Vec::new() }
    }

    /// Adds a piece, and passes on the frames that are complete.
    pub(crate) fn add<E>(&mut self, piece: &[u8], take: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let [.., max] = SLICE_BYTES;
        for piece in piece.chunks(max) {
            self.bytes.extend_from_slice(piece);
            self.cut(max, take)?;
        }
        Ok(())
    }

    /// Passes on the last frames.
    pub(crate) fn finish<E>(mut self, take: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.cut(1, take)
    }

    /// Cuts frames while there are `enough` bytes: a frame depends on no more than its largest size.
    fn cut<E>(&mut self, enough: usize, take: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let (mut start, [min, mean, max]) = (0, SLICE_BYTES);
        while self.bytes.len() - start >= enough {
            let rest = &self.bytes[start..];
            let end = if std::mem::take(&mut self.is_first) {
                HEAD_BYTES
            } else {
                FastCDC::new(rest, min, mean, max).cut(0, rest.len()).1
            };
            take(&rest[..end])?;
            start += end;
        }
        self.bytes.drain(..start);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn beginnings(entries: &[(String, u64)]) -> Vec<&str> {
        let mut chunker = Chunker::default();
        let begins = entries.iter().filter(|(path, bytes)| chunker.begins(path.as_bytes(), *bytes));
        begins.map(|(path, _)| path.as_str()).collect()
    }

    fn many(bytes: impl Fn(u64) -> u64) -> Vec<(String, u64)> {
        (0..20_000).map(|number| (format!("folder/{number:05}"), bytes(number))).collect()
    }

    /// Incompressible bytes, the same on every machine.
    fn noise(length: usize) -> Vec<u8> {
        let mut noise = vec![0; length];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        noise
    }

    #[test]
    fn runs_have_about_a_mebibyte_for_any_files() {
        let sizes: [fn(u64) -> u64; 3] = [|_| 1024, |number| 512 + number * 7919 % 100_000, |_| 300_000];
        for bytes in sizes {
            let entries = many(bytes);
            let total: u64 = entries.iter().map(|(_, bytes)| bytes).sum();
            let mean = total / (beginnings(&entries).len() as u64 + 1);
            assert!((768 << 10..1280 << 10).contains(&mean), "{mean}");
        }
    }

    #[test]
    fn a_large_file_is_alone_and_no_run_is_larger_than_allowed() {
        let mut entries = many(|number| 512 + number * 7919 % 100_000);
        entries.insert(5000, ("large".to_owned(), 100 << 20));
        assert!(beginnings(&entries).contains(&"large"));
        assert!(beginnings(&entries).contains(&entries[5001].0.as_str()));
        let mut chunker = Chunker::default();
        for (path, bytes) in &entries {
            chunker.begins(path.as_bytes(), *bytes);
            assert!(chunker.bytes <= MAX_RUN_BYTES || chunker.bytes == *bytes);
        }
    }

    /// Moved boundaries would change the frames of every large file. If this fails after an update of the library,
    /// stay on the old version, or change [`super::super::codec::CODEC`] and this list.
    #[test]
    fn a_large_file_is_cut_here_for_ever() {
        let ends: Vec<usize> = frames(&noise(12 << 20), false).iter().map(|frame| frame.end).collect();
        assert_eq!(
            ends,
            [
                1_660_009, 2_455_381, 3_616_425, 5_015_108, 6_411_020, 8_303_508, 9_691_380, 10_766_092, 11_848_791,
                12_432_669, 12_582_912
            ]
        );
        assert_eq!(frames(&vec![0; (9 << 20) + 1], false), [0..4 << 20, 4 << 20..8 << 20, 8 << 20..(9 << 20) + 1]);
        assert_eq!(frames(&noise(4 << 20), false), std::slice::from_ref(&(0..4 << 20)));
    }

    #[test]
    fn the_first_frame_is_small_and_the_others_are_unchanged() {
        let tar = noise(12 << 20);
        let (head, rest) = tar.split_at(HEAD_BYTES);
        let behind = frames(rest, false).into_iter().map(|frame| frame.start + head.len()..frame.end + head.len());
        assert_eq!(frames(&tar, true), std::iter::once(0..head.len()).chain(behind).collect::<Vec<_>>());
        assert_eq!(frames(&tar[..1 << 20], true), [0..HEAD_BYTES, HEAD_BYTES..1 << 20]);
        let small = 2 * HEAD_BYTES - 512;
        assert_eq!(frames(&tar[..small], true), std::slice::from_ref(&(0..small)));
        assert_eq!(frames(&[], true), std::slice::from_ref(&(0..0)));
    }

    #[test]
    fn pieces_are_cut_as_the_whole() {
        let tar = noise(21 << 20);
        for (is_first, piece) in [(false, 100_000), (true, 1 << 20), (true, 5 << 20), (false, tar.len())] {
            let (mut cutter, mut cut) = (Cutter::new(is_first), Vec::new());
            let mut take = |frame: &[u8]| {
                cut.push(frame.len());
                Ok::<_, ()>(())
            };
            tar.chunks(piece).for_each(|piece| cutter.add(piece, &mut take).unwrap());
            cutter.finish(&mut take).unwrap();
            let whole: Vec<usize> = frames(&tar, is_first).into_iter().map(|frame| frame.len()).collect();
            assert_eq!(cut, whole, "{piece}");
        }
    }

    #[test]
    fn a_change_within_a_large_file_moves_few_cuts() {
        let before = noise(32 << 20);
        for (at, is_first) in [(16 << 20, false), (1000, true)] {
            let mut after = before.clone();
            after.splice(at..at, *b"inserted");
            let slices = |tar: &[u8]| -> Vec<blake3::Hash> {
                frames(tar, is_first).into_iter().map(|range| blake3::hash(&tar[range])).collect()
            };
            let (before, after) = (slices(&before), slices(&after));
            assert!((20..60).contains(&before.len()), "{}", before.len());
            let moved = after.iter().filter(|slice| !before.contains(slice)).count();
            assert!((1..=4).contains(&moved), "{moved} of {}", after.len());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_change_moves_few_cuts(at in 0usize..20_000, bytes in 512u64..200_000, kind in 0..3) {
            let before = many(|number| 512 + number * 7919 % 50_000);
            let mut after = before.clone();
            match kind {
                0 => after[at].1 = bytes,
                1 => after.insert(at, ("new".to_owned(), bytes)),
                _ => drop(after.remove(at)),
            }
            let (before, after) = (beginnings(&before), beginnings(&after));
            let moved = after.iter().filter(|path| !before.contains(path)).count();
            // After a moved boundary, the next common one brings both back together.
            prop_assert!(moved <= 12, "{moved} of {}", after.len());
        }
    }
}

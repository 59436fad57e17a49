//! Where the bytes of a blob lie: runs of bytes in files that it may share with other blobs.
//!
//! A tarball after a commit that changed one file is nearly the one before. Its blob is kept as the few bytes that are new
//! and, for the rest, hard links to the files in which earlier blobs have it: the file system counts who still needs a file,
//! so blobs come and go as if each had its bytes alone.

use std::ops::Range;

use weir_shared::digest::BlobDigest;

/// Files that a blob's bytes lie in, at the most: that many are open while it is read.
pub(super) const MAX_PARTS: usize = 8;

/// A file of which a blob needs fewer bytes than this is not worth a link: they are copied.
const MIN_SHARED_BYTES: u64 = 1 << 20;

/// A run of bytes of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Which of the files.
    pub(super) part: u32,
    /// Where in that file.
    pub(super) offset: u64,
    /// How many.
    pub(super) length: u64,
}

/// A blob's runs of bytes, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Each with where it begins in the blob.
    extents: Vec<(u64, Extent)>,
    size: u64,
}

const CHECKSUM_BYTES: usize = 32;
const EXTENT_BYTES: usize = 20;

impl Layout {
    /// A file of its own.
    pub(super) fn whole(length: u64) -> Self {
        let mut layout = Self::default();
        layout.push(Extent { part: 0, offset: 0, length });
        layout
    }

    /// Bytes of the blob.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// How many files it needs.
    pub(super) fn parts(&self) -> usize {
        self.extents.iter().map(|(_, extent)| extent.part as usize + 1).max().unwrap_or_default()
    }

    /// Goes on with this run.
    pub(super) fn push(&mut self, extent: Extent) {
        if extent.length == 0 {
            return;
        }
        let begins = self.size;
        self.size += extent.length;
        if let Some((_, last)) = self.extents.last_mut()
            && (last.part, last.offset + last.length) == (extent.part, extent.offset)
        {
            last.length += extent.length;
        } else {
            self.extents.push((begins, extent));
        }
    }

    /// Where a range of the blob lies, in its order. Beyond the blob's end there is nothing.
    pub(super) fn locate(&self, range: Range<u64>) -> impl Iterator<Item = Extent> {
        let first = self.extents.partition_point(|(begins, extent)| begins + extent.length <= range.start);
        self.extents[first..].iter().map_while(move |(begins, extent)| {
            let start = range.start.max(*begins);
            let end = range.end.min(begins + extent.length);
            (start < end).then(|| Extent { offset: extent.offset + (start - begins), length: end - start, ..*extent })
        })
    }

    /// How many bytes of the blob lie in each of the files.
    pub(super) fn used(&self) -> Vec<u64> {
        let mut used = vec![0; self.parts()];
        for (_, extent) in &self.extents {
            used[extent.part as usize] += extent.length;
        }
        used
    }

    /// How long each of the files must be at the least.
    pub(super) fn ends(&self) -> Vec<u64> {
        let mut ends = vec![0; self.parts()];
        for (_, extent) in &self.extents {
            let end = &mut ends[extent.part as usize];
            *end = extent.offset.saturating_add(extent.length).max(*end);
        }
        ends
    }

    /// Its runs, in their order.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> {
        self.extents.iter().map(|(_, extent)| *extent)
    }

    /// The same with other numbers for the files.
    pub(super) fn renumbered(&self, number: impl Fn(u32) -> u32) -> Self {
        let mut layout = Self::default();
        for extent in self.extents() {
            layout.push(Extent { part: number(extent.part), ..extent });
        }
        layout
    }

    /// As it is kept: a checksum, and 20 bytes for each run.
    pub(super) fn to_bytes(&self, blob: &BlobDigest) -> Vec<u8> {
        let mut bytes = vec![0; CHECKSUM_BYTES];
        for (_, extent) in &self.extents {
            bytes.extend_from_slice(&extent.part.to_le_bytes());
            bytes.extend_from_slice(&extent.offset.to_le_bytes());
            bytes.extend_from_slice(&extent.length.to_le_bytes());
        }
        let checksum = checksum(blob, &bytes[CHECKSUM_BYTES..]);
        bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum);
        bytes
    }

    /// `None` for anything but what was kept for this blob.
    pub(super) fn parse(blob: &BlobDigest, bytes: &[u8]) -> Option<Self> {
        let (found, rest) = bytes.split_first_chunk::<CHECKSUM_BYTES>()?;
        if *found != checksum(blob, rest) {
            return None;
        }
        let (extents, rest) = rest.as_chunks::<EXTENT_BYTES>();
        if !rest.is_empty() {
            return None;
        }
        let mut layout = Self::default();
        for extent in extents {
            let (part, rest) = extent.split_first_chunk()?;
            let (offset, length) = rest.split_first_chunk()?;
            let extent = Extent {
                part: u32::from_le_bytes(*part),
                offset: u64::from_le_bytes(*offset),
                length: u64::from_le_bytes(length.try_into().ok()?),
            };
            extent.offset.checked_add(extent.length)?;
            layout.size.checked_add(extent.length)?;
            layout.push(extent);
        }
        (layout.parts() <= MAX_PARTS).then_some(layout)
    }
}

fn checksum(blob: &BlobDigest, extents: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("weir blob layout v1");
    hasher.update(blob.as_bytes()).update(extents);
    *hasher.finalize().as_bytes()
}

/// Which files a blob should share, given how many of their bytes it needs, and how many they have: those that it needs at
/// least half of, so that a blob never holds on to more than twice its bytes, and of these the ones it needs most of. One
/// more than these is the blob's own.
pub(super) fn worth_sharing(files: &[(u64, u64)]) -> Vec<bool> {
    let is_worth = |(used, bytes): (u64, u64)| used >= MIN_SHARED_BYTES && used >= bytes.div_ceil(2);
    let mut worth: Vec<usize> = (0..files.len()).filter(|file| is_worth(files[*file])).collect();
    worth.sort_by_key(|file| std::cmp::Reverse(files[*file].0));
    worth.truncate(MAX_PARTS - 1);
    (0..files.len()).map(|file| worth.contains(&file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(extents: &[(u32, u64, u64)]) -> Layout {
        let mut layout = Layout::default();
        for (part, offset, length) in extents {
            layout.push(Extent { part: *part, offset: *offset, length: *length });
        }
        layout
    }

    #[test]
    fn runs_that_follow_one_another_in_a_file_are_one() {
        let joined = layout(&[(0, 0, 5), (0, 5, 7), (1, 0, 3), (0, 12, 2), (0, 30, 0)]);
        assert_eq!(joined, layout(&[(0, 0, 12), (1, 0, 3), (0, 12, 2)]));
        assert_eq!((joined.size(), joined.parts(), joined.used()), (17, 2, vec![14, 3]));
        assert_eq!(Layout::whole(17).used(), [17]);
    }

    #[test]
    fn a_layout_that_was_not_kept_for_the_blob_is_not_believed() {
        let (blob, kept) = (BlobDigest::of(b"a blob"), layout(&[(0, 0, 12), (1, 0, 3), (0, 12, 2)]));
        let bytes = kept.to_bytes(&blob);
        assert_eq!(Layout::parse(&blob, &bytes), Some(kept));
        assert_eq!(Layout::parse(&BlobDigest::of(b"another"), &bytes), None);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(Layout::parse(&blob, &changed), None, "byte {at}");
            assert_eq!(Layout::parse(&blob, &bytes[..at]), None, "cut to {at}");
        }
        // Not even with a right checksum.
        let parts = MAX_PARTS as u32;
        for absurd in [(0, u64::MAX, 2), (parts, 0, 1), (u32::MAX, 0, 1)] {
            let mut absurd_layout = Layout::default();
            let (part, offset, length) = absurd;
            absurd_layout.extents.push((0, Extent { part, offset, length }));
            assert_eq!(Layout::parse(&blob, &absurd_layout.to_bytes(&blob)), None);
        }
    }

    #[test]
    fn files_that_are_needed_half_are_shared_the_most_needed_first() {
        const M: u64 = 1 << 20;
        assert_eq!(worth_sharing(&[(150 * M, 150 * M), (M, M), (M - 1, M - 1)]), [true, true, false]);
        assert_eq!(worth_sharing(&[(74 * M, 150 * M), (75 * M, 150 * M)]), [false, true]);
        let many: Vec<(u64, u64)> = (1..=10).map(|n| (n * M, n * M)).collect();
        let shared = worth_sharing(&many);
        assert_eq!(shared.iter().filter(|shared| **shared).count(), MAX_PARTS - 1);
        assert_eq!(shared[..3], [false, false, false]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_range_lies_where_its_bytes_are(
            extents in proptest::collection::vec((0u32..4, 0u64..50, 0u64..20), 0..12),
            start in 0u64..260, length in 0u64..260,
        ) {
            let layout = layout(&extents);
            // Each byte of the blob, as the file and the place it is in.
            let places = |extent: &Extent| {
                let part = extent.part;
                (extent.offset..extent.offset + extent.length).map(move |offset| (part, offset)).collect::<Vec<_>>()
            };
            let whole: Vec<_> = extents.iter().flat_map(|(part, offset, length)| {
                places(&Extent { part: *part, offset: *offset, length: *length })
            }).collect();
            prop_assert_eq!(layout.size(), whole.len() as u64);
            let end = (start + length).min(layout.size());
            let located: Vec<_> = layout.locate(start..start + length).flat_map(|extent| places(&extent)).collect();
            let expected = if start < end { &whole[start as usize..end as usize] } else { &[] };
            prop_assert_eq!(located, expected);
            let blob = BlobDigest::of(b"a blob");
            prop_assert_eq!(Layout::parse(&blob, &layout.to_bytes(&blob)), Some(layout));
        }
    }
}

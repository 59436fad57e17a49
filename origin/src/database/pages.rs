//! The pages of redb's files (format 3), read without redb: whatever they hold, this neither panics nor reads beyond the
//! file's end.
//!
//! A page has 4096 bytes, or a power of two times as many. Trees are of leaves, which hold pairs, and of branches, which
//! hold the page number and the checksum of each child and the last key of each but the last. So a page's bytes are known
//! to be as they were written, whatever became of the others, as long as whoever names it has its checksum.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use twox_hash::XxHash3_128;

/// The smallest page, and what stands before the first one: the header.
const PAGE: u64 = 4096;

/// A region: pages are numbered within one.
const REGION: u64 = PAGE << 20;

/// No page is larger than 4096 bytes times two to the power of this.
const HIGHEST_ORDER: u64 = 20;

const LEAF: u8 = 1;
const BRANCH: u8 = 2;

/// Where the header says which of its two slots is that of the last commit, and where they are.
const LAST_SLOT_AT: usize = 9;
const FIRST_SLOT: usize = 64;
const SLOT: usize = 128;

/// Bytes of a [`Link`], and of the number of rows that follows it where it names a tree.
pub(super) const ROOT: usize = 32;

/// The file of a database.
#[derive(Debug)]
pub(super) struct Pages {
    file: File,
    length: u64,
}

/// A page, as whoever names it has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    number: u64,
    checksum: u128,
}

/// How many bytes keys and values have, if all have the same number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Widths {
    pub(super) key: Option<usize>,
    pub(super) value: Option<usize>,
}

/// What could be read of a page.
#[derive(Debug)]
pub(super) struct Page {
    bytes: Vec<u8>,
    pub(super) holds: Holds,
    /// Its bytes are those that were written.
    pub(super) is_sound: bool,
}

#[derive(Debug)]
pub(super) enum Holds {
    /// Keys and values.
    Pairs(Vec<(Range<usize>, Range<usize>)>),
    /// Pages, each with the last key that may be on it.
    Children(Vec<(Link, Option<Range<usize>>)>),
}

impl Pages {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { file, length })
    }

    /// The trees of tables of the last commit, and of the one before. That a link is right is told by the page it leads to,
    /// so that a damaged slot may be used as well.
    pub(super) fn commits(&self) -> [Option<Link>; 2] {
        let Some(header) = self.bytes(0..PAGE) else { return [None; 2] };
        let last = usize::from(header[LAST_SLOT_AT] & 1);
        [last, 1 - last].map(|slot| {
            let slot = &header[FIRST_SLOT + slot * SLOT..][..SLOT];
            // Whether there is a root, and the root.
            if slot[1] == 0 { None } else { Link::parse(&slot[8..]) }
        })
    }

    /// `None`: there is no such page, or it is none.
    pub(super) fn page(&self, link: &Link, widths: Widths) -> Option<Page> {
        let bytes = self.bytes(link.range()?)?;
        let count = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        let (holds, end) = match bytes[0] {
            LEAF => pairs(&bytes, count, widths),
            BRANCH => children(&bytes, count, widths.key)?,
            _ => return None,
        };
        let is_sound = end.is_some_and(|end| XxHash3_128::oneshot(&bytes[..end]) == link.checksum);
        Some(Page { bytes, holds, is_sound })
    }

    fn bytes(&self, range: Range<u64>) -> Option<Vec<u8>> {
        if range.end > self.length {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(range.end - range.start).ok()?];
        self.file.read_exact_at(&mut bytes, range.start).ok()?;
        Some(bytes)
    }
}

impl Page {
    pub(super) fn bytes(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes[range.clone()]
    }
}

impl Link {
    /// Reads a page number and a checksum.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self { number: u64::from_le_bytes(*bytes.first_chunk()?), checksum: number(bytes.get(8..)?)? })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The bytes of the file: 20 bits of the number are that within the region, 20 that of the region, and the highest 5
    /// tell the size.
    fn range(&self) -> Option<Range<u64>> {
        let (order, region) = (self.number >> 59, (self.number >> 20) & 0xf_ffff);
        if order > HIGHEST_ORDER {
            return None;
        }
        let (index, size) = (self.number & (0xf_ffff >> order), PAGE << order);
        let start = PAGE + region * REGION + index * size;
        Some(start..start + size)
    }
}

fn number(bytes: &[u8]) -> Option<u128> {
    bytes.first_chunk().map(|bytes| u128::from_le_bytes(*bytes))
}

/// Where the parts of a section end: at every `width` bytes, or where a list says.
struct Ends<'a> {
    page: &'a [u8],
    width: Option<usize>,
    list: usize,
}

impl Ends<'_> {
    /// The part of this number, in a section that begins there; if it lies on the page.
    fn part(&self, section: usize, part: usize) -> Option<Range<usize>> {
        let end = |part: usize| match self.width {
            Some(width) => Some(section + width * (part + 1)),
            None => {
                let end = self.page.get(self.list + 4 * part..)?.first_chunk()?;
                usize::try_from(u32::from_le_bytes(*end)).ok()
            }
        };
        let start = if part == 0 { section } else { end(part - 1)? };
        let end = end(part)?;
        (start >= section && start <= end && end <= self.page.len()).then_some(start..end)
    }
}

/// The pairs of a leaf that can be cut out of it, and where the last one ends.
fn pairs(page: &[u8], count: usize, widths: Widths) -> (Holds, Option<usize>) {
    let list = |width: Option<usize>| if width.is_none() { 4 * count } else { 0 };
    let keys = Ends { page, width: widths.key, list: 4 };
    let values = Ends { page, width: widths.value, list: 4 + list(widths.key) };
    let first_key = 4 + list(widths.key) + list(widths.value);
    let last_key = count.checked_sub(1).and_then(|last| keys.part(first_key, last));
    let Some(first_value) = last_key.map(|last| last.end) else { return (Holds::Pairs(Vec::new()), None) };
    let pair = |at| Some((keys.part(first_key, at)?, values.part(first_value, at)?));
    let end = values.part(first_value, count - 1).map(|last| last.end);
    (Holds::Pairs((0..count).filter_map(pair).collect()), end)
}

/// The children of a branch, and where its last key ends. The last child has no key.
fn children(page: &[u8], count: usize, width: Option<usize>) -> Option<(Holds, Option<usize>)> {
    let (checksums, numbers) = (8, 8 + 16 * (count + 1));
    let list = numbers + 8 * (count + 1);
    let first_key = list + if width.is_none() { 4 * count } else { 0 };
    let keys = Ends { page, width, list };
    let child = |at: usize| {
        let checksum = number(page.get(checksums + 16 * at..)?)?;
        let number = u64::from_le_bytes(*page.get(numbers + 8 * at..)?.first_chunk()?);
        Some((Link { number, checksum }, keys.part(first_key, at).filter(|_| at < count)))
    };
    let children = (0..=count).map(child).collect::<Option<_>>()?;
    let end = count.checked_sub(1).and_then(|last| keys.part(first_key, last)).map(|last| last.end);
    Some((Holds::Children(children), end))
}

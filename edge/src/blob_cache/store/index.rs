//! The index on disk: which blobs are held and how they were used, so that a start reads one file and no directories.
//!
//! A log of rows of 64 bytes behind a header: a later row about a blob replaces an earlier one, and once the log is
//! much longer than what it says, it is written anew. It is no authority: it may lag behind the files, each of which is
//! compared with its name before a byte is served. So it is never synced, and a row that is damaged is left out.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use weir_shared::digest::BlobDigest;

use super::eviction::{Slot, Usage};
use crate::clock::Moment;

/// The bytes of a row, and of the header.
pub(super) const ROW: usize = 64;

/// What the file begins with; another number is another format.
const HEADER: &[u8] = b"weir blob index 1\n";

/// Rows beyond twice the blobs that are held, before the log is written anew.
const SLACK: u64 = 10_000;

/// No blob is larger, in bytes: a row that says so is damaged.
const MAX_SIZE: u64 = 1 << 40;

/// The log.
#[derive(Debug)]
pub(super) struct Index {
    path: PathBuf,
    /// None when the log has to be written anew.
    file: Option<File>,
    rows: u64,
}

/// What the log says of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) digest: BlobDigest,
    /// `None`: it is held no more.
    pub(super) held: Option<Known>,
}

/// What is known of a blob that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) size: u64,
    pub(super) turn: u64,
    /// In milliseconds since 1970.
    pub(super) last_use: u64,
    pub(super) uses: u8,
    pub(super) established: bool,
}

/// What was read at the start.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) index: Index,
    pub(super) blobs: HashMap<BlobDigest, Known>,
    pub(super) found: Found,
}

/// In what state the log was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It was read.
    Whole,
    /// There was none.
    Nothing,
    /// It was set aside, or part of it was left out: the directories know more.
    Damaged,
}

impl Known {
    pub(super) fn of(slot: &Slot, on_the_wall: impl Fn(Moment) -> u64) -> Self {
        let Usage { last, uses, established } = slot.usage;
        Self { size: slot.size, turn: slot.turn, last_use: on_the_wall(last), uses, established }
    }
}

impl Row {
    pub(super) fn encode(&self) -> [u8; ROW] {
        let mut row = [0; ROW];
        row[..32].copy_from_slice(self.digest.as_bytes());
        if let Some(known) = self.held {
            row[32..40].copy_from_slice(&known.size.to_le_bytes());
            row[40..48].copy_from_slice(&known.turn.to_le_bytes());
            row[48..56].copy_from_slice(&known.last_use.to_le_bytes());
            row[56..59].copy_from_slice(&[1, known.uses, u8::from(known.established)]);
        }
        let sum = checksum(&row);
        row[60..].copy_from_slice(&sum);
        row
    }

    /// `None` when the bytes are no row, or one that was damaged.
    pub(super) fn decode(row: &[u8; ROW]) -> Option<Self> {
        let (digest, rest) = row.split_first_chunk::<32>()?;
        let (size, rest) = rest.split_first_chunk::<8>()?;
        let (turn, rest) = rest.split_first_chunk::<8>()?;
        let (last_use, rest) = rest.split_first_chunk::<8>()?;
        let &[is_held, uses, established, _, ref sum @ ..] = rest else { return None };
        let size = u64::from_le_bytes(*size);
        if *sum != checksum(row) || is_held > 1 || established > 1 || size > MAX_SIZE {
            return None;
        }
        let held = (is_held == 1).then(|| Known {
            size,
            turn: u64::from_le_bytes(*turn),
            last_use: u64::from_le_bytes(*last_use),
            uses,
            established: established == 1,
        });
        Some(Self { digest: blake3::Hash::from_bytes(*digest).into(), held })
    }
}

fn checksum(row: &[u8; ROW]) -> [u8; 4] {
    let [a, b, c, d, ..] = *blake3::hash(&row[..ROW - 4]).as_bytes();
    [a, b, c, d]
}

/// What a log says, and whether all of it could be read. Never panics, whatever the bytes are.
pub(super) fn parse(bytes: &[u8]) -> (HashMap<BlobDigest, Known>, Found) {
    let mut blobs = HashMap::new();
    let Some((header, rows)) = bytes.split_at_checked(ROW) else { return (blobs, Found::Damaged) };
    if header != self::header() {
        return (blobs, Found::Damaged);
    }
    let (rows, torn) = rows.as_chunks::<ROW>();
    let mut found = if torn.is_empty() { Found::Whole } else { Found::Damaged };
    for row in rows {
        match Row::decode(row) {
            Some(Row { digest, held: Some(known) }) => drop(blobs.insert(digest, known)),
            Some(Row { digest, held: None }) => drop(blobs.remove(&digest)),
            None => found = Found::Damaged,
        }
    }
    (blobs, found)
}

fn header() -> [u8; ROW] {
    let mut header = [0; ROW];
    header[..HEADER.len()].copy_from_slice(HEADER);
    header
}

impl Index {
    /// Reads the log. One that is damaged or cannot be read is set aside (`.damaged`), and what could be read of it counts:
    /// an edge can do without it.
    pub(super) fn load(path: &Path) -> Loaded {
        let nothing = Self { path: path.to_owned(), file: None, rows: 0 };
        let read = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Loaded { index: nothing, blobs: HashMap::new(), found: Found::Nothing };
            }
            read => read,
        };
        let (blobs, found) = read.as_ref().map_or((HashMap::new(), Found::Damaged), |bytes| parse(bytes));
        let rows = read.as_ref().map_or(0, |bytes| (bytes.len() / ROW) as u64);
        if found == Found::Whole {
            // One that takes nothing more is written anew.
            let file = OpenOptions::new().append(true).open(path).ok();
            return Loaded { index: Self { file, rows, ..nothing }, blobs, found };
        }
        let aside = fs::rename(path, path.with_extension("damaged"));
        for error in read.err().into_iter().chain(aside.err()) {
            tracing::warn!(%error, index = %path.display(), "the index of the blobs cannot be read or set aside");
        }
        Loaded { index: nothing, blobs, found }
    }

    /// Whether it is better to write everything anew, when `held` blobs are held.
    pub(super) fn is_overgrown(&self, held: usize) -> bool {
        self.file.is_none() || self.rows > 2 * held as u64 + SLACK
    }

    /// Appends rows. After an error the log has to be written anew. Blocks.
    ///
    /// # Errors
    /// The disk failed.
    pub(super) fn append(&mut self, rows: &[Row]) -> io::Result<()> {
        let bytes: Vec<u8> = rows.iter().flat_map(Row::encode).collect();
        // Whatever comes behind a row that was half written could not be read.
        let mut file = self.file.take().ok_or_else(|| io::Error::other("the index has to be written anew"))?;
        file.write_all(&bytes)?;
        self.file = Some(file);
        self.rows += rows.len() as u64;
        Ok(())
    }

    /// Writes the log anew, with the rows that `next` gives, page by page, until it gives none. Blocks.
    ///
    /// # Errors
    /// The disk failed; the old log stays.
    pub(super) fn rewrite(&mut self, mut next: impl FnMut() -> Vec<Row>) -> io::Result<()> {
        let unfinished = self.path.with_extension("unfinished");
        let mut file = File::create(&unfinished)?;
        file.write_all(&header())?;
        let mut rows = 0;
        loop {
            let page = next();
            if page.is_empty() {
                break;
            }
            let bytes: Vec<u8> = page.iter().flat_map(Row::encode).collect();
            file.write_all(&bytes)?;
            rows += page.len() as u64;
        }
        fs::rename(&unfinished, &self.path)?;
        (self.file, self.rows) = (Some(file), rows);
        Ok(())
    }
}

/// Reads bytes as a log, and as rows whose checksum is right whatever else they say.
///
/// # Panics
/// When a log says more than its rows can, or a row that is read is not written back as it was.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    let log = [&header()[..], bytes].concat();
    let (blobs, found) = parse(&log);
    assert!(blobs.len() <= bytes.len() / ROW);
    assert!(found == Found::Damaged || bytes.len() % ROW == 0);
    parse(bytes);
    for part in bytes.as_chunks::<{ ROW - 4 }>().0 {
        let mut row = [0; ROW];
        row[..ROW - 4].copy_from_slice(part);
        let sum = checksum(&row);
        row[ROW - 4..].copy_from_slice(&sum);
        let Some(read) = Row::decode(&row) else { continue };
        // One byte of a row says nothing, and neither does what stands behind the name of a blob that is gone.
        assert_eq!(Row::decode(&read.encode()), Some(read));
    }
}

#[cfg(test)]
mod tests {
    use super::super::eviction::{Limits, Policy};
    use super::*;
    use crate::clock::Clock;
    use proptest::prelude::*;
    use std::time::SystemTime;

    fn row(n: u64) -> Row {
        let known = Known { size: n, turn: n, last_use: n, uses: 2, established: n.is_multiple_of(2) };
        Row { digest: BlobDigest::of(&n.to_le_bytes()), held: Some(known) }
    }

    fn rewrite(index: &mut Index, rows: Vec<Row>) {
        let mut rows = Some(rows);
        index.rewrite(|| rows.take().unwrap_or_default()).unwrap();
    }

    #[test]
    fn what_was_written_last_counts_and_damage_costs_only_what_it_hit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blobs.index");
        let Loaded { mut index, blobs, found } = Index::load(&path);
        assert!(blobs.is_empty() && found == Found::Nothing && index.is_overgrown(0));
        rewrite(&mut index, (0..10).map(row).collect());
        assert!(!index.is_overgrown(10));
        let gone = Row { held: None, ..row(3) };
        index.append(&[gone, row(11)]).unwrap();

        let loaded = Index::load(&path);
        assert_eq!((loaded.found, loaded.blobs.len()), (Found::Whole, 10));
        assert!(!loaded.blobs.contains_key(&row(3).digest) && loaded.blobs.contains_key(&row(11).digest));

        let mut bytes = fs::read(&path).unwrap();
        bytes[ROW * 5 + 7] ^= 1;
        bytes.truncate(bytes.len() - 1);
        fs::write(&path, &bytes).unwrap();
        let Loaded { index, blobs, found } = Index::load(&path);
        assert_eq!((found, blobs.len()), (Found::Damaged, 8));
        assert!(index.is_overgrown(8) && !path.exists() && path.with_extension("damaged").exists());
        fs::write(&path, "something else").unwrap();
        assert_eq!(Index::load(&path).found, Found::Damaged);
    }

    #[test]
    fn one_that_cannot_be_read_is_set_aside_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blobs.index");
        fs::create_dir(&path).unwrap();
        let Loaded { mut index, blobs, found } = Index::load(&path);
        assert_eq!((found, blobs.len(), path.exists()), (Found::Damaged, 0, false));
        rewrite(&mut index, vec![row(1)]);
        assert_eq!(Index::load(&path).found, Found::Whole);
    }

    #[test]
    fn a_log_that_could_not_be_written_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let mut index = Index::load(&dir.path().join("blobs.index")).index;
        assert!(index.append(&[row(1)]).is_err());
        rewrite(&mut index, vec![row(1)]);
        index.append(&[row(2)]).unwrap();
        assert_eq!(Index::load(&index.path).blobs.len(), 2);
    }

    proptest! {
        #[test]
        fn a_row_is_read_as_it_was_written(digest: [u8; 32], size in 0..MAX_SIZE, turn: u64, last_use: u64, uses: u8, established: bool, is_held: bool) {
            let known = Known { size, turn, last_use, uses, established };
            let row = Row { digest: blake3::Hash::from_bytes(digest).into(), held: is_held.then_some(known) };
            prop_assert_eq!(Row::decode(&row.encode()), Some(row));
        }

        #[test]
        fn whatever_rows_say_the_books_balance(rows in proptest::collection::vec(proptest::array::uniform(any::<u8>()), 0..40)) {
            let mut log = header().to_vec();
            for row in rows {
                let mut row: [u8; ROW] = row;
                (row[56], row[58]) = (row[56] % 2, row[58] % 2);
                row[37..40].fill(0);
                let sum = checksum(&row);
                row[60..].copy_from_slice(&sum);
                log.extend(row);
            }
            let (clock, limits) = (Clock::begin(), Limits { bytes: 1 << 40, entries: 10 });
            let mut policy = Policy::new(limits);
            for (digest, known) in parse(&log).0 {
                let last = Moment::from_the_wall(known.last_use, clock.now(), SystemTime::now()).unwrap_or(clock.now());
                let usage = Usage { last, uses: known.uses, established: known.established };
                policy.restore(digest, known.size, usage, known.turn);
            }
            let held = policy.len();
            let gone = policy.shrink().len();
            prop_assert!(policy.used() <= limits.bytes && policy.len() <= limits.entries && policy.len() + gone == held);
        }

        #[test]
        fn garbage_is_no_row(bytes in proptest::collection::vec(any::<u8>(), 0..400), has_header: bool, bit in 0..ROW * 8) {
            let mut log = if has_header { header().to_vec() } else { Vec::new() };
            log.extend(&bytes);
            let (blobs, _) = parse(&log);
            prop_assert!(blobs.is_empty());
            let mut turned = row(7).encode();
            turned[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Row::decode(&turned), None);
        }
    }
}

//! The catalog's journal: an append-only file, rewritten once half of it may be superseded. All calls block.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_runtime::directory_lock::DirectoryLock;

use super::record::{JournalContents, Record};

/// Bytes that may be appended before the next rewrite, however small the file was.
const MIN_GROWTH: u64 = 1 << 20;

/// Attempts to read the file, and the pause between them.
const READ_ATTEMPTS: u32 = 3;
const READ_BACKOFF: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    /// `None` before the first rewrite by this process and after a failed write, whose bytes are not trusted.
    file: Option<File>,
    bytes: u64,
    /// The size at which the file is rewritten.
    rewrite_at: u64,
    /// Reading failed, and the file may be intact: it is renamed before the rewrite.
    is_unread: bool,
    /// Released after the file is closed.
    _lock: DirectoryLock,
}

impl Journal {
    pub(super) fn new(path: &Path, lock: DirectoryLock) -> Self {
        Self { path: path.to_owned(), file: None, bytes: 0, rewrite_at: 0, is_unread: false, _lock: lock }
    }

    /// Reads the file, with retries. On an I/O error the records before it are returned too.
    pub(super) fn read(&mut self) -> (JournalContents, io::Result<()>) {
        for _ in 1..READ_ATTEMPTS {
            if let (stored, Ok(())) = self.try_read() {
                return (stored, Ok(()));
            }
            std::thread::sleep(READ_BACKOFF);
        }
        let (stored, result) = self.try_read();
        self.is_unread = result.is_err();
        (stored, result)
    }

    fn try_read(&self) -> (JournalContents, io::Result<()>) {
        let mut stored = JournalContents::default();
        let result = match File::open(&self.path) {
            Ok(file) => read_lines(&mut BufReader::new(file), &mut stored),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        stored.finish();
        (stored, result)
    }

    /// Whether the file has to be rewritten before the next append.
    pub(super) fn needs_rewrite(&self) -> bool {
        self.file.is_none() || self.bytes >= self.rewrite_at
    }

    /// Replaces the file atomically and durably.
    ///
    /// # Errors
    /// An I/O error; the old file is intact.
    pub(super) fn rewrite(&mut self, records: impl Iterator<Item = Record>) -> io::Result<()> {
        self.file = None;
        if self.is_unread {
            fs::rename(&self.path, self.path.with_extension("unread"))?;
            self.is_unread = false;
        }
        let unfinished = self.path.with_extension("unfinished");
        let written = self.write_whole(&unfinished, records);
        if written.is_err() {
            // The next attempt truncates what cannot be removed.
            let _ = fs::remove_file(&unfinished);
        }
        let (file, bytes) = written?;
        (self.file, self.bytes, self.rewrite_at) = (Some(file), bytes, 2 * bytes + MIN_GROWTH);
        Ok(())
    }

    fn write_whole(&self, unfinished: &Path, records: impl Iterator<Item = Record>) -> io::Result<(File, u64)> {
        let mut file = File::create(unfinished)?;
        let (mut lines, mut bytes) = (Vec::new(), 0);
        for record in records {
            record.write_line(&mut lines);
            if lines.len() as u64 >= MIN_GROWTH {
                file.write_all(&lines)?;
                bytes += lines.len() as u64;
                lines.clear();
            }
        }
        file.write_all(&lines)?;
        file.sync_all()?;
        fs::rename(unfinished, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        Ok((file, bytes + lines.len() as u64))
    }

    /// Appends records durably.
    ///
    /// # Errors
    /// An I/O error, or the file has to be rewritten first. Some of the records may have been written.
    pub(super) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let mut file = self.file.take().ok_or_else(|| io::Error::other("the file has to be rewritten first"))?;
        let mut lines = Vec::new();
        records.iter().for_each(|record| record.write_line(&mut lines));
        file.write_all(&lines)?;
        file.sync_data()?;
        self.bytes += lines.len() as u64;
        self.file = Some(file);
        Ok(())
    }
}

fn read_lines(file: &mut impl BufRead, stored: &mut JournalContents) -> io::Result<()> {
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
        // A line without an end was cut off by a crash; it was never acknowledged.
        if line.pop_if(|last| *last == b'\n').is_some() {
            stored.apply_line(&line);
        }
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::record::EntryRecord;

    fn record(number: u64, generation: u64) -> Record {
        let row = EntryRecord {
            highest: (generation, 1),
            origin: "o:1".to_owned(),
            since: 1,
            validated: 1,
            descriptor: Some("x".repeat(1000)),
            purged: None,
            offered: None,
        };
        Record::Service { service: format!("s{number}").parse().unwrap(), row }
    }

    fn open(dir: &Path) -> Journal {
        Journal::new(&dir.join("catalog.log"), DirectoryLock::take(dir).unwrap().0)
    }

    #[test]
    fn records_survive_a_restart_and_a_truncated_line_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = open(dir.path());
        assert!(journal.needs_rewrite() && journal.append(&[record(1, 1)]).is_err());
        journal.rewrite((0..3).map(|number| record(number, 1))).unwrap();
        journal.append(&[record(1, 2), record(3, 1)]).unwrap();
        let path = journal.path.clone();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 500]).unwrap();
        let (stored, result) = open(dir.path()).read();
        assert!(result.is_ok() && stored.damaged == 0);
        assert_eq!((stored.entries.len(), stored.entries["s1"].highest), (3, (2, 1)));
    }

    #[test]
    fn an_unreadable_file_is_renamed_and_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = open(dir.path());
        fs::create_dir(&journal.path).unwrap();
        assert!(journal.read().1.is_err());
        journal.rewrite(std::iter::once(record(1, 1))).unwrap();
        assert!(dir.path().join("catalog.unread").is_dir() && journal.path.is_file());
    }

    #[test]
    fn the_file_is_rewritten_once_half_of_it_may_be_superseded() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = open(dir.path());
        journal.rewrite(std::iter::once(record(0, 1))).unwrap();
        let mut generation = 1;
        while !journal.needs_rewrite() {
            generation += 1;
            journal.append(&[record(0, generation)]).unwrap();
        }
        let size = || fs::metadata(dir.path().join("catalog.log")).unwrap().len();
        assert!(size() >= MIN_GROWTH && size() < 2 * MIN_GROWTH);
        journal.rewrite(std::iter::once(record(0, generation))).unwrap();
        assert!(size() < 2000 && !journal.needs_rewrite());
    }
}

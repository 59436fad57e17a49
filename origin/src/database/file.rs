//! A database's file, opened again after the disk failed it.
//!
//! After the first error of the disk redb answers nothing more, well as the disk may be again, until the database is
//! opened anew. Whoever needs it next does that, at most once a second while it fails. While the disk can be read and not
//! written, what is there is read on. Every call blocks.

use std::io::ErrorKind;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use redb::backends::InMemoryBackend;
use redb::{
    Database, ReadTransaction, ReadableDatabase, StorageBackend, StorageError, TransactionError, WriteTransaction,
};

use super::{DatabaseError, OfDatabase};
use super::{new_file, overlay};

/// The shortest time between two attempts to open it that fail.
const PAUSE: Duration = Duration::from_secs(1);

/// A database of a data directory.
#[derive(Debug)]
pub(crate) struct DatabaseFile {
    path: PathBuf,
    /// It is looked at and nothing else: it is never opened to be written.
    is_looked_at: bool,
    opened: RwLock<Opened>,
}

#[derive(Debug)]
struct Opened {
    database: Option<Database>,
    /// What is written to it is not kept: it is for reading, while the disk cannot be written.
    is_read_only: bool,
    /// How often it was closed: an error of a database that was closed since says nothing of this one.
    closed: u64,
    /// Why it cannot be written, and when opening it was tried last.
    trouble: Option<(String, Instant)>,
}

impl DatabaseFile {
    /// Opens the file, or makes a new one where there is none.
    pub(crate) fn open(path: &Path) -> Result<Self, DatabaseError> {
        let database = guarded(|| match std::fs::metadata(path) {
            Ok(found) if found.is_file() && found.len() == 0 => Err(DatabaseError::Empty),
            // A link to a disk that is not there is no place for a new one.
            Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => new_file::create(path),
            _ => Ok(Database::open(path)?),
        })?;
        Ok(Self::of(path, database, false))
    }

    /// One that is nowhere on the disk.
    #[cfg(any(fuzzing, test))]
    pub(crate) fn in_memory() -> Result<Self, DatabaseError> {
        let database = redb::Builder::new().create_with_backend(InMemoryBackend::new())?;
        Ok(Self::of(Path::new("memory"), database, true))
    }

    /// Looks at the file without changing a byte of it: what is written is gone with this. Every page is compared with
    /// its checksum; false: some had to be repaired. A process that holds the database must not be running.
    pub(crate) fn look(path: &Path) -> Result<(Self, bool), DatabaseError> {
        let (database, is_sound) = guarded(|| checked(overlay::open(path)?))?;
        Ok((Self::of(path, database, true), is_sound))
    }

    /// Looks at a copy in memory, with every page compared with its checksum: a process that holds the database may run.
    /// What it was writing meanwhile is an error, or as it was before.
    pub(crate) fn copy_of(path: &Path) -> Result<Self, DatabaseError> {
        let bytes = std::fs::read(path)?;
        let (database, _) = guarded(|| {
            let memory = InMemoryBackend::new();
            memory.set_len(bytes.len() as u64)?;
            memory.write(0, &bytes)?;
            checked(redb::Builder::new().create_with_backend(memory)?)
        })?;
        Ok(Self::of(path, database, true))
    }

    /// Opens the file with every page compared with its checksum, and repaired if need be: false then.
    pub(crate) fn repair(path: &Path) -> Result<(Self, bool), DatabaseError> {
        let (database, is_sound) = guarded(|| checked(Database::open(path)?))?;
        Ok((Self::of(path, database, false), is_sound))
    }

    pub(super) fn of(path: &Path, database: Database, is_looked_at: bool) -> Self {
        let opened = Opened { database: Some(database), is_read_only: false, closed: 0, trouble: None };
        Self { path: path.to_owned(), is_looked_at, opened: RwLock::new(opened) }
    }

    /// Reads.
    pub(crate) fn read<T, E: OfDatabase>(&self, act: impl Fn(&ReadTransaction) -> Result<T, E>) -> Result<T, E> {
        self.act(false, |database| act(&database.begin_read().map_err(DatabaseError::from)?))
    }

    /// Writes, all or nothing; when this returns it is durable.
    pub(crate) fn write<T, E: OfDatabase>(&self, act: impl Fn(&WriteTransaction) -> Result<T, E>) -> Result<T, E> {
        self.act(true, |database| {
            let mut transaction = database.begin_write().map_err(|error| match error {
                // A commit broke off with a fault in the program, and took with it what redb knows of free pages.
                TransactionError::Storage(StorageError::Corrupted(_)) => redb::Error::PreviousIo.into(),
                error => DatabaseError::from(error),
            })?;
            // So that a start after a kill need not walk through the whole file.
            transaction.set_quick_repair(true);
            let done = act(&transaction)?;
            transaction.commit().map_err(DatabaseError::from)?;
            Ok(done)
        })
    }

    fn act<T, E: OfDatabase>(&self, to_write: bool, act: impl Fn(&Database) -> Result<T, E>) -> Result<T, E> {
        let mut may_try_again = true;
        loop {
            self.be_open(to_write)?;
            let opened = self.opened();
            let Some(database) = opened.database(to_write) else { return Err(opened.left_alone().into()) };
            let (result, closed) = (act(database), opened.closed);
            drop(opened);
            let failed = result.as_ref().err().and_then(OfDatabase::of_database).filter(|error| error.is_the_disk_s());
            let Some(error) = failed else { return result };
            self.close(closed, error);
            // The error may be that of another's transaction, which ended this one's database.
            if !(may_try_again && error.came_before()) {
                return result;
            }
            may_try_again = false;
        }
    }

    fn close(&self, closed: u64, error: &DatabaseError) {
        let mut opened = self.opened_mut();
        if opened.closed == closed {
            let file = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
            tracing::warn!(%error, file, "the disk fails a database; it is opened anew");
            opened.database = None;
            opened.closed += 1;
        }
    }

    fn be_open(&self, to_write: bool) -> Result<(), DatabaseError> {
        if self.opened().database(to_write).is_some() {
            return Ok(());
        }
        let mut opened = self.opened_mut();
        if opened.database(to_write).is_some() {
            return Ok(());
        }
        let just_tried = opened.trouble.as_ref().is_some_and(|(_, tried)| tried.elapsed() < PAUSE);
        if just_tried || self.is_looked_at {
            return Err(opened.left_alone());
        }
        let error = match guarded(|| Ok(Database::open(&self.path)?)) {
            Ok(database) => {
                (opened.database, opened.is_read_only, opened.trouble) = (Some(database), false, None);
                return Ok(());
            }
            Err(error) => error,
        };
        opened.trouble = Some((error.to_string(), Instant::now()));
        if opened.database.is_none() {
            opened.database = guarded(|| overlay::open(&self.path)).ok();
            opened.is_read_only = true;
        }
        if opened.database(to_write).is_some() { Ok(()) } else { Err(error) }
    }

    fn opened(&self) -> RwLockReadGuard<'_, Opened> {
        self.opened.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened_mut(&self) -> RwLockWriteGuard<'_, Opened> {
        self.opened.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Opened {
    /// The database, if it is open and good for that.
    fn database(&self, to_write: bool) -> Option<&Database> {
        self.database.as_ref().filter(|_| !(to_write && self.is_read_only))
    }

    fn left_alone(&self) -> DatabaseError {
        DatabaseError::Closed(self.trouble.as_ref().map_or("the disk failed it", |(reason, _)| reason).to_owned())
    }
}

/// Compares every page with its checksum, and repairs what can be.
fn checked(mut database: Database) -> Result<(Database, bool), DatabaseError> {
    let is_sound = database.check_integrity()?;
    Ok((database, is_sound))
}

/// redb asserts what it expects of its own file; a file that breaks it is a damaged one.
fn guarded<T>(open: impl FnOnce() -> Result<T, DatabaseError>) -> Result<T, DatabaseError> {
    std::panic::catch_unwind(AssertUnwindSafe(open))
        .unwrap_or_else(|_| Err(DatabaseError::Closed("it contradicts itself".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::faulty::Faults;
    use redb::TableDefinition;
    use std::sync::atomic::Ordering;

    const NUMBERS: TableDefinition<'_, u64, u64> = TableDefinition::new("numbers");

    impl OfDatabase for DatabaseError {
        fn of_database(&self) -> Option<&DatabaseError> {
            Some(self)
        }
    }

    fn add(file: &DatabaseFile, number: u64) -> Result<(), DatabaseError> {
        file.write(|transaction| Ok(transaction.open_table(NUMBERS)?.insert(number, number).map(drop)?))
    }

    #[test]
    fn an_empty_file_is_no_database_and_a_kill_never_leaves_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.redb");
        // What a process left that was killed while it made one.
        std::fs::write(dir.path().join("x.redb.new"), "").unwrap();
        add(&DatabaseFile::open(&path).unwrap(), 1).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);

        std::fs::write(&path, "").unwrap();
        assert!(matches!(DatabaseFile::open(&path), Err(DatabaseError::Empty)));
        assert!(std::fs::read(&path).unwrap().is_empty(), "it stays what it is");
    }

    #[test]
    fn after_a_fault_within_a_commit_it_is_written_without_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.redb");
        drop(DatabaseFile::open(&path).unwrap());
        for writes in 1..20 {
            let faults = Faults::default();
            let (file, counter) = (DatabaseFile::faulty(&path, &faults), &faults.panics_at_write);
            add(&file, 100 * writes).unwrap();
            counter.store(usize::try_from(writes).unwrap(), Ordering::SeqCst);
            let broke_off = std::panic::catch_unwind(AssertUnwindSafe(|| add(&file, 100 * writes + 1)));
            counter.store(0, Ordering::SeqCst);
            add(&file, 100 * writes + 2).unwrap();
            if let Ok(done) = broke_off {
                done.unwrap();
                assert!(writes > 1, "no commit broke off");
                return;
            }
        }
        panic!("every commit broke off");
    }
}

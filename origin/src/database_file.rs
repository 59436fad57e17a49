//! A database's file, opened again after the disk failed it.
//!
//! After the first error of the disk redb answers nothing more, well as the disk may be again, until the database is
//! opened anew. Whoever needs it next does that, at most once a second while it fails. Every call blocks.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use redb::{Database, ReadTransaction, ReadableDatabase, WriteTransaction};

/// The shortest time between two attempts to open it that fail.
const PAUSE: Duration = Duration::from_secs(1);

/// A database of a data directory.
#[derive(Debug)]
pub(crate) struct DatabaseFile {
    path: PathBuf,
    opened: RwLock<Opened>,
}

#[derive(Debug)]
struct Opened {
    database: Option<Database>,
    /// How often it was closed: an error of a database that was closed since says nothing of this one.
    closed: u64,
    /// Why it is closed, and when opening it was tried last.
    trouble: Option<(String, Instant)>,
}

/// A database cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseError {
    #[error("{0}")]
    Failed(Box<redb::Error>),
    #[error("it cannot be opened just now: {0}")]
    Closed(String),
}

impl<E: Into<redb::Error>> From<E> for DatabaseError {
    fn from(error: E) -> Self {
        Self::Failed(Box::new(error.into()))
    }
}

/// The error of whoever reads or writes: the database's, or their own.
pub(crate) trait OfDatabase: From<DatabaseError> {
    fn of_database(&self) -> Option<&DatabaseError>;
}

impl DatabaseError {
    /// Whether the disk has failed, after which the database is of no use until it is opened anew.
    fn is_the_disk_s(&self) -> bool {
        use redb::Error::{DatabaseClosed, Io, LockPoisoned, PreviousIo};
        matches!(self, Self::Failed(error) if matches!(**error, Io(_) | PreviousIo | LockPoisoned(_) | DatabaseClosed))
    }

    /// Whether it failed before this was tried.
    fn came_before(&self) -> bool {
        matches!(self, Self::Failed(error) if matches!(**error, redb::Error::PreviousIo | redb::Error::DatabaseClosed))
    }
}

impl DatabaseFile {
    /// Opens the file, or makes a new one.
    pub(crate) fn open(path: &Path) -> Result<Self, DatabaseError> {
        let database = guarded(|| Ok(Database::create(path)?))?;
        let opened = Opened { database: Some(database), closed: 0, trouble: None };
        Ok(Self { path: path.to_owned(), opened: RwLock::new(opened) })
    }

    /// Reads.
    pub(crate) fn read<T, E: OfDatabase>(&self, act: impl Fn(&ReadTransaction) -> Result<T, E>) -> Result<T, E> {
        self.act(|database| act(&database.begin_read().map_err(DatabaseError::from)?))
    }

    /// Writes, all or nothing; when this returns it is durable.
    pub(crate) fn write<T, E: OfDatabase>(&self, act: impl Fn(&WriteTransaction) -> Result<T, E>) -> Result<T, E> {
        self.act(|database| {
            let mut transaction = database.begin_write().map_err(DatabaseError::from)?;
            // So that a start after a kill need not walk through the whole file.
            transaction.set_quick_repair(true);
            let done = act(&transaction)?;
            transaction.commit().map_err(DatabaseError::from)?;
            Ok(done)
        })
    }

    fn act<T, E: OfDatabase>(&self, act: impl Fn(&Database) -> Result<T, E>) -> Result<T, E> {
        let mut may_try_again = true;
        loop {
            self.be_open()?;
            let opened = self.opened();
            let Some(database) = &opened.database else { return Err(opened.left_alone().into()) };
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

    fn be_open(&self) -> Result<(), DatabaseError> {
        if self.opened().database.is_some() {
            return Ok(());
        }
        let mut opened = self.opened_mut();
        if opened.database.is_none() {
            if opened.trouble.as_ref().is_some_and(|(_, tried)| tried.elapsed() < PAUSE) {
                return Err(opened.left_alone());
            }
            match guarded(|| Ok(Database::open(&self.path)?)) {
                Ok(database) => {
                    opened.database = Some(database);
                    opened.trouble = None;
                }
                Err(error) => {
                    opened.trouble = Some((error.to_string(), Instant::now()));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn opened(&self) -> RwLockReadGuard<'_, Opened> {
        self.opened.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened_mut(&self) -> RwLockWriteGuard<'_, Opened> {
        self.opened.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Opened {
    fn left_alone(&self) -> DatabaseError {
        DatabaseError::Closed(self.trouble.as_ref().map_or("the disk failed it", |(reason, _)| reason).to_owned())
    }
}

/// redb asserts what it expects of its own file; a file that breaks it is a damaged one.
fn guarded(open: impl FnOnce() -> Result<Database, DatabaseError>) -> Result<Database, DatabaseError> {
    std::panic::catch_unwind(AssertUnwindSafe(open))
        .unwrap_or_else(|_| Err(DatabaseError::Closed("it contradicts itself".to_owned())))
}

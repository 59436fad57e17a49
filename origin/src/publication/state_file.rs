//! The database's file, opened again after the disk failed it.
//!
//! After the first error of the disk redb answers nothing more, well as the disk may be again, until the database is
//! opened anew. Whoever needs it next does that, at most once a second while it fails. Every call blocks.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use redb::{Database, ReadTransaction, ReadableDatabase, WriteTransaction};

use super::state::StateError;

/// The shortest time between two attempts to open it that fail.
const PAUSE: Duration = Duration::from_secs(1);

/// The database.
#[derive(Debug)]
pub(super) struct StateFile {
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

impl StateFile {
    /// Opens the file, or makes a new one.
    pub(super) fn open(path: &Path) -> Result<Self, StateError> {
        let database = guarded(|| Ok(Database::create(path)?))?;
        let opened = Opened { database: Some(database), closed: 0, trouble: None };
        Ok(Self { path: path.to_owned(), opened: RwLock::new(opened) })
    }

    /// Reads.
    pub(super) fn read<T>(&self, act: impl Fn(&ReadTransaction) -> Result<T, StateError>) -> Result<T, StateError> {
        self.act(|database| act(&database.begin_read()?))
    }

    /// Writes, all or nothing; when this returns it is durable.
    pub(super) fn write<T>(&self, act: impl Fn(&WriteTransaction) -> Result<T, StateError>) -> Result<T, StateError> {
        self.act(|database| {
            let mut transaction = database.begin_write()?;
            // So that a start after a kill need not walk through the whole file.
            transaction.set_quick_repair(true);
            let done = act(&transaction)?;
            transaction.commit()?;
            Ok(done)
        })
    }

    fn act<T>(&self, act: impl Fn(&Database) -> Result<T, StateError>) -> Result<T, StateError> {
        let mut may_try_again = true;
        loop {
            self.be_open()?;
            let opened = self.opened();
            let Some(database) = &opened.database else { return Err(opened.left_alone()) };
            let (result, closed) = (act(database), opened.closed);
            drop(opened);
            match result {
                Err(error) if error.is_the_disk_s() => {
                    self.close(closed, &error);
                    // The error may be that of another's transaction, which ended this one's database.
                    if !(may_try_again && error.came_before()) {
                        return Err(error);
                    }
                    may_try_again = false;
                }
                result => return result,
            }
        }
    }

    fn close(&self, closed: u64, error: &StateError) {
        let mut opened = self.opened_mut();
        if opened.closed == closed {
            tracing::warn!(%error, "the disk fails the state; it is opened anew");
            opened.database = None;
            opened.closed += 1;
        }
    }

    fn be_open(&self) -> Result<(), StateError> {
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
    fn left_alone(&self) -> StateError {
        StateError::Closed(self.trouble.as_ref().map_or("the disk failed it", |(reason, _)| reason).to_owned())
    }
}

/// redb asserts what it expects of its own file; a file that breaks it is a damaged one.
fn guarded(open: impl FnOnce() -> Result<Database, StateError>) -> Result<Database, StateError> {
    std::panic::catch_unwind(AssertUnwindSafe(open))
        .unwrap_or_else(|_| Err(StateError::Closed("it contradicts itself".to_owned())))
}

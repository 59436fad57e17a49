//! The table's database, opened again when its file could not be read or written.
//!
//! After the first error of the disk redb answers nothing more, well as the disk may be again, until the database is
//! opened anew. That is done at once, so that what is on disk can be read; after it the disk is left alone for a pause
//! before the next write is tried. Every call blocks.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use redb::Database;

use super::store::StoreError;

/// The first pause after an error; it doubles from one failed write to the next.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause, unless opening takes long.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The pause is at least this many times as long as the opening took: a large table is checked in full each time.
const PAUSE_TO_OPENING: u32 = 10;

/// The database.
#[derive(Debug)]
pub(super) struct TableFile {
    path: PathBuf,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    /// `None`: it could not be opened again.
    database: Option<Database>,
    trouble: Option<Trouble>,
}

/// What became of an error of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trouble {
    reason: String,
    /// Failed attempts since the last write that succeeded.
    attempts: u32,
    /// The disk is left alone until then.
    until: Instant,
}

impl TableFile {
    pub(super) fn new(path: &Path, database: Database) -> Self {
        Self { path: path.to_owned(), state: RwLock::new(State { database: Some(database), trouble: None }) }
    }

    /// Reads. What the disk fails is tried once more on the database opened anew.
    pub(super) fn read<T>(&self, act: impl Fn(&Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        match self.read_once(&act) {
            Err(error) if error.is_the_disk_s() => self.act(act),
            result => result,
        }
    }

    /// Reads what cannot be begun again.
    pub(super) fn read_once<T>(&self, act: impl FnOnce(&Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.after(self.act(act))
    }

    /// Writes, unless the disk is left alone just now.
    pub(super) fn write(&self, act: impl Fn(&Database) -> Result<(), StoreError>) -> Result<(), StoreError> {
        if let Some(trouble) = &self.state().trouble
            && Instant::now() < trouble.until
        {
            return Err(trouble.left_alone());
        }
        let mut written = self.act(&act);
        if matches!(written, Err(StoreError::LeftAlone(_))) {
            // It could not be opened when that was tried last.
            self.open_anew(None);
            written = self.act(&act);
        }
        if written.is_ok() && self.state().trouble.is_some() {
            tracing::info!("the service table can be written again");
            self.state_mut().trouble = None;
        }
        self.after(written)
    }

    /// For how long the disk is still left alone: no write is tried before.
    pub(super) fn left_alone_for(&self) -> Duration {
        let until = self.state().trouble.as_ref().map(|trouble| trouble.until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    fn act<T>(&self, act: impl FnOnce(&Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let state = self.state();
        match (&state.database, &state.trouble) {
            (Some(database), _) => act(database),
            (None, Some(trouble)) => Err(trouble.left_alone()),
            (None, None) => Err(StoreError::LeftAlone("it is closed".to_owned())),
        }
    }

    fn after<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &result
            && error.is_the_disk_s()
        {
            self.open_anew(Some(error));
        }
        result
    }

    /// Opens it anew, unless that was tried not long ago.
    fn open_anew(&self, error: Option<&StoreError>) {
        let mut state = self.state_mut();
        let before = state.trouble.take();
        let begun = Instant::now();
        if let Some(trouble) = before.as_ref().filter(|trouble| begun < trouble.until) {
            state.trouble = Some(trouble.clone());
            return;
        }
        // redb locks its file: it must be closed before it can be opened.
        state.database = None;
        let opened = std::panic::catch_unwind(|| Database::open(&self.path).map_err(StoreError::from));
        let opened = opened.unwrap_or_else(|_| Err(StoreError::LeftAlone("it contradicts itself".to_owned())));
        let reason = match (error, &before, &opened) {
            (_, _, Err(error)) | (Some(error), _, _) => error.to_string(),
            (None, Some(before), _) => before.reason.clone(),
            (None, None, _) => String::new(),
        };
        let is_open = opened.is_ok();
        // Once per reason: a disk that is full for an hour is one line, not a hundred.
        if before.as_ref().is_some_and(|before| before.reason == reason) {
            tracing::debug!(%reason, is_open, "the disk fails the service table again");
        } else {
            tracing::warn!(%reason, is_open, "the disk fails the service table; it was opened anew");
        }
        state.database = opened.ok();
        let attempts = before.map_or(0, |before| before.attempts.saturating_add(1));
        let now = Instant::now();
        let until = now + pause(attempts, now.saturating_duration_since(begun));
        state.trouble = Some(Trouble { reason, attempts, until });
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trouble {
    fn left_alone(&self) -> StoreError {
        StoreError::LeftAlone(self.reason.clone())
    }
}

/// How long the disk is left alone after so many failed attempts before, the last of which took so long to open.
fn pause(before: u32, opening: Duration) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << before.min(16)).min(LONGEST_PAUSE);
    doubled.max(opening.saturating_mul(PAUSE_TO_OPENING))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_grow_with_what_an_opening_costs() {
        let pauses: Vec<_> = (0..8).map(|before| pause(before, Duration::ZERO).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(pause(u32::MAX, Duration::ZERO), LONGEST_PAUSE);
        assert_eq!(pause(0, Duration::from_secs(5)), Duration::from_secs(50));
    }
}

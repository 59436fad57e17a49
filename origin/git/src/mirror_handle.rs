//! Opens a repository's mirror when it is first needed, and replaces it when it is damaged. All functions block.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use weir_upstream::remove_siblings;

use super::lfs::LfsObjects;
use super::mirror::{Mirror, MirrorError};

/// The time between two replacements of a mirror. If the new clone has the same damage, the upstream is the cause and
/// another clone would not help.
const MIN_REPLACE_INTERVAL: Duration = Duration::from_secs(3600);

/// The time between two full checks of a mirror, which read every byte.
const MIN_FULL_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// The extension of a replaced mirror, in place of `git`. It is removed once the new clone is complete.
const DAMAGED_EXTENSION: &str = "damaged";

/// The path of a repository's mirror, and the mirror itself once it is open.
pub struct MirrorHandle {
    path: PathBuf,
    /// The largest object to read, in bytes.
    max_object: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    opened: Option<Arc<Mirror>>,
    suspicion: Option<Suspicion>,
    last_full_check: Option<Instant>,
    replaced: Option<Instant>,
}

/// Why a mirror is not trusted.
#[derive(Debug, Clone)]
enum Suspicion {
    /// An operation failed that damage would explain; a full check will tell.
    Unconfirmed,
    /// The mirror is damaged, with a description.
    Damaged(String),
}

/// The mirror for a poll.
pub struct MirrorForPoll {
    /// The mirror.
    pub mirror: Arc<Mirror>,
    /// The damage of the mirror that was just replaced by this empty one.
    pub replaced: Option<String>,
}

impl MirrorHandle {
    /// The mirror in this directory. It is not opened yet. `max_object`: the largest object to read, in bytes.
    pub fn new(path: PathBuf, max_object: u64) -> Self {
        Self { path, max_object, state: Mutex::default() }
    }

    /// Whether a mirror exists; false before the first clone.
    pub fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// When its refs last changed.
    pub fn refs_changed_at(&self) -> io::Result<SystemTime> {
        Mirror::refs_changed_at(&self.path)
    }

    /// The LFS objects of the mirror.
    pub fn lfs_objects(&self) -> LfsObjects {
        LfsObjects::of_mirror(&self.path)
    }

    /// Opens the mirror for reading. After an I/O error the next call tries again; a damaged mirror is replaced by the
    /// next poll only.
    pub fn get(&self) -> Result<Arc<Mirror>, MirrorError> {
        let mut state = self.state();
        if let Some(mirror) = &state.opened {
            return Ok(mirror.clone());
        }
        let opened = Mirror::open(&self.path, self.max_object).inspect_err(|error| state.record_damage(error))?;
        Ok(state.opened.insert(Arc::new(opened)).clone())
    }

    /// Opens the mirror for the only poll that runs. A damaged one is replaced by an empty one.
    pub fn for_poll(&self, now: Instant) -> Result<MirrorForPoll, MirrorError> {
        let damage = match self.get() {
            Ok(mirror) => match self.take_damage() {
                // Objects missing soon after a clone may come with the next fetch.
                Some(cause) if self.state().may_replace(now) => cause,
                _ => return Ok(MirrorForPoll { mirror, replaced: None }),
            },
            Err(MirrorError::Damaged { cause }) if self.state().may_replace(now) => cause,
            Err(error) => return Err(error),
        };
        let damaged = self.path.with_extension(DAMAGED_EXTENSION);
        let failed = |error: io::Error| MirrorError::Local { what: "be replaced", cause: error.to_string() };
        // Without the lock, because this may take a while.
        remove(&damaged).map_err(failed)?;
        let mut state = self.state();
        state.opened = None;
        state.suspicion = None;
        fs::rename(&self.path, &damaged).map_err(failed)?;
        state.replaced = Some(now);
        let mirror = state.opened.insert(Arc::new(Mirror::open(&self.path, self.max_object)?)).clone();
        // Their digests are verified when they are read, so they need not be fetched again.
        LfsObjects::of_mirror(&damaged).move_to(&LfsObjects::of_mirror(&self.path));
        Ok(MirrorForPoll { mirror, replaced: Some(damage) })
    }

    /// Takes the known damage, if any.
    fn take_damage(&self) -> Option<String> {
        match self.state().suspicion.take_if(|suspicion| matches!(suspicion, Suspicion::Damaged(_)))? {
            Suspicion::Damaged(cause) => Some(cause),
            Suspicion::Unconfirmed => None,
        }
    }

    /// Whether a full check has to explain a failure. Never waits for the disk.
    pub fn needs_full_check(&self) -> bool {
        self.try_state().is_some_and(|state| matches!(state.suspicion, Some(Suspicion::Unconfirmed)))
    }

    /// Runs a full check until `stop` is set. The next poll replaces a damaged mirror.
    pub fn full_check(&self, now: Instant, stop: &AtomicBool) {
        // A mirror that cannot be opened is already recorded as damaged, or the next call tries again.
        let Ok(mirror) = self.get() else { return };
        {
            let mut state = self.state();
            state.last_full_check = Some(now);
            state.suspicion.take_if(|suspicion| matches!(suspicion, Suspicion::Unconfirmed));
        }
        // Without the lock, because this takes seconds per gigabyte and others want to read meanwhile.
        if let Err(error) = mirror.full_check_until(stop) {
            self.state().record_damage(&error);
        }
    }

    /// Records a failure that damage would explain: a full check runs before the next poll, unless one ran recently.
    pub fn mark_suspect(&self, now: Instant) {
        let mut state = self.state();
        let recently = state.last_full_check.is_some_and(|checked| now < checked + MIN_FULL_CHECK_INTERVAL);
        if state.suspicion.is_none() && !recently {
            state.suspicion = Some(Suspicion::Unconfirmed);
        }
    }

    /// Records that the mirror can no longer follow its upstream: the next poll replaces it.
    pub fn mark_unusable(&self, cause: String) {
        self.state().suspicion = Some(Suspicion::Damaged(cause));
    }

    /// Whether an object that could not be used is missing or broken in the mirror. Damage is recorded for the next
    /// poll.
    pub fn check_object(&self, object: &str) -> bool {
        let checked = self.get().and_then(|mirror| mirror.check_object(object));
        let Err(error) = checked else { return false };
        self.state().record_damage(&error);
        matches!(error, MirrorError::Damaged { .. })
    }

    /// Whether the mirror has to be replaced or checked. Never waits for the disk.
    pub fn needs_poll(&self, now: Instant) -> bool {
        self.try_state().is_some_and(|state| match &state.suspicion {
            None => false,
            Some(Suspicion::Unconfirmed) => true,
            Some(Suspicion::Damaged(_)) => state.may_replace(now),
        })
    }

    /// Removes the repository's mirrors of former URLs and replaced ones. Must be called only when this one is
    /// complete.
    pub fn remove_siblings(&self) {
        if remove_siblings(&self.path, &["git", DAMAGED_EXTENSION]) > 0 {
            tracing::info!("removed a mirror of a former URL, or one that was damaged");
        }
    }

    /// Removes all mirrors of the repository. Nothing may use them any more.
    pub fn remove_all(&self) {
        let Some(folder) = self.path.parent() else { return };
        match remove(folder) {
            Ok(()) => {
                tracing::info!(path = %folder.display(), "removed the mirror of a deleted repository");
            }
            Err(error) => tracing::warn!(
                path = %folder.display(), %error, "the mirror of a deleted repository cannot be removed"
            ),
        }
    }

    /// `None` while another thread opens the mirror, which includes a quick check.
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn record_damage(&mut self, error: &MirrorError) {
        if let MirrorError::Damaged { cause } = error {
            self.suspicion = Some(Suspicion::Damaged(cause.clone()));
        }
    }

    fn may_replace(&self, now: Instant) -> bool {
        self.replaced.is_none_or(|last| now >= last + MIN_REPLACE_INTERVAL)
    }
}

fn remove(directory: &std::path::Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> (tempfile::TempDir, MirrorHandle) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mirrors/shop/0.git");
        (dir, MirrorHandle::new(path, 1 << 20))
    }

    #[test]
    fn a_damaged_mirror_is_replaced_at_most_once_an_hour() {
        let (_dir, handle) = handle();
        let now = Instant::now();
        handle.get().unwrap();
        let damaged = |handle: &MirrorHandle| {
            fs::write(handle.path.join("HEAD"), "").unwrap();
            handle.state().opened = None;
            assert!(matches!(handle.get(), Err(MirrorError::Damaged { .. })));
        };
        damaged(&handle);
        assert!(handle.needs_poll(now));
        assert!(handle.for_poll(now).unwrap().replaced.is_some());
        handle.get().unwrap();
        assert!(handle.path.with_extension(DAMAGED_EXTENSION).is_dir());

        damaged(&handle);
        assert!(!handle.needs_poll(now));
        assert!(matches!(handle.for_poll(now), Err(MirrorError::Damaged { .. })));
        let later = now + MIN_REPLACE_INTERVAL;
        assert!(handle.needs_poll(later));
        assert!(handle.for_poll(later).unwrap().replaced.is_some());
        handle.remove_siblings();
        assert!(!handle.path.with_extension(DAMAGED_EXTENSION).exists() && handle.exists());
    }

    #[test]
    fn an_object_that_the_new_clone_lacks_too_does_not_block_polls() {
        let (_dir, handle) = handle();
        let now = Instant::now();
        let absent = "1".repeat(40);
        assert!(handle.check_object(&absent) && handle.needs_poll(now));
        assert!(handle.for_poll(now).unwrap().replaced.is_some());
        assert!(handle.check_object(&absent) && !handle.needs_poll(now));
        assert!(handle.for_poll(now).unwrap().replaced.is_none(), "it is used as it is");
        assert!(!handle.check_object("of an attribute file"));
        assert!(handle.check_object(&absent) && handle.needs_poll(now + MIN_REPLACE_INTERVAL));
    }

    #[test]
    fn a_suspect_mirror_is_checked_in_full_once_an_hour() {
        let (_dir, handle) = handle();
        let now = Instant::now();
        handle.get().unwrap();
        handle.mark_suspect(now);
        assert!(handle.needs_poll(now) && handle.needs_full_check());
        handle.full_check(now, &AtomicBool::new(false));
        assert!(handle.for_poll(now).unwrap().replaced.is_none());
        handle.mark_suspect(now);
        assert!(!handle.needs_poll(now) && !handle.needs_full_check());
        handle.mark_suspect(now + MIN_FULL_CHECK_INTERVAL);
        assert!(handle.needs_poll(now + MIN_FULL_CHECK_INTERVAL));
    }

    #[test]
    fn needs_poll_does_not_wait_while_the_mirror_is_opened() {
        let (_dir, handle) = handle();
        let now = Instant::now();
        handle.mark_suspect(now);
        let opening = handle.state();
        assert!(!handle.needs_poll(now));
        drop(opening);
        assert!(handle.needs_poll(now));
    }
}

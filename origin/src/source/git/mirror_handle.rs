//! A repository's mirror, opened when it is first needed, and set aside when it is damaged. All of this blocks.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use super::lfs::LfsObjects;
use super::mirror::{Mirror, MirrorError};

/// A mirror that was set aside is not set aside again within this time: when the trouble comes back with the clone it
/// is the upstream's, and cloning again and again would not help.
const MIN_REPLACE_INTERVAL: Duration = Duration::from_secs(3600);

/// Every byte of a mirror is read at most this often to find the reason of a fetch that fails.
const MIN_FULL_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// What a mirror that was set aside is called, in place of `git`. It goes when the new one is there.
const DAMAGED_EXTENSION: &str = "damaged";

/// Where a repository's mirror is, and the mirror once it was opened.
pub(super) struct MirrorHandle {
    path: PathBuf,
    /// The largest object that is read.
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
    /// Something failed that damage would explain; a close look will tell.
    Unconfirmed,
    /// It is damaged, and this is how.
    Damaged(String),
}

/// The mirror for a poll.
pub(super) struct MirrorForPoll {
    pub(super) mirror: Arc<Mirror>,
    /// What was wrong with the one before, when it was set aside just now; this one is empty then.
    pub(super) replaced: Option<String>,
}

impl MirrorHandle {
    pub(super) fn new(path: PathBuf, max_object: u64) -> Self {
        Self { path, max_object, state: Mutex::default() }
    }

    /// Whether there is anything to open: nothing, before the first clone.
    pub(super) fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// When its refs last moved.
    pub(super) fn refs_moved_at(&self) -> io::Result<SystemTime> {
        Mirror::refs_moved_at(&self.path)
    }

    /// The LFS objects beside the mirror.
    pub(super) fn lfs_objects(&self) -> LfsObjects {
        LfsObjects::of_mirror(&self.path)
    }

    /// The mirror, to be read. A disk that was full or read-only is tried again; a damaged mirror is left to the next
    /// poll, which alone writes.
    pub(super) fn get(&self) -> Result<Arc<Mirror>, MirrorError> {
        let mut state = self.state();
        if let Some(mirror) = &state.opened {
            return Ok(mirror.clone());
        }
        let opened = Mirror::open(&self.path, self.max_object).inspect_err(|error| state.record_damage(error))?;
        Ok(state.opened.insert(Arc::new(opened)).clone())
    }

    /// The mirror, to be written by the one poll that runs. A damaged one is set aside and an empty one made.
    pub(super) fn for_poll(&self, now: Instant) -> Result<MirrorForPoll, MirrorError> {
        let damage = match self.get() {
            Ok(mirror) => match self.take_damage() {
                // What is still lacking soon after a clone may come with what is fetched next.
                Some(cause) if self.state().may_replace(now) => cause,
                _ => return Ok(MirrorForPoll { mirror, replaced: None }),
            },
            Err(MirrorError::Damaged { cause }) if self.state().may_replace(now) => cause,
            Err(error) => return Err(error),
        };
        let damaged = self.path.with_extension(DAMAGED_EXTENSION);
        let failed = |error: io::Error| MirrorError::Local { what: "be set aside", cause: error.to_string() };
        // Without the lock, because it may take a while.
        remove(&damaged).map_err(failed)?;
        let mut state = self.state();
        state.opened = None;
        state.suspicion = None;
        fs::rename(&self.path, &damaged).map_err(failed)?;
        state.replaced = Some(now);
        let mirror = state.opened.insert(Arc::new(Mirror::open(&self.path, self.max_object)?)).clone();
        // Each is compared with its name when it is read, so they need not be fetched again.
        LfsObjects::of_mirror(&damaged).move_to(&LfsObjects::of_mirror(&self.path));
        Ok(MirrorForPoll { mirror, replaced: Some(damage) })
    }

    /// How it is damaged, if that is known; it is not known any more then.
    fn take_damage(&self) -> Option<String> {
        match self.state().suspicion.take_if(|suspicion| matches!(suspicion, Suspicion::Damaged(_)))? {
            Suspicion::Damaged(cause) => Some(cause),
            Suspicion::Unconfirmed => None,
        }
    }

    /// Whether it gave trouble that only a close look explains. Never waits for the disk.
    pub(super) fn needs_full_check(&self) -> bool {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody opens the mirror, and looks at it as he does.
            Err(TryLockError::WouldBlock) => return false,
        };
        matches!(state.suspicion, Some(Suspicion::Unconfirmed))
    }

    /// Takes a close look, until somebody asks to stop. What is damaged is set aside by the poll that comes next.
    pub(super) fn full_check(&self, now: Instant, stop: &AtomicBool) {
        // What cannot even be opened is known to be damaged then, or will be tried again.
        let Ok(mirror) = self.get() else { return };
        {
            let mut state = self.state();
            state.last_full_check = Some(now);
            state.suspicion.take_if(|suspicion| matches!(suspicion, Suspicion::Unconfirmed));
        }
        // Without the lock, because this takes seconds for each gigabyte and others want to read meanwhile.
        if let Err(error) = mirror.full_check_until(stop) {
            self.state().record_damage(&error);
        }
    }

    /// Something failed that a damaged mirror would explain: a close look is taken before the next poll, unless one was taken
    /// not long ago.
    pub(super) fn mark_suspect(&self, now: Instant) {
        let mut state = self.state();
        let recently = state.last_full_check.is_some_and(|checked| now < checked + MIN_FULL_CHECK_INTERVAL);
        if state.suspicion.is_none() && !recently {
            state.suspicion = Some(Suspicion::Unconfirmed);
        }
    }

    /// The mirror cannot follow its upstream any more: the next poll sets it aside.
    pub(super) fn mark_unusable(&self, cause: String) {
        self.state().suspicion = Some(Suspicion::Damaged(cause));
    }

    /// An object could not be used: whether it is missing or broken in the mirror, which is remembered for the next
    /// poll.
    pub(super) fn check_object(&self, object: &str) -> bool {
        let checked = self.get().and_then(|mirror| mirror.check_object(object));
        let Err(error) = checked else { return false };
        self.state().record_damage(&error);
        matches!(error, MirrorError::Damaged { .. })
    }

    /// Whether a poll would set the mirror aside, or a close look at it come before one. Never waits for the disk: while
    /// somebody opens the mirror it is not told, and the poll comes at its time.
    pub(super) fn needs_poll(&self, now: Instant) -> bool {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        match &state.suspicion {
            None => false,
            Some(Suspicion::Unconfirmed) => true,
            Some(Suspicion::Damaged(_)) => state.may_replace(now),
        }
    }

    /// Removes the mirrors of the same repository at other URLs, and one that was set aside, once this one holds what it
    /// should.
    pub(super) fn remove_siblings(&self) {
        let Some(siblings) = self.path.parent().and_then(|parent| fs::read_dir(parent).ok()) else { return };
        for sibling in siblings.flatten().map(|entry| entry.path()) {
            // A mirror that is being made stands beside as `.<name>.git.new`.
            let is_mirror = sibling.extension().is_some_and(|ending| ending == "git" || ending == DAMAGED_EXTENSION);
            if is_mirror && sibling != self.path && fs::remove_dir_all(&sibling).is_ok() {
                tracing::info!("a mirror of an earlier URL, or one that was damaged, was removed");
            }
        }
    }

    /// Removes all mirrors of the repository. Nobody may use them any more.
    pub(super) fn remove_all(&self) {
        let Some(folder) = self.path.parent() else { return };
        match remove(folder) {
            Ok(()) => {
                tracing::info!(path = %folder.display(), "the mirror of a repository that was deleted was removed");
            }
            Err(error) => tracing::warn!(
                path = %folder.display(), %error, "the mirror of a repository that was deleted cannot be removed"
            ),
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

    fn state() -> (tempfile::TempDir, MirrorHandle) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mirrors/shop/0.git");
        (dir, MirrorHandle::new(path, 1 << 20))
    }

    #[test]
    fn a_damaged_mirror_is_set_aside_once_an_hour_and_removed_when_the_new_one_is_there() {
        let (_dir, state) = state();
        let now = Instant::now();
        state.get().unwrap();
        let damaged = |state: &MirrorHandle| {
            fs::write(state.path.join("HEAD"), "").unwrap();
            state.state().opened = None;
            assert!(matches!(state.get(), Err(MirrorError::Damaged { .. })));
        };
        damaged(&state);
        assert!(state.needs_poll(now));
        assert!(state.for_poll(now).unwrap().replaced.is_some());
        state.get().unwrap();
        assert!(state.path.with_extension(DAMAGED_EXTENSION).is_dir());

        damaged(&state);
        assert!(!state.needs_poll(now));
        assert!(matches!(state.for_poll(now), Err(MirrorError::Damaged { .. })));
        let later = now + MIN_REPLACE_INTERVAL;
        assert!(state.needs_poll(later));
        assert!(state.for_poll(later).unwrap().replaced.is_some());
        state.remove_siblings();
        assert!(!state.path.with_extension(DAMAGED_EXTENSION).exists() && state.exists());
    }

    #[test]
    fn an_object_that_the_clone_lacks_too_stops_no_poll() {
        let (_dir, state) = state();
        let now = Instant::now();
        let absent = "1".repeat(40);
        assert!(state.check_object(&absent) && state.needs_poll(now));
        assert!(state.for_poll(now).unwrap().replaced.is_some());
        assert!(state.check_object(&absent) && !state.needs_poll(now));
        assert!(state.for_poll(now).unwrap().replaced.is_none(), "it is used as it is");
        assert!(!state.check_object("of an attribute file"));
        assert!(state.check_object(&absent) && state.needs_poll(now + MIN_REPLACE_INTERVAL));
    }

    #[test]
    fn mark_suspect_is_looked_at_closely_once_an_hour_and_a_sound_mirror_stays() {
        let (_dir, state) = state();
        let now = Instant::now();
        state.get().unwrap();
        state.mark_suspect(now);
        assert!(state.needs_poll(now) && state.needs_full_check());
        state.full_check(now, &AtomicBool::new(false));
        assert!(state.for_poll(now).unwrap().replaced.is_none());
        state.mark_suspect(now);
        assert!(!state.needs_poll(now) && !state.needs_full_check());
        state.mark_suspect(now + MIN_FULL_CHECK_INTERVAL);
        assert!(state.needs_poll(now + MIN_FULL_CHECK_INTERVAL));
    }

    #[test]
    fn whoever_asks_whether_a_poll_is_wanted_does_not_wait_for_who_opens_the_mirror() {
        let (_dir, state) = state();
        let now = Instant::now();
        state.mark_suspect(now);
        let opening = state.state();
        assert!(!state.needs_poll(now));
        drop(opening);
        assert!(state.needs_poll(now));
    }
}

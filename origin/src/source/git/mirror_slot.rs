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
const SET_ASIDE_GAP: Duration = Duration::from_secs(3600);

/// Every byte of a mirror is read at most this often to find the reason of a fetch that fails.
const CLOSE_LOOK_GAP: Duration = Duration::from_secs(3600);

/// What a mirror that was set aside is called, in place of `git`. It goes when the new one is there.
const SET_ASIDE: &str = "damaged";

/// Where a repository's mirror is, and the mirror once it was opened.
pub(super) struct MirrorSlot {
    path: PathBuf,
    /// The largest object that is read.
    max_object: u64,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    opened: Option<Arc<Mirror>>,
    doubt: Option<Doubt>,
    looked_closely: Option<Instant>,
    set_aside: Option<Instant>,
}

/// Why a mirror is not trusted.
#[derive(Debug, Clone)]
enum Doubt {
    /// Something failed that damage would explain; a close look will tell.
    Trouble,
    /// It is damaged, and this is how.
    Damage(String),
}

/// The mirror for a poll.
pub(super) struct ForPoll {
    pub(super) mirror: Arc<Mirror>,
    /// What was wrong with the one before, when it was set aside just now; this one is empty then.
    pub(super) set_aside: Option<String>,
}

impl MirrorSlot {
    pub(super) fn new(path: PathBuf, max_object: u64) -> Self {
        Self { path, max_object, slot: Mutex::default() }
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
        let mut slot = self.slot();
        if let Some(mirror) = &slot.opened {
            return Ok(mirror.clone());
        }
        let opened = Mirror::open(&self.path, self.max_object).inspect_err(|error| slot.suspect(error))?;
        Ok(slot.opened.insert(Arc::new(opened)).clone())
    }

    /// The mirror, to be written by the one poll that runs. A damaged one is set aside and an empty one made.
    pub(super) fn for_poll(&self, now: Instant) -> Result<ForPoll, MirrorError> {
        let damage = match self.get() {
            Ok(mirror) => match self.known_damage() {
                // What is still lacking soon after a clone may come with what is fetched next.
                Some(cause) if self.slot().may_set_aside(now) => cause,
                _ => return Ok(ForPoll { mirror, set_aside: None }),
            },
            Err(MirrorError::Damaged { cause }) if self.slot().may_set_aside(now) => cause,
            Err(error) => return Err(error),
        };
        let aside = self.path.with_extension(SET_ASIDE);
        let failed = |error: io::Error| MirrorError::Local { what: "be set aside", cause: error.to_string() };
        // Without the lock, because it may take a while.
        remove(&aside).map_err(failed)?;
        let mut slot = self.slot();
        slot.opened = None;
        slot.doubt = None;
        fs::rename(&self.path, &aside).map_err(failed)?;
        slot.set_aside = Some(now);
        let mirror = slot.opened.insert(Arc::new(Mirror::open(&self.path, self.max_object)?)).clone();
        // Each is compared with its name when it is read, so they need not be fetched again.
        LfsObjects::of_mirror(&aside).give_to(&LfsObjects::of_mirror(&self.path));
        Ok(ForPoll { mirror, set_aside: Some(damage) })
    }

    /// How it is damaged, if that is known; it is not known any more then.
    fn known_damage(&self) -> Option<String> {
        match self.slot().doubt.take_if(|doubt| matches!(doubt, Doubt::Damage(_)))? {
            Doubt::Damage(cause) => Some(cause),
            Doubt::Trouble => None,
        }
    }

    /// Whether it gave trouble that only a close look explains. Never waits for the disk.
    pub(super) fn gave_trouble(&self) -> bool {
        let slot = match self.slot.try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody opens the mirror, and looks at it as he does.
            Err(TryLockError::WouldBlock) => return false,
        };
        matches!(slot.doubt, Some(Doubt::Trouble))
    }

    /// Takes a close look, until somebody asks to stop. What is damaged is set aside by the poll that comes next.
    pub(super) fn examine(&self, now: Instant, stop: &AtomicBool) {
        // What cannot even be opened is known to be damaged then, or will be tried again.
        let Ok(mirror) = self.get() else { return };
        {
            let mut slot = self.slot();
            slot.looked_closely = Some(now);
            slot.doubt.take_if(|doubt| matches!(doubt, Doubt::Trouble));
        }
        // Without the lock, because this takes seconds for each gigabyte and others want to read meanwhile.
        if let Err(error) = mirror.full_check_until(stop) {
            self.slot().suspect(&error);
        }
    }

    /// Something failed that a damaged mirror would explain: a close look is taken before the next poll, unless one was taken
    /// not long ago.
    pub(super) fn trouble(&self, now: Instant) {
        let mut slot = self.slot();
        let recently = slot.looked_closely.is_some_and(|looked| now < looked + CLOSE_LOOK_GAP);
        if slot.doubt.is_none() && !recently {
            slot.doubt = Some(Doubt::Trouble);
        }
    }

    /// The mirror cannot follow its upstream any more: the next poll sets it aside.
    pub(super) fn is_of_no_use(&self, cause: String) {
        self.slot().doubt = Some(Doubt::Damage(cause));
    }

    /// An object could not be used: whether it is missing or broken in the mirror, which is remembered for the next
    /// poll.
    pub(super) fn lacks(&self, object: &str) -> bool {
        let looked = self.get().and_then(|mirror| mirror.check_object(object));
        let Err(error) = looked else { return false };
        self.slot().suspect(&error);
        matches!(error, MirrorError::Damaged { .. })
    }

    /// Whether a poll would set the mirror aside, or a close look at it come before one. Never waits for the disk: while
    /// somebody opens the mirror it is not told, and the poll comes at its time.
    pub(super) fn wants_poll(&self, now: Instant) -> bool {
        let slot = match self.slot.try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        match &slot.doubt {
            None => false,
            Some(Doubt::Trouble) => true,
            Some(Doubt::Damage(_)) => slot.may_set_aside(now),
        }
    }

    /// Removes the mirrors of the same repository at other URLs, and one that was set aside, once this one holds what it
    /// should.
    pub(super) fn remove_others(&self) {
        let Some(siblings) = self.path.parent().and_then(|parent| fs::read_dir(parent).ok()) else { return };
        for sibling in siblings.flatten().map(|entry| entry.path()) {
            // A mirror that is being made stands beside as `.<name>.git.new`.
            let is_mirror = sibling.extension().is_some_and(|ending| ending == "git" || ending == SET_ASIDE);
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

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn suspect(&mut self, error: &MirrorError) {
        if let MirrorError::Damaged { cause } = error {
            self.doubt = Some(Doubt::Damage(cause.clone()));
        }
    }

    fn may_set_aside(&self, now: Instant) -> bool {
        self.set_aside.is_none_or(|last| now >= last + SET_ASIDE_GAP)
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

    fn slot() -> (tempfile::TempDir, MirrorSlot) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mirrors/shop/0.git");
        (dir, MirrorSlot::new(path, 1 << 20))
    }

    #[test]
    fn a_damaged_mirror_is_set_aside_once_an_hour_and_removed_when_the_new_one_is_there() {
        let (_dir, slot) = slot();
        let now = Instant::now();
        slot.get().unwrap();
        let damaged = |slot: &MirrorSlot| {
            fs::write(slot.path.join("HEAD"), "").unwrap();
            slot.slot().opened = None;
            assert!(matches!(slot.get(), Err(MirrorError::Damaged { .. })));
        };
        damaged(&slot);
        assert!(slot.wants_poll(now));
        assert!(slot.for_poll(now).unwrap().set_aside.is_some());
        slot.get().unwrap();
        assert!(slot.path.with_extension(SET_ASIDE).is_dir());

        damaged(&slot);
        assert!(!slot.wants_poll(now));
        assert!(matches!(slot.for_poll(now), Err(MirrorError::Damaged { .. })));
        let later = now + SET_ASIDE_GAP;
        assert!(slot.wants_poll(later));
        assert!(slot.for_poll(later).unwrap().set_aside.is_some());
        slot.remove_others();
        assert!(!slot.path.with_extension(SET_ASIDE).exists() && slot.exists());
    }

    #[test]
    fn an_object_that_the_clone_lacks_too_stops_no_poll() {
        let (_dir, slot) = slot();
        let now = Instant::now();
        let absent = "1".repeat(40);
        assert!(slot.lacks(&absent) && slot.wants_poll(now));
        assert!(slot.for_poll(now).unwrap().set_aside.is_some());
        assert!(slot.lacks(&absent) && !slot.wants_poll(now));
        assert!(slot.for_poll(now).unwrap().set_aside.is_none(), "it is used as it is");
        assert!(!slot.lacks("of an attribute file"));
        assert!(slot.lacks(&absent) && slot.wants_poll(now + SET_ASIDE_GAP));
    }

    #[test]
    fn trouble_is_looked_at_closely_once_an_hour_and_a_sound_mirror_stays() {
        let (_dir, slot) = slot();
        let now = Instant::now();
        slot.get().unwrap();
        slot.trouble(now);
        assert!(slot.wants_poll(now) && slot.gave_trouble());
        slot.examine(now, &AtomicBool::new(false));
        assert!(slot.for_poll(now).unwrap().set_aside.is_none());
        slot.trouble(now);
        assert!(!slot.wants_poll(now) && !slot.gave_trouble());
        slot.trouble(now + CLOSE_LOOK_GAP);
        assert!(slot.wants_poll(now + CLOSE_LOOK_GAP));
    }

    #[test]
    fn whoever_asks_whether_a_poll_is_wanted_does_not_wait_for_who_opens_the_mirror() {
        let (_dir, slot) = slot();
        let now = Instant::now();
        slot.trouble(now);
        let opening = slot.slot();
        assert!(!slot.wants_poll(now));
        drop(opening);
        assert!(slot.wants_poll(now));
    }
}

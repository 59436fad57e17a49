//! Upkeep of a mirror. Each fetch that brings something brings a pack; too many of them cost open files, memory maps and
//! time at every lookup.
//!
//! The git program does it, in two ways. At [`PACKS_BEFORE_REPACK`] packs the small ones are joined (geometric repacking:
//! the work is proportional to what is new), and nothing is dropped. A week after the last time all is written anew as
//! one pack, and what neither a ref nor a retained publication leads to is gone: what a forced push leaves behind takes
//! room for a week or two, not for ever. What fails is left alone for a while, each time for longer; the other goes on.

mod due;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use gix::ObjectId;
use gix::refs::transaction::{Change, LogChange, PreviousValue, RefEdit, RefLog};
use weir_protocol::commit_id::CommitId;

pub(super) use self::due::RepackHistory;
use self::due::{MirrorState, due};
use super::refs::{self, Refs};
use super::{Mirror, MirrorSize, git_program, size, stale_files};
use crate::outside_program::{ProgramError, run};

/// How long joining the small packs of a small mirror may take.
const GEOMETRIC_TIMEOUT: Duration = Duration::from_secs(120);

/// How long writing all of a small mirror anew may take.
const FULL_TIMEOUT: Duration = Duration::from_secs(600);

/// So much of a large one adds a second to that. Any disk is faster; most of it is copied as it is.
const BYTES_PER_SECOND: u64 = 8 << 20;

/// A file in the mirror whose time is that of the last full repack, or of the first look.
const TIMESTAMP_FILE: &str = "weir-repacked";

/// Where the commits of retained publications are named during a full repack. Nothing of the upstream is below it.
const RETAINED_REFS: &str = "refs/weir/kept";

/// Within what upkeep has to keep.
#[derive(Debug, Clone, Copy)]
pub struct MaintenanceLimits {
    /// Room on the disk that is left to others, in bytes.
    pub min_free: u64,
    /// How many bytes the mirror may have: one that has most of them is written anew each day.
    pub max_mirror: u64,
}

/// A way to repack a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repack {
    /// Small packs are combined; no object is dropped (`git repack --geometric`).
    Geometric,
    /// All reachable objects are written to one pack; the others are dropped (`git repack -a`).
    Full,
}

/// Upkeep failed; but for [`MaintenanceError::LostObjects`] the mirror is as good as before.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// The mirror's files cannot be read or written.
    #[error("the mirror cannot be kept up: {0}")]
    Local(String),
    /// The git program is missing, or takes too long.
    #[error("the mirror cannot be kept up: {0}")]
    Program(String),
    /// Somebody asked to stop.
    #[error("the upkeep of the mirror was interrupted")]
    Interrupted,
    /// The disk has no room for a second copy.
    #[error(
        "the mirror cannot be written anew: that takes {needed} bytes (its own, and `limits.min_free`), and the disk has {free}"
    )]
    DiskFull {
        /// Bytes that there should be.
        needed: u64,
        /// Bytes that there are.
        free: u64,
    },
    /// It says that it failed.
    #[error("`git repack` failed: {0}")]
    Repack(String),
    /// A ref was forced back, while all was written anew, to what nothing led to before.
    #[error("the mirror lost what a ref was forced back to while it was repacked: {0}")]
    LostObjects(String),
}

impl MaintenanceError {
    fn local(error: &dyn std::fmt::Display) -> Self {
        Self::Local(error.to_string())
    }
}

impl From<ProgramError> for MaintenanceError {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::Interrupted(_) => Self::Interrupted,
            other => Self::Program(other.to_string()),
        }
    }
}

impl Mirror {
    /// Repacks the mirror when it is time to. Blocks; neither polls nor readers wait meanwhile. `kept` names the commits that
    /// must stay though no ref leads to them any more; it is asked before a full repack only.
    ///
    /// # Errors
    /// It failed or took too long: it is not tried again for a while. Or it was interrupted: it is due again the next time.
    /// [`MaintenanceError::LostObjects`] alone leaves the mirror worse than it was.
    pub fn maintain(
        &self,
        retained: impl FnOnce() -> Result<Vec<CommitId>, MaintenanceError>,
        limits: &MaintenanceLimits,
        now: SystemTime,
        stop: &AtomicBool,
    ) -> Result<Option<Repack>, MaintenanceError> {
        // One at a time, whoever calls.
        let mut history = self.repack_history.lock().unwrap_or_else(PoisonError::into_inner);
        let local = |error: io::Error| MaintenanceError::local(&error);
        let state = self.state(now).map_err(local)?;
        let Some(repack) = due(&state, limits.max_mirror, &history, now) else { return Ok(None) };
        stale_files::remove_repack_files(&self.dir).map_err(local)?;
        let repacked = match repack {
            Repack::Full => self.full_repack(retained, state.size, limits.min_free, stop),
            Repack::Geometric => self.geometric_repack(state.size, stop),
        };
        match &repacked {
            Ok(()) => history.succeeded(repack, size::of(&self.dir).map_err(local)?.bytes),
            Err(MaintenanceError::Interrupted) => {}
            Err(_) => history.failed(repack, now),
        }
        if repacked.is_err() {
            stale_files::remove_repack_files(&self.dir).map_err(local)?;
        } else if repack == Repack::Full {
            write_timestamp(&self.dir.join(TIMESTAMP_FILE), now).map_err(local)?;
        }
        repacked.map(|()| Some(repack))
    }

    fn state(&self, now: SystemTime) -> io::Result<MirrorState> {
        let file = self.dir.join(TIMESTAMP_FILE);
        let last = match fs::metadata(&file).and_then(|data| data.modified()) {
            Ok(time) if time <= now => time,
            // There is none yet; or it is of a clock that was set back since, and would hold for as long as that was.
            _ => write_timestamp(&file, now).map(|()| now)?,
        };
        let refs = Self::refs_moved_at(&self.dir);
        Ok(MirrorState {
            size: size::of(&self.dir)?,
            since_full: now.duration_since(last).unwrap_or_default(),
            refs_moved: refs.is_ok_and(|moved| moved > last),
        })
    }

    fn full_repack(
        &self,
        retained: impl FnOnce() -> Result<Vec<CommitId>, MaintenanceError>,
        size: MirrorSize,
        min_free: u64,
        stop: &AtomicBool,
    ) -> Result<(), MaintenanceError> {
        let disk = rustix::fs::statvfs(&self.dir).map_err(|error| MaintenanceError::local(&error))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let needed = size.bytes.saturating_add(min_free);
        if free < needed {
            return Err(MaintenanceError::DiskFull { needed, free });
        }
        let timeout = timeout(FULL_TIMEOUT, size);
        let _retained = RetainedRefs::write(self, &retained()?)?;
        // What leads to these is not dropped.
        let before = self.mirrored_refs()?;
        self.repack(true, timeout, stop)?;
        self.check_refs_moved_since(&before, timeout, stop)
    }

    /// Whether all is there that refs lead to which moved while all was written anew. A ref that was forced back meanwhile
    /// to what nothing led to any more may have lost that.
    fn check_refs_moved_since(
        &self,
        before: &Refs,
        timeout: Duration,
        stop: &AtomicBool,
    ) -> Result<(), MaintenanceError> {
        let known: BTreeSet<&ObjectId> = before.values().collect();
        let now = self.mirrored_refs()?;
        let moved: BTreeSet<&ObjectId> = now.values().filter(|tip| !known.contains(tip)).collect();
        if moved.is_empty() {
            return Ok(());
        }
        let tips = moved.iter().map(|tip| format!("{tip}\n")).chain(known.iter().map(|tip| format!("^{tip}\n")));
        let tips: String = tips.collect();
        let ended = run(&mut git_program::check_reachable(&self.dir), tips.as_bytes(), &self.dir, timeout, stop)?;
        if ended.success { Ok(()) } else { Err(MaintenanceError::LostObjects(ended.error_line())) }
    }

    fn mirrored_refs(&self) -> Result<Refs, MaintenanceError> {
        let repository = self.repository().map_err(|error| MaintenanceError::local(&error))?.to_thread_local();
        refs::mirrored(&repository).map_err(|error| MaintenanceError::local(&error))
    }

    fn geometric_repack(&self, size: MirrorSize, stop: &AtomicBool) -> Result<(), MaintenanceError> {
        self.repack(false, timeout(GEOMETRIC_TIMEOUT, size), stop)
    }

    fn repack(&self, full: bool, timeout: Duration, stop: &AtomicBool) -> Result<(), MaintenanceError> {
        let ended = run(&mut git_program::repack(&self.dir, full), b"", &self.dir, timeout, stop)?;
        if ended.success { Ok(()) } else { Err(MaintenanceError::Repack(ended.error_line())) }
    }
}

fn timeout(base: Duration, size: MirrorSize) -> Duration {
    base + Duration::from_secs(size.bytes / BYTES_PER_SECOND)
}

/// Refs that lead to what must stay, for as long as a full repack takes.
struct RetainedRefs<'a>(&'a Mirror);

impl<'a> RetainedRefs<'a> {
    fn write(mirror: &'a Mirror, commits: &[CommitId]) -> Result<Self, MaintenanceError> {
        let repository = mirror.repository().map_err(|error| MaintenanceError::local(&error))?.to_thread_local();
        let refs = Self(mirror);
        // Of a repack that was killed.
        refs.remove();
        let ids = commits.iter().filter_map(|commit| ObjectId::from_hex(commit.as_str().as_bytes()).ok());
        // Services of one repository publish the same commits, and a ref is edited once.
        let ids: BTreeSet<ObjectId> = ids.filter(|id| repository.has_object(*id)).collect();
        let edits = ids.into_iter().map(|id| {
            let name = format!("{RETAINED_REFS}/{id}")
                .try_into()
                .map_err(|error: gix::refs::name::Error| MaintenanceError::local(&error))?;
            let log = LogChange { mode: RefLog::AndReference, force_create_reflog: false, message: "".into() };
            let new = gix::refs::Target::Object(id);
            Ok(RefEdit { change: Change::Update { log, expected: PreviousValue::Any, new }, name, deref: false })
        });
        let edits = edits.collect::<Result<Vec<_>, MaintenanceError>>()?;
        repository.edit_references(edits).map_err(|error| MaintenanceError::local(&error))?;
        Ok(refs)
    }

    fn remove(&self) {
        // Nothing packs them, so that is all there is. What cannot be removed is removed the next time.
        let _ = fs::remove_dir_all(self.0.dir.join(RETAINED_REFS));
    }
}

impl Drop for RetainedRefs<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

fn write_timestamp(file: &Path, now: SystemTime) -> io::Result<()> {
    File::options().create(true).truncate(true).write(true).open(file)?.set_modified(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_that_was_forced_back_to_what_is_gone_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.git");
        let mirror = Mirror::open(&path, u64::MAX).unwrap();
        let check = |before: &Refs| {
            mirror
                .check_refs_moved_since(before, GEOMETRIC_TIMEOUT, &AtomicBool::new(false))
                .map_err(|error| error.to_string())
        };
        let empty = mirror.mirrored_refs().unwrap();
        assert_eq!(check(&empty), Ok(()));
        let id = "1234567812345678123456781234567812345678";
        fs::write(path.join("packed-refs"), format!("{id} refs/heads/main\n")).unwrap();
        assert!(check(&empty).unwrap_err().contains("forced back"));
        assert_eq!(check(&mirror.mirrored_refs().unwrap()), Ok(()), "nothing moved");
    }
}

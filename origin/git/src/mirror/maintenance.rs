//! Maintenance of a mirror: repacks. Each fetch adds a pack, and many packs cost open files, memory maps and lookup
//! time.
//!
//! At `PACKS_BEFORE_REPACK` packs a geometric repack combines the small ones; its cost is proportional to the new data,
//! and it drops no object. Once a week a full repack writes all reachable objects to one pack and drops the others, so
//! the remains of a forced push occupy disk space for two weeks at most. After a failure each kind backs off on its
//! own.

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
use weir_upstream::outside_program::{ProgramError, run};

pub(super) use self::due::RepackHistory;
use self::due::{MirrorState, due};
use super::refs::{self, Refs};
use super::{Mirror, MirrorSize, git_program, size, stale_files};

/// The timeout of a geometric repack of a small mirror.
const GEOMETRIC_TIMEOUT: Duration = Duration::from_secs(120);

/// The timeout of a full repack of a small mirror.
const FULL_TIMEOUT: Duration = Duration::from_secs(600);

/// The mirror's size in bytes that adds a second to the timeout. Disks are faster, and most data is copied.
const BYTES_PER_SECOND: u64 = 8 << 20;

/// The file whose modification time is that of the last full repack, or of the first check.
const TIMESTAMP_FILE: &str = "weir-repacked";

/// The namespace of refs to the commits of retained versions during a full repack.
const RETAINED_REFS: &str = "refs/weir/kept";

/// Limits of maintenance.
#[derive(Debug, Clone, Copy)]
pub struct MaintenanceLimits {
    /// The disk space to leave free, in bytes.
    pub min_free: u64,
    /// The largest size of the mirror in bytes. Close to it a full repack runs daily.
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

/// Why maintenance failed. Unless objects were lost, the mirror is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// The mirror cannot be read or written.
    #[error("the maintenance of the mirror failed: {0}")]
    Local(String),
    /// The git program is missing or took too long.
    #[error("the maintenance of the mirror failed: {0}")]
    Program(String),
    /// `stop` was set.
    #[error("the maintenance of the mirror was interrupted")]
    Interrupted,
    /// The disk has no space for a second copy.
    #[error(
        "a full repack of the mirror needs {needed} bytes (its size and `limits.min_free`), but the disk has {free}"
    )]
    DiskFull {
        /// The needed bytes.
        needed: u64,
        /// The free bytes.
        free: u64,
    },
    /// `git repack` failed.
    #[error("`git repack` failed: {0}")]
    Repack(String),
    /// `git pack-objects` or `git rev-list` failed for a bundle.
    #[error("the mirror cannot be packed: {0}")]
    Pack(String),
    /// A ref was forced back, during a full repack, to an object that was unreachable before.
    #[error("the mirror lost objects of a ref that was forced back during a repack: {0}")]
    LostObjects(String),
}

impl MaintenanceError {
    pub(super) fn local(error: &dyn std::fmt::Display) -> Self {
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
    /// Repacks the mirror if this is due. Blocks, but neither polls nor readers wait for it. `retained` returns the
    /// commits to keep although no ref reaches them; it is called before a full repack only.
    ///
    /// # Errors
    /// The repack failed or took too long, and backs off; or it was interrupted, and stays due.
    /// [`MaintenanceError::LostObjects`] alone leaves the mirror damaged.
    pub fn maintain(
        &self,
        retained: impl FnOnce() -> Result<Vec<CommitId>, MaintenanceError>,
        limits: &MaintenanceLimits,
        now: SystemTime,
        stop: &AtomicBool,
    ) -> Result<Option<Repack>, MaintenanceError> {
        // One repack at a time.
        let mut history = self.repack_history.lock().unwrap_or_else(PoisonError::into_inner);
        let local = |error: io::Error| MaintenanceError::local(&error);
        let state = self.state(now).map_err(local)?;
        let Some(repack) = due(&state, limits.max_mirror, &history, now) else { return Ok(None) };
        stale_files::remove_repack_files(&self.dir).map_err(local)?;
        let repacked = match repack {
            Repack::Full => self.full_repack(retained, state.size, limits.min_free, stop),
            Repack::Geometric => self.repack(false, timeout(GEOMETRIC_TIMEOUT, state.size), stop),
        };
        match &repacked {
            Ok(()) => history.succeeded(repack, size::measure(&self.dir).map_err(local)?.bytes),
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
            // The file is missing, or its time is in the future, because the clock was set back.
            _ => write_timestamp(&file, now).map(|()| now)?,
        };
        let refs = Self::refs_changed_at(&self.dir);
        Ok(MirrorState {
            size: size::measure(&self.dir)?,
            since_full: now.duration_since(last).unwrap_or_default(),
            refs_changed: refs.is_ok_and(|time| time > last),
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
        // Objects that these refs reach are not dropped.
        let before = self.mirrored_refs()?;
        self.repack(true, timeout, stop)?;
        self.check_changed_refs(&before, timeout, stop)
    }

    /// Checks that all objects exist of refs that changed during a full repack. A ref that was forced back to an
    /// unreachable object may have lost it.
    fn check_changed_refs(&self, before: &Refs, timeout: Duration, stop: &AtomicBool) -> Result<(), MaintenanceError> {
        let known: BTreeSet<&ObjectId> = before.values().collect();
        let now = self.mirrored_refs()?;
        let changed: BTreeSet<&ObjectId> = now.values().filter(|tip| !known.contains(tip)).collect();
        if changed.is_empty() {
            return Ok(());
        }
        let tips = changed.iter().map(|tip| format!("{tip}\n")).chain(known.iter().map(|tip| format!("^{tip}\n")));
        let tips: String = tips.collect();
        let result = run(&mut git_program::check_reachable(&self.dir), tips.as_bytes(), &self.dir, timeout, stop)?;
        if result.success { Ok(()) } else { Err(MaintenanceError::LostObjects(result.error_line())) }
    }

    fn mirrored_refs(&self) -> Result<Refs, MaintenanceError> {
        let repository = self.repository().map_err(|error| MaintenanceError::local(&error))?.to_thread_local();
        refs::mirrored(&repository).map_err(|error| MaintenanceError::local(&error))
    }

    fn repack(&self, full: bool, timeout: Duration, stop: &AtomicBool) -> Result<(), MaintenanceError> {
        let result = run(&mut git_program::repack(&self.dir, full), b"", &self.dir, timeout, stop)?;
        if result.success { Ok(()) } else { Err(MaintenanceError::Repack(result.error_line())) }
    }
}

pub(super) fn timeout(base: Duration, size: MirrorSize) -> Duration {
    base + Duration::from_secs(size.bytes / BYTES_PER_SECOND)
}

/// Refs to the commits of retained versions, during a full repack.
struct RetainedRefs<'a>(&'a Mirror);

impl<'a> RetainedRefs<'a> {
    fn write(mirror: &'a Mirror, commits: &[CommitId]) -> Result<Self, MaintenanceError> {
        let repository = mirror.repository().map_err(|error| MaintenanceError::local(&error))?.to_thread_local();
        let refs = Self(mirror);
        // A killed repack may have left some.
        refs.remove();
        let ids = commits.iter().filter_map(|commit| ObjectId::from_hex(commit.as_str().as_bytes()).ok());
        // Services may publish the same commit, and a transaction must edit a ref once.
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
        // They are loose refs. If this fails, the next repack removes them.
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
    fn a_ref_that_was_forced_back_to_a_dropped_object_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.git");
        let mirror = Mirror::open(&path, u64::MAX).unwrap();
        let check = |before: &Refs| {
            mirror
                .check_changed_refs(before, GEOMETRIC_TIMEOUT, &AtomicBool::new(false))
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

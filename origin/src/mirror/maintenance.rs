//! Upkeep of a mirror. Each fetch that brings something brings a pack; too many of them cost open files, memory maps and
//! time at every lookup.
//!
//! The git program does it, in two ways. At [`PACKS_BEFORE_REPACK`] packs the small ones are joined (geometric repacking:
//! the work is proportional to what is new), and nothing is dropped. A week after the last time all is written anew as
//! one pack, and what neither a ref nor a retained publication leads to is gone: what a forced push leaves behind takes
//! room for a week or two, not for ever.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use gix::ObjectId;
use gix::refs::transaction::{Change, LogChange, PreviousValue, RefEdit, RefLog};
use weir_shared::commit_id::CommitId;

use super::{Mirror, git_program, leftovers, size};
use crate::outside_program::{ProgramError, run};

/// Packs that are left alone.
const PACKS_BEFORE_REPACK: usize = 16;

/// From one full repack to the next.
const FULL_EVERY: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long joining the small packs may take.
const LONGEST_JOIN: Duration = Duration::from_secs(120);

/// How long writing all anew may take; polls of the repository wait meanwhile.
const LONGEST_FULL: Duration = Duration::from_secs(600);

/// A file in the mirror whose time is that of the last full repack, or of the first look.
const MARK: &str = "weir-repacked";

/// Where the commits of retained publications are named during a full repack. Nothing of the upstream is below it.
const KEPT: &str = "refs/weir/kept";

/// What upkeep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upkeep {
    /// There is nothing to do.
    NotDue,
    /// The small packs were joined.
    Joined,
    /// All was written anew, and what nothing leads to is gone.
    Full,
}

/// Upkeep failed; the mirror is as good as before.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// The mirror's files cannot be read or written.
    #[error("the mirror cannot be kept up: {0}")]
    Local(String),
    /// The git program is missing, hangs, or was interrupted.
    #[error("the mirror cannot be kept up: {0}")]
    Program(String),
    /// It says that it failed.
    #[error("`git repack` failed: {0}")]
    Repack(String),
}

impl MaintenanceError {
    fn local(error: &dyn std::fmt::Display) -> Self {
        Self::Local(error.to_string())
    }
}

impl From<ProgramError> for MaintenanceError {
    fn from(error: ProgramError) -> Self {
        Self::Program(error.to_string())
    }
}

/// What is to be done with so many packs, this long after the last full repack.
fn due(packs: usize, since_full: Duration) -> Upkeep {
    match packs {
        0 | 1 => Upkeep::NotDue,
        _ if since_full >= FULL_EVERY => Upkeep::Full,
        PACKS_BEFORE_REPACK.. => Upkeep::Joined,
        _ => Upkeep::NotDue,
    }
}

impl Mirror {
    /// Repacks the mirror when it is time to. Blocks; polls wait meanwhile, readers do not. `kept` names the commits that
    /// must stay though no ref leads to them any more; it is asked before a full repack only.
    ///
    /// # Errors
    /// It failed, took too long, or was interrupted: it is due again the next time.
    pub fn keep_up(
        &self,
        kept: impl FnOnce() -> Result<Vec<CommitId>, MaintenanceError>,
        now: SystemTime,
        stop: &AtomicBool,
    ) -> Result<Upkeep, MaintenanceError> {
        let _no_fetch = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = self.dir.join(MARK);
        let local = |error: io::Error| MaintenanceError::local(&error);
        let last = match fs::metadata(&mark).and_then(|data| data.modified()) {
            Ok(time) => time,
            Err(_) => set_mark(&mark, now).map(|()| now).map_err(local)?,
        };
        // A mark of the future is of a clock that was set back.
        let due = due(size::of(&self.dir).map_err(local)?.packs, now.duration_since(last).unwrap_or_default());
        if due == Upkeep::NotDue {
            return Ok(due);
        }
        // A `.keep` that a failed fetch left would keep its pack out of this for ever.
        leftovers::remove(&self.dir).map_err(local)?;
        let repacked = self.repack(due, kept, stop);
        if repacked.is_err() {
            // What a killed program left half-written.
            leftovers::remove(&self.dir).map_err(local)?;
        } else if due == Upkeep::Full {
            set_mark(&mark, now).map_err(local)?;
        }
        repacked.map(|()| due)
    }

    fn repack(
        &self,
        due: Upkeep,
        kept: impl FnOnce() -> Result<Vec<CommitId>, MaintenanceError>,
        stop: &AtomicBool,
    ) -> Result<(), MaintenanceError> {
        let full = due == Upkeep::Full;
        let _kept = if full { Some(KeptRefs::write(self, &kept()?)?) } else { None };
        let longest = if full { LONGEST_FULL } else { LONGEST_JOIN };
        let ended = run(&mut git_program::repack(&self.dir, full), b"", &self.dir, longest, stop)?;
        if ended.success { Ok(()) } else { Err(MaintenanceError::Repack(ended.in_plain_words())) }
    }
}

/// Refs that lead to what must stay, for as long as a full repack takes.
struct KeptRefs<'a>(&'a Mirror);

impl<'a> KeptRefs<'a> {
    fn write(mirror: &'a Mirror, commits: &[CommitId]) -> Result<Self, MaintenanceError> {
        let repository = mirror.repository().map_err(|error| MaintenanceError::local(&error))?.to_thread_local();
        let refs = Self(mirror);
        // Of a repack that was killed.
        refs.remove();
        let ids = commits.iter().filter_map(|commit| ObjectId::from_hex(commit.as_str().as_bytes()).ok());
        let edits = ids.filter(|id| repository.has_object(*id)).map(|id| {
            let name = format!("{KEPT}/{id}")
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
        let _ = fs::remove_dir_all(self.0.dir.join(KEPT));
    }
}

impl Drop for KeptRefs<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

fn set_mark(mark: &Path, now: SystemTime) -> io::Result<()> {
    File::options().create(true).truncate(true).write(true).open(mark)?.set_modified(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_packs_are_joined_and_a_week_old_mirror_is_written_anew() {
        let day = Duration::from_secs(24 * 3600);
        for (packs, since_full, expected) in [
            (0, 30 * day, Upkeep::NotDue),
            (1, 30 * day, Upkeep::NotDue),
            (15, day, Upkeep::NotDue),
            (16, day, Upkeep::Joined),
            (500, 6 * day, Upkeep::Joined),
            (2, 7 * day, Upkeep::Full),
            (500, 7 * day, Upkeep::Full),
        ] {
            assert_eq!(due(packs, since_full), expected, "{packs} packs, {since_full:?}");
        }
    }
}

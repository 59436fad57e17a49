//! The folder of one service: its link, its releases, its state. What changes it blocks; what only asks does not.
//!
//! The order of the steps of a switch makes a crash between any two harmless: the release is complete on disk before
//! it has its name; the state says that `exec` is pending before the link points at the release; the link is replaced
//! in one step. At the next start the link is the truth and the state is made to fit it.

use std::fs::{self, File};
use std::io::{self, BufReader, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;

use super::compare::{Difference, compare};
use super::error::{ReleaseError, disk};
use super::lock::RootLock;
use super::name::ReleaseName;
use super::state::{HookJob, Record, State};
use super::state_file::{read_state, write_state};
use super::switch::{read_link, write_link};
use super::tar_reader::TarError;
use super::tree::{make_directory, remove_tree, sync_directory};
use super::unpack::{Limits, unpack};
use super::{prune, state_file, switch};

pub(super) const RELEASES: &str = "releases";
pub(super) const INCOMING: &str = "incoming";

/// The folder of one service.
pub(crate) struct ServiceDirectory {
    path: PathBuf,
    keep_releases: usize,
    limits: Limits,
    /// Held while the disk is changed.
    writer: Mutex<()>,
    /// What was written last. Held for moments only, so that tasks may ask.
    memory: Mutex<Memory>,
    /// As long as somebody may write here, the root is locked.
    _lock: Arc<RootLock>,
}

struct Memory {
    state: State,
    /// Where `exec` runs at this moment; not to be pruned.
    in_use: Option<ReleaseName>,
}

impl ServiceDirectory {
    /// Opens the folder, makes it where it is missing, removes what a killed agent left, and makes the state fit the
    /// link.
    pub(crate) fn open(
        root: &Path,
        service: &ServiceName,
        keep_releases: usize,
        limits: Limits,
        lock: Arc<RootLock>,
    ) -> Result<Self, ReleaseError> {
        let path = root.join(service.as_str());
        make_directory(&path, 0o755)?;
        make_directory(&path.join(RELEASES), 0o755)?;
        make_directory(&path.join(INCOMING), 0o700)?;
        let link = read_link(&path)?;
        switch::remove_leftovers(&path)?;
        state_file::remove_leftovers(&path)?;
        if let Err(error) = prune::remove_leftovers(&path) {
            // It costs room on the disk, and nobody looks there: no reason not to follow.
            tracing::warn!(%service, %error, "what a killed agent left cannot be removed");
        }
        let state = read_state(&path)?;
        let repaired = state.repaired(link);
        let memory = Mutex::new(Memory { state, in_use: None });
        let this = Self { path, keep_releases, limits, writer: Mutex::default(), memory, _lock: lock };
        if let Some(repaired) = repaired {
            tracing::warn!(
                %service,
                release = link.map(tracing::field::display),
                "the agent was interrupted or its files were changed; going on from what `current` points at"
            );
            this.change(|state| *state = repaired)?;
        }
        this.prune();
        Ok(this)
    }

    /// What is remembered now.
    pub(crate) fn state(&self) -> State {
        self.memory().state.clone()
    }

    /// Where tarballs come in.
    pub(crate) fn incoming(&self) -> PathBuf {
        self.path.join(INCOMING)
    }

    /// The folder of a release.
    pub(crate) fn release_path(&self, name: ReleaseName) -> PathBuf {
        self.path.join(RELEASES).join(name.to_string())
    }

    /// Whether `current` points at this release and at nothing else.
    pub(crate) fn points_at(&self, release: ReleaseName) -> Result<bool, ReleaseError> {
        Ok(read_link(&self.path)? == Some(release))
    }

    /// Compares a release with the verified tarball that it was unpacked from.
    pub(crate) fn compare(&self, tarball: &File, release: ReleaseName) -> Result<Option<Difference>, ReleaseError> {
        Ok(compare(rewound(tarball)?, &self.release_path(release))?)
    }

    /// Makes the verified tarball a release: one that is there and equal to it, or a new one under the first free name
    /// of its digest from `first` on.
    pub(crate) fn place(&self, tarball: &File, digest: TarballDigest, first: u32) -> Result<ReleaseName, ReleaseError> {
        for name in (first..).map(|number| ReleaseName::new(digest, number)) {
            let path = self.release_path(name);
            match fs::symlink_metadata(&path) {
                Ok(_) if compare(rewound(tarball)?, &path)?.is_none() => {
                    // Whoever gave it its name may have been killed before that was on disk.
                    sync_directory(&self.path.join(RELEASES))?;
                    return Ok(name);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.unpack(tarball, name)?;
                    return Ok(name);
                }
                Err(error) => return Err(disk("look at", &path)(error)),
            }
        }
        unreachable!("there are fewer releases than numbers")
    }

    fn unpack(&self, tarball: &File, name: ReleaseName) -> Result<(), ReleaseError> {
        let releases = self.path.join(RELEASES);
        let partial = releases.join(format!(".{name}.partial"));
        remove_tree(&partial)?;
        make_directory(&partial, 0o755)?;
        if let Err(error) = unpack(rewound(tarball)?, &partial, self.limits) {
            if let Err(error) = remove_tree(&partial) {
                tracing::warn!(%error, "a half release cannot be removed");
            }
            return Err(error.into());
        }
        fs::rename(&partial, self.release_path(name)).map_err(disk("rename", &partial))?;
        sync_directory(&releases)
    }

    /// Makes `current` point at a release that was placed.
    pub(crate) fn switch(&self, record: &Record) -> Result<(), ReleaseError> {
        {
            let _writer = self.writer();
            let before = self.state();
            let mut next = before.switched_to(record.clone());
            next.succeeded(SystemTime::now());
            write_state(&self.path, &next)?;
            if let Err(error) = write_link(&self.path, record.directory) {
                // The link stayed as it was, and so does what is remembered.
                write_state(&self.path, &before)?;
                return Err(error);
            }
            self.memory().state = next;
        }
        self.prune();
        Ok(())
    }

    /// An edge confirmed the release. Written only when that says something new.
    pub(crate) fn confirm(&self, generation: u64, record: Option<Record>) -> Result<(), ReleaseError> {
        let known = self.state();
        if generation <= known.highest_generation && (record.is_none() || record == known.release) {
            return Ok(());
        }
        self.change(|state| {
            state.highest_generation = state.highest_generation.max(generation);
            if record.is_some() {
                state.release = record;
            }
            state.succeeded(SystemTime::now());
        })
    }

    /// The `exec` that has to run now, if any.
    pub(crate) fn hook_job(&self) -> Option<HookJob> {
        self.memory().state.hook_job()
    }

    /// The `exec` that has to run now, if any. From now on it is taken to run: its release is not pruned.
    pub(crate) fn hook_begins(&self) -> Option<HookJob> {
        let mut memory = self.memory();
        let job = memory.state.hook_job();
        memory.in_use = job.as_ref().map(|job| job.release.directory);
        job
    }

    /// `exec` ended. It says nothing about the present release when that is another one by now.
    pub(crate) fn hook_ended(&self, release: ReleaseName, succeeded: bool) -> Result<(), ReleaseError> {
        self.memory().in_use = None;
        self.change(|state| {
            if state.release.as_ref().is_some_and(|present| present.directory == release) {
                state.hook_ended(succeeded, SystemTime::now());
            }
        })
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), ReleaseError> {
        let _writer = self.writer();
        let before = self.state();
        let mut next = before.clone();
        change(&mut next);
        if next != before {
            write_state(&self.path, &next)?;
            self.memory().state = next;
        }
        Ok(())
    }

    /// Removes what is no longer kept. What cannot be removed is tried again at the next switch.
    fn prune(&self) {
        let _writer = self.writer();
        let (state, in_use) = {
            let memory = self.memory();
            (memory.state.clone(), memory.in_use)
        };
        let records = [&state.release, &state.previous].into_iter().flatten().map(|record| record.directory);
        let linked = read_link(&self.path).ok().flatten();
        let mut needed: Vec<_> = records.chain(in_use).chain(linked).collect();
        needed.sort_unstable();
        needed.dedup();
        if let Err(error) = prune::prune(&self.path, &needed, self.keep_releases) {
            tracing::warn!(%error, "old releases cannot be removed");
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader of the file from its beginning.
fn rewound(file: &File) -> Result<BufReader<&File>, ReleaseError> {
    let mut reader = file;
    reader.rewind().map_err(TarError::Read)?;
    Ok(BufReader::with_capacity(64 << 10, file))
}

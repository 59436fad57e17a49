//! A bare mirror of an upstream repository, built on gix.
//!
//! A poll (`fetch.rs`) lists the upstream's refs and compares them with the mirror's. If any changed, it deletes refs,
//! and fetches the new objects over the same connection into a quarantine (`quarantine.rs`), from where they migrate
//! into the mirror. The first poll is the clone. Neither the URL nor credentials are stored in the mirror.
//!
//! All limits on a hostile upstream are listed in `limits.rs`.

mod bundle;
mod bundle_header;
mod error;
mod fetch;
mod git_program;
mod git_progress;
mod git_session;
mod http;
mod indexing;
mod integrity;
mod left_out;
mod lfs;
mod limits;
mod listing;
mod maintenance;
mod memory;
mod memory_estimate;
mod passes;
mod peeling;
mod program;
mod protocol_session;
mod quarantine;
mod refs;
mod server_words;
mod shallow;
mod size;
mod socket;
mod ssh;
mod stale_files;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use gix::ThreadSafeRepository;
use gix::bstr::BString;
use gix::odb::store::init::Slots;
use weir_upstream::{FetchProgress, Upstream, UpstreamError};

use crate::lfs::LfsObjects;
use crate::revision::Revision;
pub(crate) use bundle_header::BundleHeader;
pub use error::MirrorError;
pub use git_program::check as check_git_program;
use left_out::LeftOut;
pub use lfs::{LfsError, LfsFetch};
pub use listing::display_name;
use maintenance::RepackHistory;
pub use maintenance::{MaintenanceError, MaintenanceLimits, Repack};
pub use memory::FetchMemory;
pub use size::MirrorSize;

/// A bare repository on disk that follows an upstream.
#[derive(Debug)]
pub struct Mirror {
    dir: PathBuf,
    /// The largest object to read, in bytes.
    max_object: u64,
    /// Held by the poll that runs.
    polling: Mutex<()>,
    /// The upstream's refs that the last poll left out.
    left_out: Mutex<LeftOut>,
    /// The results of former repacks.
    repack_history: Mutex<RepackHistory>,
}

/// The result of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// No ref changed, and nothing was written.
    Unchanged {
        /// The number of refs in the mirror.
        refs: usize,
    },
    /// Refs changed, and the mirror is up to date.
    Changed {
        /// The number of refs in the mirror.
        refs: usize,
    },
    /// Refs changed, but the fetch was not permitted yet. Only deletions were applied.
    Deferred,
}

impl Mirror {
    /// Opens or creates the mirror in a directory, removes stale files, and runs a quick check. Objects with more than
    /// `max_object` bytes, or with too many bytes of deltas, cannot be read from it.
    ///
    /// # Errors
    /// [`MirrorError::Damaged`] if the check fails; [`MirrorError::Local`] if the directory cannot be read or written.
    pub fn open(dir: &Path, max_object: u64) -> Result<Self, MirrorError> {
        if !dir.try_exists().map_err(MirrorError::local("be found"))? {
            create(dir, gix::hash::Kind::Sha1)?;
        }
        let (polling, left_out, repack_history) = Default::default();
        let mirror = Self { dir: dir.to_owned(), max_object, polling, left_out, repack_history };
        let cleared = stale_files::remove(dir)
            .and_then(|()| stale_files::remove_signature_files(dir))
            .and_then(|()| LfsObjects::of_mirror(dir).remove_partial(SystemTime::now()));
        cleared.map_err(MirrorError::local("remove stale files"))?;
        mirror.check(integrity::quick_check)?;
        Ok(mirror)
    }

    /// When the refs of the mirror in a directory last changed, from the one file that stores them.
    ///
    /// # Errors
    /// The file is missing or cannot be read.
    pub fn refs_changed_at(dir: &Path) -> std::io::Result<SystemTime> {
        fs::metadata(dir.join("packed-refs"))?.modified()
    }

    /// Reads every pack in full and verifies its checksum.
    ///
    /// # Errors
    /// [`MirrorError::Damaged`] if a pack is damaged; [`MirrorError::Local`] if one cannot be read.
    pub fn full_check(&self) -> Result<(), MirrorError> {
        self.full_check_until(&AtomicBool::new(false))
    }

    /// The same, until `stop` is set.
    ///
    /// # Errors
    /// The same, and [`UpstreamError::Interrupted`].
    pub fn full_check_until(&self, stop: &AtomicBool) -> Result<(), MirrorError> {
        // A repack would delete the packs under check.
        let _no_maintenance = self.repack_history.lock().unwrap_or_else(PoisonError::into_inner);
        self.check(|repository| integrity::full_check(repository, stop)).map_err(|error| match error {
            MirrorError::Local { .. } if stop.load(Ordering::Relaxed) => UpstreamError::Interrupted.into(),
            error => error,
        })
    }

    /// Checks one object.
    ///
    /// # Errors
    /// [`MirrorError::Damaged`] if it is missing or corrupt; [`MirrorError::Local`] if it cannot be read.
    pub fn check_object(&self, object: &str) -> Result<(), MirrorError> {
        // An error without an object id says nothing about the mirror.
        let Ok(id) = gix::ObjectId::from_hex(object.as_bytes()) else { return Ok(()) };
        self.check(|repository| integrity::check_object(repository, id))
    }

    fn check(&self, run: impl FnOnce(&gix::Repository) -> std::io::Result<Option<String>>) -> Result<(), MirrorError> {
        let damage = match open_options(self.max_object).open(&self.dir) {
            Ok(repository) => run(&repository.to_thread_local()),
            Err(error) => integrity::classify(&self.dir, &error),
        };
        match damage.map_err(MirrorError::local("be checked"))? {
            None => Ok(()),
            Some(cause) => Err(MirrorError::Damaged { cause }),
        }
    }

    /// Updates the mirror, which has branches, tags, `HEAD`, and the other refs that `revisions` name: what services
    /// follow. Blocks until it is done; a stalled upstream ends it, and `interrupt` does so within a
    /// fraction of a second.
    ///
    /// # Errors
    /// See [`MirrorError`]. Some refs may be deleted or updated already; objects received for others are dropped. A ref
    /// that is left out is an error here too.
    pub fn poll(
        &self,
        upstream: &Upstream,
        revisions: &HashSet<Revision>,
        progress: &FetchProgress,
        interrupt: &AtomicBool,
    ) -> Result<Poll, MirrorError> {
        let memory = FetchMemory::new(upstream.limits.max_object.as_u64(), upstream.limits.max_objects);
        let poll = self.poll_with(upstream, revisions, progress, &memory, interrupt, &|| true)?;
        self.left_out().into_iter().next().map_or(Ok(poll), |(_, error)| Err(error))
    }

    /// The refs that the last poll left out, by their names in the mirror, and why. It updated all others.
    pub fn left_out(&self) -> Vec<(BString, MirrorError)> {
        let left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        left_out.iter().map(|(name, error)| (name.clone(), error.clone())).collect()
    }

    /// The same, but changes are fetched only if `may_fetch` permits it after refs are listed, because a fetch may take
    /// long. The fetch waits for its part of `memory`.
    ///
    /// # Errors
    /// The same, but a ref is left out without an error if nobody follows it, or if others changed.
    pub fn poll_with(
        &self,
        upstream: &Upstream,
        revisions: &HashSet<Revision>,
        progress: &FetchProgress,
        memory: &FetchMemory,
        interrupt: &AtomicBool,
        may_fetch: &dyn Fn() -> bool,
    ) -> Result<Poll, MirrorError> {
        let _one_at_a_time = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        let _active = progress.start();
        let poll = || {
            let repository = self.repository()?;
            fetch::poll(&repository, upstream, revisions, progress, &self.left_out, memory, (interrupt, may_fetch))
        };
        let mut result = poll();
        if let Err(MirrorError::OtherObjectFormat { format, mirrored: 0 }) = result {
            // An upstream reports its object format only to an existing mirror.
            fs::remove_dir_all(&self.dir).map_err(MirrorError::local("be removed"))?;
            create(&self.dir, format)?;
            result = poll();
        }
        result
    }

    /// Opens the current state of the mirror, which takes about a millisecond. Drop it soon: a long-lived handle runs
    /// out of slots for packs. Threads may share it.
    ///
    /// # Errors
    /// [`MirrorError::Local`] if it cannot be opened.
    pub fn repository(&self) -> Result<ThreadSafeRepository, MirrorError> {
        open_options(self.max_object).open(&self.dir).map_err(MirrorError::local_gix("be opened"))
    }
}

/// The origin's name in Git's protocol.
const AGENT: &str = concat!("weir-origin/", env!("CARGO_PKG_VERSION"));

/// Configuration of every mirror. `refs/replace/*` must not replace objects, because signatures are verified by their
/// ids.
const OVERRIDES: [&str; 2] = ["core.logAllRefUpdates=false", "core.useReplaceRefs=false"];

/// Options without any system or user configuration, with slots for twice the current packs, and with a limit on
/// memory.
fn open_options(max_object: u64) -> gix::open::Options {
    let limit = format!("gitoxide.objects.allocLimit={}", limits::object_memory(max_object).min(MAX_LIMIT));
    gix::open::Options::isolated()
        .with(gix::sec::Trust::Full)
        .open_path_as_is(true)
        .object_store_slots(SLOTS)
        .config_overrides(OVERRIDES.into_iter().chain([limit.as_str()]))
}

/// The slots for packs.
const SLOTS: Slots = Slots::AsNeededByDiskState { multiplier: 2.0, minimum: 512 };

/// The largest number in a Git configuration.
const MAX_LIMIT: u64 = i64::MAX as u64;

/// Creates an empty mirror under a temporary name and renames it, so that a killed process leaves no partial one.
fn create(dir: &Path, format: gix::hash::Kind) -> Result<(), MirrorError> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let temporary = dir.with_file_name(format!(".{name}.new"));
    let created = match fs::remove_dir_all(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir_all(&temporary),
    };
    created.map_err(MirrorError::local("create its directory"))?;
    let options = gix::create::Options { object_hash: Some(format), ..Default::default() };
    ThreadSafeRepository::init_opts(&temporary, gix::create::Kind::Bare, options, open_options(0))
        .map_err(MirrorError::local_gix("be created"))?;
    fs::rename(&temporary, dir).map_err(MirrorError::local("be renamed to its final name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacement_objects_are_ignored_and_object_size_is_limited() {
        let dir = tempfile::tempdir().unwrap();
        let mirror = Mirror::open(&dir.path().join("shop.git"), 10).unwrap();
        let repository = mirror.repository().unwrap().to_thread_local();
        let config = repository.config_snapshot();
        assert_eq!(config.boolean("core.useReplaceRefs"), Some(false));
        assert_eq!(config.integer("gitoxide.objects.allocLimit"), Some(50));
    }
}

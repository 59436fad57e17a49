//! A bare mirror of an upstream repository, kept by gix.
//!
//! A poll lists the upstream's refs and compares: nothing moved, nothing is written. Otherwise refs that are gone are
//! deleted and what is new is fetched, over the same connection. The first poll is the clone. Nothing about the upstream
//! is kept in the mirror: no URL, no credential.

mod broken_refs;
mod error;
mod fetch;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod git_program;
mod http;
mod indexing;
mod integrity;
mod lfs;
mod limits;
mod listing;
mod maintenance;
mod memory;
mod memory_estimate;
mod peeling;
mod program;
mod progress;
mod protocol_session;
mod quarantine;
mod refs;
mod retry_after;
mod shallow;
mod size;
mod socket;
mod ssh;
mod stale_files;
mod upstream_session;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use gix::ThreadSafeRepository;
use gix::odb::store::init::Slots;

use crate::source::git::lfs::LfsObjects;
use broken_refs::BrokenRefs;
pub use error::MirrorError;
#[cfg(feature = "fuzzing")]
pub use fuzz::fuzz_upstream_words;
pub(crate) use git_program::check as check_git_program;
pub use http::Redirects;
pub use lfs::{LfsError, LfsFetch};
use maintenance::RepackHistory;
pub use maintenance::{MaintenanceError, MaintenanceLimits, Repack};
pub use memory::FetchMemory;
pub use progress::{FetchProgress, FetchSnapshot};
pub use size::MirrorSize;

use crate::source::Upstream;

/// A bare repository on disk that follows an upstream.
#[derive(Debug)]
pub struct Mirror {
    dir: PathBuf,
    /// The largest object that is read of it, in bytes.
    max_object: u64,
    /// One poll at a time, whoever calls.
    polling: Mutex<()>,
    /// What of the upstream could not be followed.
    broken_refs: Mutex<BrokenRefs>,
    /// How its upkeep went.
    repack_history: Mutex<RepackHistory>,
}

/// What a poll found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// Nothing moved, and nothing was written.
    Unchanged {
        /// How many refs are mirrored.
        refs: usize,
    },
    /// Something moved, and the mirror has all of it.
    Changed {
        /// How many refs are mirrored.
        refs: usize,
    },
    /// Something moved, and whoever polls may not fetch it yet; only what is gone was deleted.
    Moved,
}

impl Mirror {
    /// Opens the mirror in a directory, creating it when it is not there, clears what a killed process left, and looks
    /// whether it is whole. No object is read of it that has more than `max_object` bytes, or deltas that lead to one with
    /// more than three times as many.
    ///
    /// # Errors
    /// [`MirrorError::Damaged`] when it is not; [`MirrorError::Local`] when the directory cannot be read or written.
    pub fn open(dir: &Path, max_object: u64) -> Result<Self, MirrorError> {
        if !dir.try_exists().map_err(MirrorError::local("be found"))? {
            create(dir, gix::hash::Kind::Sha1)?;
        }
        let (polling, broken_refs, repack_history) = Default::default();
        let mirror = Self { dir: dir.to_owned(), max_object, polling, broken_refs, repack_history };
        let cleared = stale_files::remove(dir)
            .and_then(|()| stale_files::remove_signature_files(dir))
            .and_then(|()| LfsObjects::of_mirror(dir).remove_partial(SystemTime::now()));
        cleared.map_err(MirrorError::local("clear what a killed process left"))?;
        mirror.check(integrity::quick_check)?;
        Ok(mirror)
    }

    /// When the refs of the mirror in a directory last moved: one file has them all.
    ///
    /// # Errors
    /// There is no such file, or it cannot be looked at.
    pub fn refs_moved_at(dir: &Path) -> std::io::Result<SystemTime> {
        fs::metadata(dir.join("packed-refs"))?.modified()
    }

    /// Reads every pack in full and compares its checksum: for a mirror that gives trouble.
    ///
    /// # Errors
    /// [`MirrorError::Damaged`] when it is not whole; [`MirrorError::Local`] when it cannot be looked at.
    pub fn full_check(&self) -> Result<(), MirrorError> {
        self.full_check_until(&AtomicBool::new(false))
    }

    /// The same, until somebody asks to stop.
    ///
    /// # Errors
    /// The same; [`MirrorError::Interrupted`] when somebody did.
    pub fn full_check_until(&self, stop: &AtomicBool) -> Result<(), MirrorError> {
        // A repack would take away what is being read.
        let _no_maintenance = self.repack_history.lock().unwrap_or_else(PoisonError::into_inner);
        self.check(|repository| integrity::full_check(repository, stop)).map_err(|error| match error {
            MirrorError::Local { .. } if stop.load(Ordering::Relaxed) => MirrorError::Interrupted,
            error => error,
        })
    }

    /// Looks at one object that gave trouble.
    ///
    /// # Errors
    /// [`MirrorError::Damaged`] when it is missing or broken; [`MirrorError::Local`] when it cannot be looked at.
    pub fn check_object(&self, object: &str) -> Result<(), MirrorError> {
        // What has no id cannot be looked at, and is no reason to doubt the mirror.
        let Ok(id) = gix::ObjectId::from_hex(object.as_bytes()) else { return Ok(()) };
        self.check(|repository| integrity::check_object(repository, id))
    }

    fn check(
        &self,
        check: impl FnOnce(&gix::Repository) -> std::io::Result<Option<String>>,
    ) -> Result<(), MirrorError> {
        let damage = match open_options(self.max_object).open(&self.dir) {
            Ok(repository) => check(&repository.to_thread_local()),
            Err(error) => integrity::classify(&self.dir, &error),
        };
        match damage.map_err(MirrorError::local("be looked at"))? {
            None => Ok(()),
            Some(cause) => Err(MirrorError::Damaged { cause }),
        }
    }

    /// Brings the mirror up to date. Blocks for as long as that takes; a stalled read ends it.
    ///
    /// `interrupt` is seen within a fraction of a second, whether bytes flow or the upstream is silent.
    ///
    /// # Errors
    /// See [`MirrorError`]; the refs of the mirror are then as they were, except that some may already be deleted or moved.
    /// What was received for none of them is gone.
    pub fn poll(
        &self,
        upstream: &Upstream,
        progress: &FetchProgress,
        interrupt: &AtomicBool,
    ) -> Result<Poll, MirrorError> {
        let memory = FetchMemory::new(upstream.max_object, upstream.max_objects);
        self.poll_with(upstream, progress, &memory, interrupt, &|| true)
    }

    /// The same, but what moved is fetched only if `may_fetch` says so then: to list refs is short, a fetch may be long. It waits
    /// for its part of the memory of all fetches.
    ///
    /// # Errors
    /// The same.
    pub fn poll_with(
        &self,
        upstream: &Upstream,
        progress: &FetchProgress,
        memory: &FetchMemory,
        interrupt: &AtomicBool,
        may_fetch: &dyn Fn() -> bool,
    ) -> Result<Poll, MirrorError> {
        let _one_at_a_time = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        let _active = progress.start();
        let poll = || {
            let repository = self.repository()?;
            fetch::poll(&repository, upstream, progress, &self.broken_refs, memory, (interrupt, may_fetch))
        };
        let mut result = poll();
        if let Err(MirrorError::OtherObjectFormat { format, mirrored: 0 }) = result {
            // Which format that is only the upstream can say, and a mirror has to be made before it is asked.
            fs::remove_dir_all(&self.dir).map_err(MirrorError::local("be made anew"))?;
            create(&self.dir, format)?;
            result = poll();
        }
        result
    }

    /// The mirror as it is now. Opened afresh (about a millisecond): a handle that is kept for long runs out of slots for
    /// packs. Share it between threads, and drop it after the work at hand.
    ///
    /// # Errors
    /// [`MirrorError::Local`] when it cannot be opened.
    pub fn repository(&self) -> Result<ThreadSafeRepository, MirrorError> {
        open_options(self.max_object).open(&self.dir).map_err(MirrorError::mirror("be opened"))
    }
}

/// What upstreams know the origin by, as part of Git's own name for a client.
const USER_AGENT: &str = concat!("weir-origin/", env!("CARGO_PKG_VERSION"));

/// What every mirror is opened with. An object is the one that its id says: `refs/replace/*` would put others in its place,
/// under the id of a commit that somebody signed.
const OVERRIDES: [&str; 2] = ["core.logAllRefUpdates=false", "core.useReplaceRefs=false"];

/// Nothing of the machine's or the user's Git configuration counts, there are slots for twice the packs there are, and what
/// there is is not unpacked beyond a bound.
fn open_options(max_object: u64) -> gix::open::Options {
    let limit =
        format!("gitoxide.objects.allocLimit={}", max_object.saturating_mul(limits::OBJECTS_IN_MEMORY).min(MAX_LIMIT));
    gix::open::Options::isolated()
        .with(gix::sec::Trust::Full)
        .open_path_as_is(true)
        .object_store_slots(SLOTS)
        .config_overrides(OVERRIDES.into_iter().chain([limit.as_str()]))
}

/// For packs.
const SLOTS: Slots = Slots::AsNeededByDiskState { multiplier: 2.0, minimum: 512 };

/// The largest number that a configuration of Git has.
const MAX_LIMIT: u64 = i64::MAX as u64;

/// Makes an empty mirror beside its place and moves it there, so that a killed process leaves all of it or nothing.
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
        .map_err(MirrorError::mirror("be created"))?;
    fs::rename(&temporary, dir).map_err(MirrorError::local("be moved to its place"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_what_their_ids_say_and_are_read_up_to_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let mirror = Mirror::open(&dir.path().join("shop.git"), 10).unwrap();
        let repository = mirror.repository().unwrap().to_thread_local();
        let config = repository.config_snapshot();
        assert_eq!(config.boolean("core.useReplaceRefs"), Some(false));
        assert_eq!(config.integer("gitoxide.objects.allocLimit"), Some(50));
    }
}

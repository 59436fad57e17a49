//! What the cache holds: verified blobs in memory and in a directory, within a budget.
//!
//! The store knows nothing of origins, and who fetches knows nothing of files and budgets. They meet in four steps: a
//! [`Room`] is claimed before a blob is fetched, and made when it begins to come; its bytes go to [`Store::incoming`], and
//! [`Store::keep`] gives them their name.
//!
//! Which blobs are kept is decided by `eviction`, in memory; the `index` carries that over to the next process, and
//! `upkeep` compares it with what is really there.

mod blob;
mod books;
mod directory;
mod disk_trouble;
mod eviction;
mod file_stamp;
mod index;
mod keeping;
mod memory;
mod room;
mod small;
mod upkeep;
mod verified;
mod write_pause;

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use weir_shared::digest::BlobDigest;

use self::books::Books;
use self::eviction::{Evicted, Limits, Policy, Slot, Usage};
use self::index::{Found, Index, Loaded};
use self::memory::Memory;
use self::room::Rooms;
use self::small::Small;
use self::write_pause::WritePause;
use crate::clock::{Clock, Moment};
use crate::config::CacheConfig;
use crate::metrics::{CacheMetrics, Dropped};

pub(crate) use blob::Blob;
pub(crate) use directory::Directory;
pub(crate) use disk_trouble::DiskTrouble;
#[cfg(fuzzing)]
pub use index::fuzz as fuzz_index;
pub(super) use room::Room;
pub(super) use upkeep::{finish, start, stop};

/// The part of the memory that is for small blobs: one in so many bytes.
const SMALL_SHARE_OF_MEMORY: u64 = 4;

/// The blobs that are kept.
pub(super) struct Store {
    directory: Directory,
    books: Mutex<Books>,
    /// Held while files are named or deleted, so that the books and the directory change together. Taken before
    /// `books`, and only on threads that may block.
    naming: Mutex<()>,
    memory: Memory,
    /// None when there is no space for it: small blobs are kept in files then.
    small: Option<Small>,
    /// Taken before `books`, and only on threads that may block.
    index: Mutex<Index>,
    index_was: Found,
    /// The directories were gone through: each file that lies there is known.
    is_reconciled: AtomicBool,
    rooms: Rooms,
    /// Files that are read to be compared with their names, because somebody asks for them.
    verifications: Arc<Semaphore>,
    most_verifications: usize,
    pause: WritePause,
    /// Why the disk did not take the last blob, while it does not.
    disk_failure: Mutex<Option<String>>,
    clock: Clock,
    metrics: CacheMetrics,
}

/// What the store holds, for `/status`.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(crate) struct Holding {
    pub(crate) bytes: u64,
    pub(crate) limit_bytes: u64,
    pub(crate) blobs: usize,
    pub(crate) oldest_idle_seconds: Option<u64>,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_lent_bytes: u64,
    pub(crate) memory_limit_bytes: u64,
    pub(crate) memory_blobs: usize,
    pub(crate) small_limit_bytes: u64,
}

/// What a purge met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Purged {
    /// The blobs that were held.
    pub(crate) blobs: usize,
    /// Their bytes.
    pub(crate) bytes: u64,
}

/// How a blob is held.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(crate) struct HeldBlob {
    /// Where: `memory`, `small` or `file`.
    pub(crate) tier: &'static str,
    /// Its bytes were compared with its name since the process began, since it was purged softly, and since its file was
    /// last written to.
    pub(crate) verified: bool,
    /// Its size.
    pub(crate) bytes: u64,
    /// For how long it has not been used, where that is known.
    pub(crate) idle_seconds: Option<u64>,
}

impl Purged {
    fn add(&mut self, size: Option<u64>) {
        self.blobs += usize::from(size.is_some());
        self.bytes += size.unwrap_or(0);
    }
}

impl Store {
    /// The store over a directory, with the bounds of `config`; what the index says of it is taken up. Blocks.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub(super) fn open(
        directory: Directory,
        config: &CacheConfig,
        clock: Clock,
        metrics: CacheMetrics,
    ) -> io::Result<Self> {
        directory.remove_leftovers()?;
        let memory = config.memory.as_u64();
        let small = open_small(&directory, config, memory / SMALL_SHARE_OF_MEMORY, &metrics);
        let small_bytes = small.as_ref().map_or(0, Small::on_disk);
        let memory = memory - if small.is_some() { memory / SMALL_SHARE_OF_MEMORY } else { 0 };
        let limits = Limits { bytes: config.disk.as_u64() - small_bytes, entries: config.blobs };
        let Loaded { index, blobs, found } = Index::load(&directory.index_path());
        match found {
            Found::Whole => tracing::info!(blobs = blobs.len(), "the index of the blobs was read"),
            Found::Nothing => tracing::info!("there is no index of the blobs; the directories are gone through"),
            Found::Damaged => tracing::warn!(
                blobs = blobs.len(),
                "the index of the blobs is damaged: the directories are gone through"
            ),
        }
        let most_verifications = config.verifications.min(Semaphore::MAX_PERMITS);
        let (now, wall) = (clock.now(), SystemTime::now());
        let mut policy = Policy::new(limits);
        for (digest, known) in blobs {
            // A wall clock that was set back: it was used some time ago.
            let last = Moment::from_the_wall(known.last_use, now, wall).unwrap_or(now);
            let usage = Usage { last, uses: known.uses, established: known.established };
            policy.restore(digest, known.size, usage, known.turn);
        }
        let surplus = policy.shrink();
        let unwritten = surplus.iter().map(|gone| gone.digest).collect();
        let store = Self {
            directory,
            books: Mutex::new(Books { policy, unwritten, used: BTreeSet::new() }),
            naming: Mutex::default(),
            memory: Memory::new(memory, metrics.memory_evictions.clone()),
            small,
            index: Mutex::new(index),
            index_was: found,
            is_reconciled: AtomicBool::new(false),
            rooms: Rooms::default(),
            verifications: Arc::new(Semaphore::new(most_verifications)),
            most_verifications,
            pause: WritePause::none(now),
            disk_failure: Mutex::default(),
            clock,
            metrics,
        };
        store.unlink(&surplus, Dropped::Size);
        Ok(store)
    }

    /// Forgets blobs, wherever they are held. How many there were, and their bytes. Those who read them now are not
    /// disturbed. Blocks.
    pub(super) fn forget(&self, digests: &[BlobDigest], why: Dropped) -> Purged {
        let mut met = Purged::default();
        let _naming = self.naming();
        for digest in digests {
            let small = self.small.as_ref().and_then(|small| small.take(digest));
            let dropped = self.books().remove(digest);
            self.unlink(dropped.as_slice(), why);
            // Last: one who brings it there looks into the books afterwards.
            let in_memory = self.memory.remove(digest);
            met.add(dropped.map(|dropped| dropped.size).or(in_memory).or(small));
        }
        met
    }

    /// Has blobs compared with their names before their next use. How many there are, and their bytes. Small ones leave
    /// the memory for that: they are compared whenever they come from the disk. Blocks.
    pub(super) fn distrust(&self, digests: &[BlobDigest]) -> Purged {
        let mut met = Purged::default();
        for digest in digests {
            let in_memory = self.memory.remove(digest);
            let small = self.small.as_ref().and_then(|small| {
                // To know its size is to read it: it leaves the memory behind that.
                let size = small.size(digest);
                small.leave_memory(digest);
                size
            });
            let mut books = self.books();
            books.policy.doubt(digest);
            met.add(books.policy.slot(digest).map(|slot| slot.size).or(in_memory).or(small));
        }
        met
    }

    /// What is held of a blob of `size` bytes, which is not thereby used. Looks at its file. Blocks.
    pub(super) fn look_at(&self, digest: &BlobDigest, size: u64) -> Option<HeldBlob> {
        let now = self.clock.now();
        let of_slot = |tier, slot: Slot, verified| HeldBlob {
            tier,
            verified,
            bytes: slot.size,
            idle_seconds: Some(now.since(slot.usage.last).as_secs()),
        };
        if let Some(slot) = self.memory.look_at(digest) {
            return Some(of_slot("memory", slot, true));
        }
        if self.small.as_ref().is_some_and(|small| small.holds(digest)) {
            return Some(HeldBlob { tier: "small", verified: true, bytes: size, idle_seconds: None });
        }
        let slot = *self.books().policy.slot(digest)?;
        let is_as_verified = slot.verified.is_some() && self.directory.stamp(digest).ok() == slot.verified;
        Some(of_slot("file", slot, is_as_verified))
    }

    /// The tier that a blob is held in.
    pub(super) fn tier(&self, digest: &BlobDigest) -> Option<&'static str> {
        if self.memory.look_at(digest).is_some() {
            return Some("memory");
        }
        if self.small.as_ref().is_some_and(|small| small.holds(digest)) {
            return Some("small");
        }
        self.books().policy.slot(digest).map(|_| "file")
    }

    /// What is held.
    pub(super) fn holding(&self) -> Holding {
        let now = self.clock.now();
        let memory = self.memory.usage();
        let (small_bytes, small_blobs) = self.small.as_ref().map_or((0, 0), Small::in_memory);
        let small_memory_limit = self.small.as_ref().map_or(0, Small::memory_limit);
        let books = self.books();
        Holding {
            bytes: books.policy.used(),
            limit_bytes: books.policy.limits().bytes,
            blobs: books.policy.len(),
            oldest_idle_seconds: books.policy.oldest_use().map(|used| now.since(used).as_secs()),
            memory_bytes: memory.bytes + small_bytes,
            memory_lent_bytes: memory.lent_bytes,
            memory_limit_bytes: self.memory.limit() + small_memory_limit,
            memory_blobs: memory.blobs + small_blobs,
            small_limit_bytes: self.small.as_ref().map_or(0, Small::on_disk),
        }
    }

    /// Sets the gauges that describe what is held.
    pub(super) fn set_gauges(&self) {
        let holding = self.holding();
        let entries_limit = self.books().policy.limits().entries as u64;
        let is_writing = !self.pause.is_on(self.clock.now());
        self.metrics.usage.set(&holding, entries_limit, is_writing);
    }

    fn unlink(&self, dropped: &[Evicted], why: Dropped) {
        let now = self.clock.now();
        for Evicted { digest, size, last_use } in dropped {
            match self.directory.remove(digest) {
                Ok(()) => self.metrics.dropped(why, *size, now.since(*last_use)),
                Err(error) => tracing::warn!(blob = %digest, %error, "a blob cannot be deleted"),
            }
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // The books' own operations do not panic half-way.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn naming(&self) -> MutexGuard<'_, ()> {
        self.naming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the tier of small blobs, when there is space for it. Blocks.
fn open_small(directory: &Directory, config: &CacheConfig, memory: u64, metrics: &CacheMetrics) -> Option<Small> {
    let disk = Some(config.small_bytes()).filter(|disk| Small::is_enough(*disk))?;
    let (dir, metrics) = (directory.clone(), metrics.clone());
    // In a task of its own: should foyer panic over what it finds, the edge does without it.
    let opening = Handle::current().spawn(async move {
        let dir = dir.small_path(disk)?;
        Small::open(&dir, usize::try_from(memory)?, disk, &metrics).await
    });
    match Handle::current().block_on(opening).map_err(anyhow::Error::from).flatten() {
        Ok(small) => Some(small),
        Err(error) => {
            tracing::warn!(%error, disk, "there is no space for small blobs together: they are kept in files");
            directory.remove_small();
            None
        }
    }
}

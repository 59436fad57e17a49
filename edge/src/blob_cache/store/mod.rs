//! What the cache holds: verified blobs in memory and in a directory, within a budget.
//!
//! The store knows nothing of origins, and who fetches knows nothing of files and budgets. They meet in four steps: a
//! [`Room`] is claimed before a blob is fetched, and made when it begins to come; its bytes go to [`Store::incoming`], and
//! [`Store::keep`] gives them their name.
//!
//! Which blobs are kept is decided by `eviction`, in memory; the `index` carries that over to the next process, and
//! `upkeep` compares it with what is really there.

mod blob;
mod directory;
mod disk_trouble;
mod eviction;
mod index;
mod memory;
mod room;
mod small;
mod upkeep;
mod write_pause;

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use tempfile::NamedTempFile;
use tokio::runtime::Handle;
use weir_shared::digest::BlobDigest;

use self::directory::is_out_of_descriptors;
use self::eviction::{Evicted, Limits, Policy, Slot, Usage};
use self::index::{Found, Index, Known, Loaded, Row};
use self::memory::Memory;
use self::room::Rooms;
use self::small::{FoundIn, Small};
use self::write_pause::WritePause;
use crate::clock::{Clock, Moment};
use crate::config::CacheConfig;
use crate::metrics::{CacheMetrics, Dropped, Tier, VerifiedAt, WriteDropped};

pub(crate) use blob::Blob;
pub(crate) use directory::Directory;
pub(crate) use disk_trouble::DiskTrouble;
#[cfg(fuzzing)]
pub use index::fuzz as fuzz_index;
pub(super) use room::Room;
pub(super) use upkeep::{finish, start, stop};

/// The part of the memory that is for small blobs: one in so many bytes.
const SMALL_SHARE_OF_MEMORY: u64 = 4;

/// Rows of the index that are gathered at a time: nobody waits for the books while all are gone through.
const INDEX_PAGE: usize = 4096;

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
    rooms: Rooms,
    pause: WritePause,
    /// Why the disk did not take the last blob, while it does not.
    disk_failure: Mutex<Option<String>>,
    clock: Clock,
    metrics: CacheMetrics,
}

/// What is in the directory, and what the index does not know of it yet.
struct Books {
    policy: Policy,
    /// Blobs that came or went.
    unwritten: BTreeSet<BlobDigest>,
    /// Blobs that were used.
    used: BTreeSet<BlobDigest>,
}

/// What the store holds, for `/status`.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(crate) struct Holding {
    pub(crate) bytes: u64,
    pub(crate) limit_bytes: u64,
    pub(crate) blobs: usize,
    pub(crate) oldest_idle_seconds: Option<u64>,
    pub(crate) memory_bytes: u64,
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
    /// Its bytes were compared with its name since the process began, or since it was purged softly.
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
        let Loaded { index, blobs, found } = Index::load(&directory.index_path())?;
        match found {
            Found::Whole => tracing::info!(blobs = blobs.len(), "the index of the blobs was read"),
            Found::Nothing => tracing::info!("there is no index of the blobs; the directories are gone through"),
            Found::Damaged => tracing::warn!(
                blobs = blobs.len(),
                "the index of the blobs is damaged: it was set aside, and the directories are gone through"
            ),
        }
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
            memory: Memory::new(memory),
            small,
            index: Mutex::new(index),
            index_was: found,
            rooms: Rooms::default(),
            pause: WritePause::none(now),
            disk_failure: Mutex::default(),
            clock,
            metrics,
        };
        store.unlink(&surplus, Dropped::Size);
        Ok(store)
    }

    /// A blob of `size` bytes that lies in memory. Does not wait.
    pub(super) fn at_hand(&self, digest: &BlobDigest, size: u64) -> Option<Bytes> {
        let bytes = match self.small.as_ref().filter(|_| Small::takes(size)) {
            Some(small) => small.at_hand(digest)?,
            None => {
                let now = self.clock.now();
                let bytes = self.memory.get(digest, now)?;
                self.books().touch(digest, now);
                bytes
            }
        };
        let is_whole = bytes.len() as u64 == size;
        is_whole.then(|| {
            self.metrics.hit(Tier::Memory, size);
            bytes
        })
    }

    /// A blob of `size` bytes, when it is there and was verified since the process began. What is wrong with its file is
    /// found out by [`Store::verify`].
    pub(super) async fn verified(self: &Arc<Self>, digest: BlobDigest, size: u64) -> Option<Blob> {
        let now = self.clock.now();
        let slot = self.books().touch(&digest, now);
        if let Some(bytes) = self.memory.get(&digest, now).filter(|bytes| bytes.len() as u64 == size) {
            self.metrics.hit(Tier::Memory, size);
            return Some(Blob::Memory(bytes));
        }
        if let Some(blob) = self.small_one(digest, size).await {
            return Some(blob);
        }
        let slot = slot.filter(|slot| slot.verified)?;
        let store = self.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let blob = store.directory.blob(&digest, size).ok()?;
            // What is asked for the first time since it came is not likely to be asked for often.
            let is_wanted_again = slot.usage.uses > 0 || slot.usage.established;
            Some(if is_wanted_again { store.bring_to_memory(digest, blob) } else { blob })
        });
        let blob = opened.await.ok()??;
        self.metrics.hit(Tier::File, size);
        Some(blob)
    }

    /// A blob of `size` bytes on disk, compared with its name now. What is wrong is dropped.
    pub(super) async fn verify(self: &Arc<Self>, digest: BlobDigest, size: u64) -> Option<Blob> {
        if let Some(blob) = self.small_one(digest, size).await
            && blob.is(&digest).unwrap_or(false)
        {
            return Some(blob);
        }
        let store = self.clone();
        let checked = tokio::task::spawn_blocking(move || {
            store.books().touch(&digest, store.clock.now());
            store.check(&digest, size)
        });
        let blob = checked.await.ok()??;
        self.metrics.hit(Tier::File, size);
        Some(blob)
    }

    /// A blob that is held among the small ones.
    async fn small_one(&self, digest: BlobDigest, size: u64) -> Option<Blob> {
        let small = self.small.as_ref().filter(|_| Small::takes(size))?;
        let (bytes, found_in) = small.get(digest).await?;
        let tier = match found_in {
            FoundIn::Memory => Tier::Memory,
            FoundIn::Disk => Tier::Small,
        };
        self.metrics.hit(tier, size);
        (bytes.len() as u64 == size).then_some(Blob::Memory(bytes))
    }

    /// Whether a blob of this size is kept among the small ones, which need no room.
    pub(super) fn is_small(&self, size: u64) -> bool {
        self.small.is_some() && Small::takes(size)
    }

    /// Claims room for a blob that is to be kept in a file, if need be after a short wait.
    ///
    /// # Errors
    /// Why it is not to be kept: it is larger than the whole store, the disk takes no writes just now, or others have all
    /// the room there is for blobs on their way.
    pub(super) async fn claim(self: &Arc<Self>, size: u64) -> Result<Room, WriteDropped> {
        Room::claim(self, size).await
    }

    /// Whether a blob that is fetched into memory is to be kept.
    pub(super) fn keeps(&self, size: u64) -> bool {
        self.is_small(size) || !self.pause.is_on(self.clock.now()) && self.books().policy.fits(size)
    }

    /// A file for a blob that is being fetched; removed when it is dropped. Blocks.
    ///
    /// # Errors
    /// The disk failed.
    pub(super) fn incoming(&self) -> io::Result<NamedTempFile> {
        self.directory.incoming()
    }

    /// Gives a fetched blob, whose bytes are what `digest` says, its name. A disk that fails now takes nothing from those
    /// who read it. Blocks.
    pub(super) fn keep(&self, digest: BlobDigest, file: NamedTempFile, room: Room) {
        self.kept(&digest, self.keep_file(digest, file, room));
    }

    /// As [`Store::keep`], of a blob that is in memory. Blocks.
    pub(super) fn keep_bytes(&self, digest: BlobDigest, bytes: &Bytes, room: Room) {
        let kept = self.incoming().and_then(|file| {
            file.as_file().write_all_at(bytes, 0)?;
            self.keep_file(digest, file, room)
        });
        self.kept(&digest, kept);
    }

    /// As [`Store::keep`], of a small blob. Blocks.
    pub(super) fn keep_small(&self, digest: BlobDigest, bytes: Bytes) {
        if let Some(small) = &self.small {
            small.put(digest, bytes);
        }
    }

    /// What became of a blob that was to be kept.
    fn kept(&self, digest: &BlobDigest, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.disk_says(None),
            Err(error) => {
                self.write_failed(digest, &error);
            }
        }
    }

    fn keep_file(&self, digest: BlobDigest, file: NamedTempFile, mut room: Room) -> io::Result<()> {
        file.as_file().sync_all()?;
        let _naming = self.naming();
        let blob = self.directory.keep(&digest, file)?;
        let mut books = self.books();
        room.release_in(&mut books.policy);
        books.insert(digest, blob.length(), true, self.clock.now());
        Ok(())
    }

    /// Forgets blobs, wherever they are held. How many there were, and their bytes. Those who read them now are not
    /// disturbed. Blocks.
    pub(super) fn forget(&self, digests: &[BlobDigest], why: Dropped) -> Purged {
        let mut met = Purged::default();
        let _naming = self.naming();
        for digest in digests {
            let in_memory = self.memory.remove(digest);
            let small = self.small.as_ref().and_then(|small| small.take(digest));
            let dropped = self.books().remove(digest);
            self.unlink(dropped.as_slice(), why);
            met.add(dropped.map(|dropped| dropped.size).or(in_memory).or(small));
        }
        met
    }

    /// Has blobs compared with their names before their next use. How many there are, and their bytes. Small ones are
    /// whenever they come from the disk.
    pub(super) fn distrust(&self, digests: &[BlobDigest]) -> Purged {
        let mut met = Purged::default();
        for digest in digests {
            let in_memory = self.memory.remove(digest);
            let mut books = self.books();
            books.policy.doubt(digest);
            met.add(books.policy.slot(digest).map(|slot| slot.size).or(in_memory));
        }
        met
    }

    /// What is held of a blob of `size` bytes, which is not thereby used.
    pub(super) fn look_at(&self, digest: &BlobDigest, size: u64) -> Option<HeldBlob> {
        let now = self.clock.now();
        let of_slot = |tier, slot: Slot| HeldBlob {
            tier,
            verified: slot.verified,
            bytes: slot.size,
            idle_seconds: Some(now.since(slot.usage.last).as_secs()),
        };
        if let Some(slot) = self.memory.look_at(digest) {
            return Some(of_slot("memory", slot));
        }
        if self.small.as_ref().is_some_and(|small| small.holds(digest)) {
            return Some(HeldBlob { tier: "small", verified: true, bytes: size, idle_seconds: None });
        }
        self.books().policy.slot(digest).map(|slot| of_slot("file", *slot))
    }

    /// Why the disk did not take the last blob; `None` when it did.
    pub(super) fn disk_failure(&self) -> Option<String> {
        self.disk_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is held.
    pub(super) fn holding(&self) -> Holding {
        let now = self.clock.now();
        let (memory_bytes, memory_blobs, memory_limit_bytes) = self.memory.usage();
        let (small_bytes, small_blobs) = self.small.as_ref().map_or((0, 0), Small::in_memory);
        let small_memory_limit = self.small.as_ref().map_or(0, Small::memory_limit);
        let books = self.books();
        Holding {
            bytes: books.policy.used(),
            limit_bytes: books.policy.limits().bytes,
            blobs: books.policy.len(),
            oldest_idle_seconds: books.policy.oldest_use().map(|used| now.since(used).as_secs()),
            memory_bytes: memory_bytes + small_bytes,
            memory_limit_bytes: memory_limit_bytes + small_memory_limit,
            memory_blobs: memory_blobs + small_blobs,
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

    /// Opens a file and compares it with the name. What is wrong is dropped; a file that nobody knew of is taken up.
    /// Blocks.
    fn check(&self, digest: &BlobDigest, size: u64) -> Option<Blob> {
        let (why, dropped) = match self.directory.blob(digest, size) {
            Ok(blob) => match blob.is(digest) {
                Ok(true) => {
                    self.take_up_verified(digest, size);
                    return Some(blob);
                }
                Ok(false) => ("its bytes have changed".to_owned(), Dropped::Corrupt),
                Err(error) => (error.to_string(), Dropped::Corrupt),
            },
            Err(error) if is_out_of_descriptors(&error) => {
                tracing::warn!(blob = %digest, %error, "a blob on disk cannot be opened now; its origin is asked");
                return None;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => ("it is gone".to_owned(), Dropped::Vanished),
            Err(error) => (error.to_string(), Dropped::Corrupt),
        };
        // Nothing is wrong with one that was evicted meanwhile.
        self.books().policy.slot(digest)?;
        if dropped == Dropped::Corrupt {
            self.metrics.verify_failed(VerifiedAt::Disk);
        }
        tracing::warn!(blob = %digest, why, "a blob on disk cannot be used; it is dropped, and fetched when asked for");
        self.forget(&[*digest], dropped);
        None
    }

    /// Notes that a file is what its name says. The index may not have known of it.
    fn take_up_verified(&self, digest: &BlobDigest, size: u64) {
        if self.books().policy.slot(digest).is_none() {
            self.take_up(digest, size);
        }
        self.books().policy.verified(digest);
    }

    /// Takes up a file that the index did not know of. Blocks.
    fn take_up(&self, digest: &BlobDigest, size: u64) {
        let _naming = self.naming();
        let surplus = {
            let mut books = self.books();
            if books.policy.slot(digest).is_some() || self.directory.size(digest).ok() != Some(size) {
                return;
            }
            books.insert(*digest, size, false, self.clock.now());
            books.shrink()
        };
        self.unlink(&surplus, Dropped::Size);
    }

    /// The blob, in memory if that is where it belongs. Its bytes are compared with its name on the way. Blocks.
    fn bring_to_memory(&self, digest: BlobDigest, blob: Blob) -> Blob {
        let Some(coming) = self.memory.expect(digest, blob.length()) else { return blob };
        match blob.read() {
            Ok(bytes) if BlobDigest::of(&bytes) == digest => {
                self.metrics.memory_evictions.inc_by(coming.put(bytes.clone(), self.clock.now()) as u64);
                Blob::Memory(bytes)
            }
            // The file is found out when it is sent, or by the next one who verifies it.
            Ok(_) | Err(_) => {
                self.books().policy.doubt(&digest);
                blob
            }
        }
    }

    fn disk_says(&self, failure: Option<String>) {
        *self.disk_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// A blob could not be kept: what is the matter with the disk.
    pub(super) fn write_failed(&self, digest: &BlobDigest, error: &io::Error) -> DiskTrouble {
        let trouble = DiskTrouble::from(error);
        self.pause.after(trouble, self.clock.now());
        self.disk_says(Some(error.to_string()));
        self.metrics.write_dropped(WriteDropped::Disk(trouble));
        tracing::warn!(blob = %digest, %error, "a blob cannot be kept: the disk of the cache does not take it");
        trouble
    }

    /// Writes to the index what it does not know yet; with `uses`, also how blobs were used. Blocks.
    ///
    /// # Errors
    /// The disk failed.
    fn write_index(&self, uses: bool) -> io::Result<()> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, wall) = (self.clock.now(), SystemTime::now());
        let known = |slot: &Slot| Known::of(slot, |moment| moment.on_the_wall(now, wall));
        let (changed, held) = {
            let mut books = self.books();
            let mut changed = std::mem::take(&mut books.unwritten);
            if uses {
                changed.append(&mut books.used);
            }
            let row = |digest| Row { digest, held: books.policy.slot(&digest).map(known) };
            (changed.into_iter().map(row).collect::<Vec<_>>(), books.policy.len())
        };
        if !index.is_overgrown(held) {
            return if changed.is_empty() { Ok(()) } else { index.append(&changed) };
        }
        let mut behind = None;
        index.rewrite(|| {
            let books = self.books();
            let page = books.policy.by_name(behind).take(INDEX_PAGE);
            let page: Vec<Row> = page.map(|(digest, slot)| Row { digest: *digest, held: Some(known(slot)) }).collect();
            behind = page.last().map(|row| row.digest);
            page
        })
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

impl Books {
    fn touch(&mut self, digest: &BlobDigest, now: Moment) -> Option<Slot> {
        let slot = self.policy.touch(digest, now)?;
        self.used.insert(*digest);
        Some(slot)
    }

    fn reserve(&mut self, size: u64) -> Vec<Evicted> {
        let evicted = self.policy.reserve(size);
        self.unwritten.extend(evicted.iter().map(|gone| gone.digest));
        evicted
    }

    fn insert(&mut self, digest: BlobDigest, size: u64, verified: bool, now: Moment) {
        self.policy.insert(digest, size, verified, now);
        self.unwritten.insert(digest);
    }

    fn remove(&mut self, digest: &BlobDigest) -> Option<Evicted> {
        self.unwritten.insert(*digest);
        self.policy.remove(digest)
    }

    fn shrink(&mut self) -> Vec<Evicted> {
        let evicted = self.policy.shrink();
        self.unwritten.extend(evicted.iter().map(|gone| gone.digest));
        evicted
    }
}

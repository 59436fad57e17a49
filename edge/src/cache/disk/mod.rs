//! Objects on disk: one file each, named by its content and verified whenever it is read.
//!
//! Nothing but the files is durable, and nothing is synchronised: a file that a crash or the medium has changed is a miss,
//! and removed. A file that is gone is a miss.

mod failure;
mod index;
mod layout;
mod read;
mod scan;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use weir_protocol::digest::ObjectDigest;
use weir_runtime::directory_lock::DirectoryLock;
use weir_runtime::shutdown::Drain;

use self::failure::Pause;
use self::index::Index;
use self::layout::Layout;
use super::budget::Budget;
use super::metrics::{CacheMetrics, Dropped, NotStored, Tier};
use crate::clock::Clock;

pub(crate) use self::failure::DiskFailure;

/// How long the disk may take to give an object before it is fetched instead.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Objects that are read at a time, beyond those in the page cache.
const MAX_READS: usize = 64;

/// Objects that are written at a time.
const MAX_WRITES: usize = 32;

/// How long an object waits for its turn to be written before it is not stored.
const WRITE_WAIT: Duration = Duration::from_secs(2);

/// The tier.
#[derive(Debug)]
pub(super) struct Disk {
    layout: Layout,
    index: Index,
    /// Until then an object that is not in the index may yet be on disk.
    is_scanned: AtomicBool,
    pause: Pause,
    writes: Semaphore,
    /// A disk that hangs holds so many threads, and not all that there are.
    reads: Arc<Semaphore>,
    read_pause: Pause,
    last_failure: Mutex<Option<String>>,
    clock: Clock,
    metrics: CacheMetrics,
}

impl Disk {
    /// The tier of up to `limit` bytes below `dir`. What lies there is noted in the background.
    pub(super) fn open(
        dir: &Path,
        lock: DirectoryLock,
        limit: u64,
        clock: Clock,
        metrics: CacheMetrics,
        drain: &Drain,
    ) -> Arc<Self> {
        let layout = Layout::new(dir, lock);
        let disk = Arc::new(Self {
            index: Index::new(limit, layout.clone(), metrics.clone()),
            layout,
            is_scanned: AtomicBool::new(false),
            pause: Pause::none(clock.now()),
            writes: Semaphore::new(MAX_WRITES),
            reads: Arc::new(Semaphore::new(MAX_READS)),
            read_pause: Pause::none(clock.now()),
            last_failure: Mutex::default(),
            clock,
            metrics,
        });
        disk.metrics.scanning.set(1);
        disk.metrics.writing.set(1);
        let (scanned, stop) = (disk.clone(), drain.clone());
        drain.spawn(async move {
            let scanning = spawn_blocking(move || scan::scan(&scanned, || stop.has_begun()));
            if let Err(error) = scanning.await {
                tracing::error!(%error, "the scan of the cache's files failed");
            }
        });
        disk
    }

    /// Whether an object may be on disk.
    fn may_have(&self, digest: &ObjectDigest) -> bool {
        !self.is_scanned.load(Ordering::Acquire) || self.index.contains(digest)
    }

    /// An object is used that was read from memory.
    pub(super) fn touch(&self, digest: &ObjectDigest) {
        self.index.touch(digest);
    }

    /// Whether an object is known to be on disk.
    pub(super) fn has(&self, digest: &ObjectDigest) -> bool {
        self.index.contains(digest)
    }

    /// An object whose file is known and in the page cache, verified: without waiting for the disk. `None`: [`Disk::read`]
    /// finds out what is the matter, on a thread that may block.
    pub(super) fn read_cached(&self, digest: &ObjectDigest, budget: &Budget) -> Option<Bytes> {
        self.index.get(digest)?;
        let (bytes, charge) = read::cached(&self.layout.path(digest), budget)?;
        (ObjectDigest::of(&bytes) == *digest).then(|| {
            self.metrics.hit(Tier::Disk, bytes.len() as u64);
            charge.attach(bytes)
        })
    }

    /// An object of up to `most` bytes, verified. `None`: it is not on disk, or the disk does not give it in time.
    pub(super) async fn read(self: &Arc<Self>, digest: ObjectDigest, most: u64, budget: &Budget) -> Option<Bytes> {
        if !self.may_have(&digest) || self.read_pause.is_on(self.clock.now()) {
            return None;
        }
        // That readers are slow to let go of memory is no fault of the disk, and nothing that an origin could help with.
        let charge = budget.charge(most).await?;
        let disk = self.clone();
        let reading = async {
            // Held by the thread for as long as the disk holds the thread.
            let turn = self.reads.clone().acquire_owned().await.ok()?;
            let read = spawn_blocking(move || {
                let _turn = turn;
                match read::whole(&disk.layout.path(&digest)) {
                    Ok(bytes) => disk.verified(&digest, bytes),
                    Err(error) => {
                        disk.cannot_read(&digest, &error);
                        None
                    }
                }
            });
            read.await.ok()?
        };
        let Ok(bytes) = tokio::time::timeout(READ_TIMEOUT, reading).await else {
            self.metrics.read_failures.inc();
            tracing::warn!(object = %digest, "the disk does not give an object in time");
            self.read_pause.after(DiskFailure::Failed, self.clock.now());
            return None;
        };
        Some(charge.attach(bytes?))
    }

    /// The bytes, when they are what the name says. A file whose bytes are not is removed.
    fn verified(&self, digest: &ObjectDigest, bytes: Vec<u8>) -> Option<Vec<u8>> {
        if ObjectDigest::of(&bytes) == *digest {
            self.metrics.hit(Tier::Disk, bytes.len() as u64);
            if let (false, Ok(size)) = (self.index.contains(digest), u32::try_from(bytes.len())) {
                // The scan has not come to it yet.
                self.index.insert(*digest, size);
            }
            return Some(bytes);
        }
        tracing::warn!(object = %digest, "a file of the cache was damaged; its object is fetched again");
        self.metrics.verify_failed(Tier::Disk);
        self.remove(digest, Dropped::Corrupt);
        None
    }

    /// What an error means for an object: a file that is gone is forgotten, and one that cannot be read now is left.
    fn cannot_read(&self, digest: &ObjectDigest, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::NotFound => {
                if let Some(bytes) = self.index.remove(digest) {
                    self.metrics.dropped(Dropped::Vanished, u64::from(bytes));
                }
            }
            io::ErrorKind::InvalidData => {
                self.metrics.verify_failed(Tier::Disk);
                self.remove(digest, Dropped::Corrupt);
            }
            _ => {
                self.metrics.read_failures.inc();
                tracing::warn!(object = %digest, %error, "an object cannot be read from disk");
            }
        }
    }

    /// Whether an object of this size is stored now, as far as can be told.
    pub(super) fn accepts(&self, bytes: u64) -> bool {
        self.index.takes(bytes) && !self.pause.is_on(self.clock.now())
    }

    /// Stores an object that was verified and is counted among the writes, when the disk takes it. Why it does not is
    /// counted, and noted for `/readyz`.
    pub(super) async fn store(self: &Arc<Self>, digest: ObjectDigest, bytes: Bytes) {
        if let Err(why) = self.try_store(digest, bytes).await {
            self.metrics.not_stored(why);
        }
        self.metrics.writes.dec();
    }

    async fn try_store(self: &Arc<Self>, digest: ObjectDigest, bytes: Bytes) -> Result<(), NotStored> {
        let length = bytes.len() as u64;
        let Some(size) = u32::try_from(length).ok().filter(|_| self.index.takes(length)) else {
            return Err(NotStored::TooLarge);
        };
        let turn = tokio::time::timeout(WRITE_WAIT, self.writes.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Err(NotStored::QueueFull) };
        if self.pause.is_on(self.clock.now()) {
            return Err(NotStored::Paused);
        }
        let disk = self.clone();
        let written = spawn_blocking(move || {
            disk.layout.write(&digest, &bytes)?;
            disk.index.insert(digest, size);
            io::Result::Ok(())
        });
        let written = written.await.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
        self.note_write(written.as_ref().err());
        let Err(error) = written else { return Ok(()) };
        let failure = DiskFailure::of(&error);
        tracing::warn!(object = %digest, %error, "an object cannot be stored; it is served from memory");
        if self.pause.after(failure, self.clock.now()) && failure == DiskFailure::NoSpace {
            // The disk has less room than it may take: after the pause there is some.
            let disk = self.clone();
            let _ = spawn_blocking(move || disk.index.shrink()).await;
        }
        Err(NotStored::Disk(failure))
    }

    fn note_write(&self, error: Option<&io::Error>) {
        self.metrics.writing.set(i64::from(error.is_none()));
        if let Ok(mut last) = self.last_failure.lock() {
            *last = error.map(ToString::to_string);
        }
    }

    /// Why the last object could not be stored; `None` when it was.
    pub(super) fn last_failure(&self) -> Option<String> {
        self.last_failure.lock().ok()?.clone()
    }

    /// Removes an object. Its bytes, when it was known to be there. Blocks.
    pub(super) fn remove(&self, digest: &ObjectDigest, why: Dropped) -> Option<u64> {
        let bytes = self.index.remove(digest).map(u64::from);
        self.layout.unlink(digest);
        if let Some(bytes) = bytes {
            self.metrics.dropped(why, bytes);
        }
        bytes
    }

    /// An object as it stands on disk, unverified: to look at. Blocks.
    pub(super) fn peek(&self, digest: &ObjectDigest) -> Option<Vec<u8>> {
        read::whole(&self.layout.path(digest)).ok()
    }

    /// How full it is, and of how much.
    pub(super) fn usage(&self) -> (u64, u64, u64) {
        (self.index.bytes(), self.index.limit(), self.index.entries())
    }
}

//! The disk tier: one file per object, named by its digest and verified on each read.
//!
//! The files are the only state. A damaged file is removed and counts as a miss, as does a missing one.

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

use self::index::Index;
use self::layout::Layout;
use super::budget::MemoryBudget;
use super::disk_failure::{Backoff, DiskFailure};
use super::metrics::{CacheMetrics, NotStored, RemovalReason, Tier};
use crate::clock::Clock;

/// The timeout of a read; the object is fetched instead.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The most concurrent reads, without those served from the page cache.
const MAX_READS: usize = 64;

/// The most concurrent writes.
const MAX_WRITES: usize = 32;

/// How long an object waits for a write slot before it is not stored.
const WRITE_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Disk {
    layout: Layout,
    index: Index,
    /// Until the scan is complete, an object that is not indexed may be on disk.
    is_scanned: AtomicBool,
    write_backoff: Backoff,
    writes: Semaphore,
    /// Bounds the threads that a hanging disk can block.
    reads: Arc<Semaphore>,
    read_backoff: Backoff,
    last_failure: Mutex<Option<String>>,
    clock: Clock,
    metrics: CacheMetrics,
}

impl Disk {
    /// Opens the tier of up to `limit` bytes below `dir`. Existing files are indexed in the background.
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
            write_backoff: Backoff::inactive(clock.now()),
            writes: Semaphore::new(MAX_WRITES),
            reads: Arc::new(Semaphore::new(MAX_READS)),
            read_backoff: Backoff::inactive(clock.now()),
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
                tracing::error!(%error, "the scan of the cache files failed");
            }
        });
        disk
    }

    fn may_have(&self, digest: &ObjectDigest) -> bool {
        !self.is_scanned.load(Ordering::Acquire) || self.index.contains(digest)
    }

    /// Counts a use of an object that was read from memory.
    pub(super) fn touch(&self, digest: &ObjectDigest) {
        self.index.touch(digest);
    }

    /// Whether an object is indexed.
    pub(super) fn has(&self, digest: &ObjectDigest) -> bool {
        self.index.contains(digest)
    }

    /// Reads an object from the page cache and verifies it, without waiting for the disk. `None`: use [`Disk::read`].
    pub(super) fn read_cached(&self, digest: &ObjectDigest, budget: &MemoryBudget) -> Option<Bytes> {
        self.index.get(digest)?;
        let (bytes, reservation) = read::cached(&self.layout.path(digest), budget)?;
        (ObjectDigest::of(&bytes) == *digest).then(|| {
            self.metrics.hit(Tier::Disk, bytes.len() as u64);
            reservation.attach(bytes)
        })
    }

    /// Reads and verifies an object of up to `most` bytes. `None`: it is not on disk, or the read failed or timed out.
    pub(super) async fn read(
        self: &Arc<Self>,
        digest: ObjectDigest,
        most: u64,
        budget: &MemoryBudget,
    ) -> Option<Bytes> {
        if !self.may_have(&digest) || self.read_backoff.is_active(self.clock.now()) {
            return None;
        }
        // A lack of memory is no fault of the disk, and a fill would not help.
        let reservation = budget.reserve(most).await?;
        let disk = self.clone();
        let reading = async {
            // Held by the thread, also after the timeout.
            let permit = self.reads.clone().acquire_owned().await.ok()?;
            let read = spawn_blocking(move || {
                let _permit = permit;
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
            tracing::warn!(object = %digest, "reading an object from disk timed out");
            self.read_backoff.start(DiskFailure::Failed, self.clock.now());
            return None;
        };
        Some(reservation.attach(bytes?))
    }

    /// Verifies the bytes of a file, and removes a corrupt one.
    fn verified(&self, digest: &ObjectDigest, bytes: Vec<u8>) -> Option<Vec<u8>> {
        if ObjectDigest::of(&bytes) == *digest {
            self.metrics.hit(Tier::Disk, bytes.len() as u64);
            if let (false, Ok(size)) = (self.index.contains(digest), u32::try_from(bytes.len())) {
                // The scan has not indexed it yet.
                self.index.insert(*digest, size);
            }
            return Some(bytes);
        }
        tracing::warn!(object = %digest, "a cache file is corrupt; its object is fetched again");
        self.metrics.verify_failed(Tier::Disk);
        self.remove(digest, RemovalReason::Corrupt);
        None
    }

    /// Handles a read error: a missing file is removed from the index, an unreadable one stays.
    fn cannot_read(&self, digest: &ObjectDigest, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::NotFound => {
                if let Some(bytes) = self.index.remove(digest) {
                    self.metrics.dropped(RemovalReason::Vanished, u64::from(bytes));
                }
            }
            io::ErrorKind::InvalidData => {
                self.metrics.verify_failed(Tier::Disk);
                self.remove(digest, RemovalReason::Corrupt);
            }
            _ => {
                self.metrics.read_failures.inc();
                tracing::warn!(object = %digest, %error, "an object cannot be read from disk");
            }
        }
    }

    /// Whether an object of this size would be stored now.
    pub(super) fn accepts(&self, bytes: u64) -> bool {
        self.index.takes(bytes) && !self.write_backoff.is_active(self.clock.now())
    }

    /// Stores a verified object. A failure is counted and shown in `/readyz`.
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
        let permit = tokio::time::timeout(WRITE_WAIT, self.writes.acquire()).await;
        let Ok(Ok(_permit)) = permit else { return Err(NotStored::QueueFull) };
        if self.write_backoff.is_active(self.clock.now()) {
            return Err(NotStored::Paused);
        }
        let disk = self.clone();
        let written = spawn_blocking(move || {
            disk.layout.write(&digest, &bytes)?;
            disk.index.insert(digest, size);
            if disk.index.has_shrunk() {
                disk.layout.free().into_iter().for_each(|free| disk.index.grow(free));
            }
            io::Result::Ok(())
        });
        let written = written.await.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
        self.note_write(written.as_ref().err());
        let Err(error) = written else { return Ok(()) };
        let failure = DiskFailure::of(&error);
        tracing::warn!(object = %digest, %error, "an object cannot be stored; it is served from memory");
        if self.write_backoff.start(failure, self.clock.now()) && failure == DiskFailure::NoSpace {
            // Leaves free space for the time after the back-off.
            let disk = self.clone();
            let _ = spawn_blocking(move || disk.index.shrink(disk.layout.free().unwrap_or(u64::MAX))).await;
        }
        Err(NotStored::Disk(failure))
    }

    fn note_write(&self, error: Option<&io::Error>) {
        self.metrics.writing.set(i64::from(error.is_none()));
        if let Ok(mut last) = self.last_failure.lock() {
            *last = error.map(ToString::to_string);
        }
    }

    /// The error of the last write; `None` when it succeeded.
    pub(super) fn last_failure(&self) -> Option<String> {
        self.last_failure.lock().ok()?.clone()
    }

    /// Removes an object. Returns its size when it was indexed. Blocks.
    pub(super) fn remove(&self, digest: &ObjectDigest, why: RemovalReason) -> Option<u64> {
        let bytes = self.index.remove(digest).map(u64::from);
        self.layout.unlink(digest);
        if let Some(bytes) = bytes {
            self.metrics.dropped(why, bytes);
        }
        bytes
    }

    /// Reads an object without verifying it or counting a use. Blocks.
    pub(super) fn peek(&self, digest: &ObjectDigest) -> Option<Vec<u8>> {
        read::whole(&self.layout.path(digest)).ok()
    }

    /// Bytes, limit and number of objects.
    pub(super) fn usage(&self) -> (u64, u64, u64) {
        (self.index.bytes(), self.index.limit(), self.index.entries())
    }
}

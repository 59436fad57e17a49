//! The index of objects on disk: an S3-FIFO cache of file sizes. Evicted files are unlinked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foyer_common::event::{Event, EventListener};
use foyer_memory::{Cache, CacheBuilder, S3FifoConfig};
use weir_protocol::digest::ObjectDigest;

use super::super::memory::shards;
use super::super::metrics::{CacheMetrics, RemovalReason, Tier};
use super::layout::Layout;

/// The block size in which file sizes are accounted, in bytes.
const BLOCK: u64 = 4096;

/// The most shards. Each has a lock and an equal part of the bytes.
const MAX_SHARDS: u64 = 16;

#[derive(Debug)]
pub(super) struct Index {
    /// The size of each file.
    files: Cache<ObjectDigest, u32>,
    limit: AtomicU64,
    configured: u64,
    /// What was free when the disk was full: little, or what a quota keeps back.
    free_when_full: AtomicU64,
    largest: u64,
}

struct Unlink {
    layout: Layout,
    metrics: CacheMetrics,
}

impl EventListener for Unlink {
    type Key = ObjectDigest;
    type Value = u32;

    /// Runs on the inserting thread, outside of the shard's lock. An object that was inserted again meanwhile may lose
    /// its new file; it is filled again when needed.
    fn on_leave(&self, reason: Event, digest: &ObjectDigest, bytes: &u32) {
        if reason == Event::Evict {
            self.layout.age(digest).into_iter().for_each(|age| self.metrics.evicted(Tier::Disk, age));
            self.layout.unlink(digest);
            self.metrics.dropped(RemovalReason::Size, u64::from(*bytes));
        }
    }
}

impl Index {
    /// An index of files of `limit` bytes in total.
    pub(super) fn new(limit: u64, layout: Layout, metrics: CacheMetrics) -> Self {
        let shards = shards(limit, MAX_SHARDS);
        let files = CacheBuilder::new(usize::try_from(limit).unwrap_or(usize::MAX))
            .with_shards(usize::try_from(shards).expect("a small number"))
            .with_eviction_config(S3FifoConfig::default())
            .with_weighter(|_, bytes: &u32| usize::try_from(on_disk(u64::from(*bytes))).unwrap_or(usize::MAX))
            .with_event_listener(Arc::new(Unlink { layout, metrics }))
            .build();
        let (free_when_full, largest) = (AtomicU64::default(), limit / shards);
        Self { files, limit: AtomicU64::new(limit), configured: limit, free_when_full, largest }
    }

    /// Whether an object of this size fits.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        on_disk(bytes) <= self.largest && u32::try_from(bytes).is_ok()
    }

    /// Inserts a file, and unlinks evicted ones. Blocks.
    pub(super) fn insert(&self, digest: ObjectDigest, bytes: u32) {
        self.files.insert(digest, bytes);
    }

    /// The size of an object's file. Counts as a use.
    pub(super) fn get(&self, digest: &ObjectDigest) -> Option<u32> {
        self.files.get(digest).map(|entry| *entry.value())
    }

    /// Counts a use of an object that was read from memory, so that its file is not evicted.
    pub(super) fn touch(&self, digest: &ObjectDigest) {
        self.files.touch(digest);
    }

    /// Whether a file is indexed, without counting as a use.
    pub(super) fn contains(&self, digest: &ObjectDigest) -> bool {
        self.files.contains(digest)
    }

    /// Removes a file from the index; the caller unlinks it.
    pub(super) fn remove(&self, digest: &ObjectDigest) -> Option<u32> {
        self.files.remove(digest).map(|entry| *entry.value())
    }

    /// Lowers the limit to 15/16 of the current usage, because the disk is full. `free`: bytes that it says are free. Blocks.
    pub(super) fn shrink(&self, free: u64) {
        self.free_when_full.store(free, Ordering::Relaxed);
        self.resize(fifteen_sixteenths(self.bytes()));
    }

    /// Whether the disk was full.
    pub(super) fn has_shrunk(&self) -> bool {
        self.limit() < self.configured
    }

    /// Raises the limit again, up to 15/16 of what there is room for now that `free` bytes are free. Blocks.
    pub(super) fn grow(&self, free: u64) {
        let more = free.saturating_sub(self.free_when_full.load(Ordering::Relaxed));
        let limit = fifteen_sixteenths(self.bytes().saturating_add(more)).min(self.configured);
        if limit > self.limit() {
            self.resize(limit);
        }
    }

    fn resize(&self, limit: u64) {
        if limit > 0 && usize::try_from(limit).is_ok_and(|limit| self.files.resize(limit).is_ok()) {
            self.limit.store(limit, Ordering::Relaxed);
        }
    }

    /// Bytes of the files, in blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.files.usage() as u64
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn entries(&self) -> u64 {
        self.files.entries() as u64
    }
}

/// The disk space of a file.
fn on_disk(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(BLOCK)
}

fn fifteen_sixteenths(bytes: u64) -> u64 {
    bytes - bytes / 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::Registry;
    use std::fs::File;
    use std::time::{Duration, SystemTime};
    use weir_runtime::directory_lock::DirectoryLock;

    #[test]
    fn the_age_of_an_evicted_file_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path(), DirectoryLock::take(dir.path()).unwrap().0);
        let metrics = CacheMetrics::register(&Registry::new()).unwrap();
        let index = Index::new(1 << 20, layout.clone(), metrics.clone());
        let (first, hour) = (ObjectDigest::of(b"first"), Duration::from_secs(3600));
        layout.write(&first, b"first").unwrap();
        let file = File::options().write(true).open(layout.path(&first)).unwrap();
        file.set_modified(SystemTime::now() - hour).unwrap();
        index.insert(first, 5);
        // Files that another program has deleted have no age.
        (0..600u32).for_each(|n| index.insert(ObjectDigest::of(&n.to_le_bytes()), 1 << 10));
        assert!(!index.contains(&first) && !layout.path(&first).exists());
        assert_eq!(metrics.evicted_ages(Tier::Disk), (1, hour.as_secs()));
    }

    #[test]
    fn the_limit_follows_the_room_on_a_disk_that_was_full() {
        const MIB: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path(), DirectoryLock::take(dir.path()).unwrap().0);
        let index = Index::new(64 * MIB, layout, CacheMetrics::register(&Registry::new()).unwrap());
        (0..16u32).for_each(|n| index.insert(ObjectDigest::of(&n.to_le_bytes()), 1 << 20));
        index.shrink(3 * MIB);
        let shrunk = index.limit();
        assert!(index.has_shrunk() && shrunk == 15 * MIB && index.bytes() <= shrunk);
        // What eviction made free is no reason, nor what was free when it was full.
        index.grow(3 * MIB + (16 * MIB - index.bytes()));
        assert_eq!(index.limit(), shrunk);
        index.grow(3 * MIB + (32 * MIB - index.bytes()));
        assert_eq!(index.limit(), 30 * MIB);
        index.grow(1000 * MIB);
        assert_eq!((index.limit(), index.has_shrunk()), (64 * MIB, false));
        (16..50u32).for_each(|n| index.insert(ObjectDigest::of(&n.to_le_bytes()), 1 << 20));
        assert!(index.bytes() > 40 * MIB, "it takes more again");
    }
}

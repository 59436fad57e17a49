//! Which objects are on disk: an S3-FIFO cache whose entries are files. What it evicts is unlinked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foyer_common::event::{Event, EventListener};
use foyer_memory::{Cache, CacheBuilder, S3FifoConfig};
use weir_protocol::digest::ObjectDigest;

use super::super::memory::shards;
use super::super::metrics::{CacheMetrics, Dropped};
use super::layout::Layout;

/// What a file takes of the disk is counted in blocks of this size, in bytes.
const BLOCK: u64 = 4096;

/// The most shards, each with a lock and an even part of the bytes.
const MAX_SHARDS: u64 = 16;

/// The index. Its entries weigh what their files take of the disk.
#[derive(Debug)]
pub(super) struct Index {
    /// The bytes of each file.
    files: Cache<ObjectDigest, u32>,
    limit: AtomicU64,
    largest: u64,
}

struct Unlink {
    layout: Layout,
    metrics: CacheMetrics,
}

impl EventListener for Unlink {
    type Key = ObjectDigest;
    type Value = u32;

    /// Runs on the thread that inserted, outside of the shard's lock. An object that was inserted again meanwhile may lose
    /// its new file: it is fetched again when somebody asks for it.
    fn on_leave(&self, reason: Event, digest: &ObjectDigest, bytes: &u32) {
        if reason == Event::Evict {
            self.layout.unlink(digest);
            self.metrics.dropped(Dropped::Size, u64::from(*bytes));
        }
    }
}

impl Index {
    /// An empty index of files of `limit` bytes in all.
    pub(super) fn new(limit: u64, layout: Layout, metrics: CacheMetrics) -> Self {
        let shards = shards(limit, MAX_SHARDS);
        let files = CacheBuilder::new(usize::try_from(limit).unwrap_or(usize::MAX))
            .with_shards(usize::try_from(shards).expect("a small number"))
            .with_eviction_config(S3FifoConfig::default())
            .with_weighter(|_, bytes: &u32| usize::try_from(on_disk(u64::from(*bytes))).unwrap_or(usize::MAX))
            .with_event_listener(Arc::new(Unlink { layout, metrics }))
            .build();
        Self { files, limit: AtomicU64::new(limit), largest: limit / shards }
    }

    /// Whether an object of this size is ever taken.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        on_disk(bytes) <= self.largest && u32::try_from(bytes).is_ok()
    }

    /// Notes a file, and unlinks those that have to go for it. Blocks.
    pub(super) fn insert(&self, digest: ObjectDigest, bytes: u32) {
        self.files.insert(digest, bytes);
    }

    /// The bytes of an object's file. The object is thereby used.
    pub(super) fn get(&self, digest: &ObjectDigest) -> Option<u32> {
        self.files.get(digest).map(|entry| *entry.value())
    }

    /// The object of a file is used, wherever its bytes came from: what is often read from memory stays on disk.
    pub(super) fn touch(&self, digest: &ObjectDigest) {
        self.files.touch(digest);
    }

    /// Whether a file is noted, without using its object.
    pub(super) fn contains(&self, digest: &ObjectDigest) -> bool {
        self.files.contains(digest)
    }

    /// Forgets a file, which is the caller's to unlink.
    pub(super) fn remove(&self, digest: &ObjectDigest) -> Option<u32> {
        self.files.remove(digest).map(|entry| *entry.value())
    }

    /// Takes a sixteenth less from now on than there is: the disk has no more room. Blocks.
    pub(super) fn shrink(&self) {
        let usage = self.files.usage();
        let limit = usage - usage / 16;
        if limit > 0 && self.files.resize(limit).is_ok() {
            self.limit.store(limit as u64, Ordering::Relaxed);
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

/// What a file of so many bytes takes of the disk.
fn on_disk(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(BLOCK)
}

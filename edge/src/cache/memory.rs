//! The memory tier: an S3-FIFO cache of objects, bounded in bytes.

use std::sync::Arc;

use bytes::Bytes;
use foyer_common::event::{Event, EventListener};
use foyer_memory::{Cache, CacheBuilder, S3FifoConfig};
use prometheus::IntCounter;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::manifest::MAX_OBJECT_BYTES;

use super::budget::counted;

/// The most shards. Each has a lock and an equal part of the bytes.
const MAX_SHARDS: u64 = 16;

#[derive(Debug)]
pub(super) struct Memory {
    objects: Cache<ObjectDigest, Bytes>,
    /// The largest object that fits into a shard, in bytes.
    largest: u64,
}

struct CountEvictions(IntCounter);

impl EventListener for CountEvictions {
    type Key = ObjectDigest;
    type Value = Bytes;

    fn on_leave(&self, reason: Event, _: &ObjectDigest, _: &Bytes) {
        self.0.inc_by(u64::from(reason == Event::Evict));
    }
}

impl Memory {
    pub(super) fn new(limit: u64, evictions: IntCounter) -> Self {
        let shards = shards(limit, MAX_SHARDS);
        let objects = CacheBuilder::new(usize::try_from(limit).unwrap_or(usize::MAX))
            .with_shards(usize::try_from(shards).expect("a small number"))
            .with_eviction_config(S3FifoConfig::default())
            .with_weighter(|_, bytes: &Bytes| usize::try_from(counted(bytes.len() as u64)).unwrap_or(usize::MAX))
            .with_event_listener(Arc::new(CountEvictions(evictions)))
            .build();
        Self { objects, largest: limit / shards }
    }

    /// Gets an object and counts it as used.
    pub(super) fn get(&self, digest: &ObjectDigest) -> Option<Bytes> {
        self.objects.get(digest).map(|entry| entry.value().clone())
    }

    /// Whether an object is cached, without counting it as used.
    pub(super) fn contains(&self, digest: &ObjectDigest) -> bool {
        self.objects.contains(digest)
    }

    /// Inserts an object. False: it is too large.
    pub(super) fn insert(&self, digest: ObjectDigest, bytes: Bytes) -> bool {
        let fits = counted(bytes.len() as u64) <= self.largest;
        if fits {
            self.objects.insert(digest, bytes);
        }
        fits
    }

    /// Removes an object. Returns its size.
    pub(super) fn remove(&self, digest: &ObjectDigest) -> Option<u64> {
        self.objects.remove(digest).map(|entry| entry.value().len() as u64)
    }

    /// Accounted bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.objects.usage() as u64
    }

    pub(super) fn entries(&self) -> u64 {
        self.objects.entries() as u64
    }

    pub(super) fn limit(&self) -> u64 {
        self.objects.capacity() as u64
    }
}

/// The shards of a tier of `limit` bytes: few when it is small, so that each has room for several of the largest
/// objects.
pub(super) fn shards(limit: u64, most: u64) -> u64 {
    (limit / (4 * MAX_OBJECT_BYTES as u64)).clamp(1, most)
}

//! The memory tier: an S3-FIFO cache of objects, bounded in bytes.

use std::sync::Arc;

use bytes::Bytes;
use foyer_common::event::{Event, EventListener};
use foyer_memory::{Cache, CacheBuilder, S3FifoConfig};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::manifest::MAX_OBJECT_BYTES;

use super::budget::counted;
use super::metrics::{CacheMetrics, Tier};
use crate::clock::{Clock, Moment};

/// The most shards. Each has a lock and an equal part of the bytes.
const MAX_SHARDS: u64 = 16;

#[derive(Debug)]
pub(super) struct Memory {
    objects: Cache<ObjectDigest, Object>,
    clock: Clock,
    /// The largest object that fits into a shard, in bytes.
    largest: u64,
}

#[derive(Debug)]
struct Object {
    bytes: Bytes,
    since: Moment,
}

struct CountEvictions {
    clock: Clock,
    metrics: CacheMetrics,
}

impl EventListener for CountEvictions {
    type Key = ObjectDigest;
    type Value = Object;

    fn on_leave(&self, reason: Event, _: &ObjectDigest, object: &Object) {
        if reason == Event::Evict {
            self.metrics.memory_evictions.inc();
            self.metrics.evicted(Tier::Memory, self.clock.now().since(object.since));
        }
    }
}

impl Memory {
    pub(super) fn new(limit: u64, clock: Clock, metrics: CacheMetrics) -> Self {
        let shards = shards(limit, MAX_SHARDS);
        let objects = CacheBuilder::new(usize::try_from(limit).unwrap_or(usize::MAX))
            .with_shards(usize::try_from(shards).expect("a small number"))
            .with_eviction_config(S3FifoConfig::default())
            .with_weighter(|_, object: &Object| {
                usize::try_from(counted(object.bytes.len() as u64)).unwrap_or(usize::MAX)
            })
            .with_event_listener(Arc::new(CountEvictions { clock, metrics }))
            .build();
        Self { objects, clock, largest: limit / shards }
    }

    /// Gets an object and counts it as used.
    pub(super) fn get(&self, digest: &ObjectDigest) -> Option<Bytes> {
        self.objects.get(digest).map(|entry| entry.value().bytes.clone())
    }

    /// Whether an object is cached, without counting it as used.
    pub(super) fn contains(&self, digest: &ObjectDigest) -> bool {
        self.objects.contains(digest)
    }

    /// Inserts an object. False: it is too large.
    pub(super) fn insert(&self, digest: ObjectDigest, bytes: Bytes) -> bool {
        let fits = counted(bytes.len() as u64) <= self.largest;
        if fits {
            self.objects.insert(digest, Object { bytes, since: self.clock.now() });
        }
        fits
    }

    /// Removes an object. Returns its size.
    pub(super) fn remove(&self, digest: &ObjectDigest) -> Option<u64> {
        self.objects.remove(digest).map(|entry| entry.value().bytes.len() as u64)
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

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::Registry;

    #[test]
    fn the_age_of_an_evicted_object_is_measured() {
        let metrics = CacheMetrics::register(&Registry::new()).unwrap();
        let clock = Clock::start();
        let memory = Memory::new(4 << 20, clock, metrics.clone());
        let hour = std::time::Duration::from_secs(3600);
        let old = Object { bytes: Bytes::from(vec![0; 1 << 20]), since: clock.now().before(hour) };
        memory.objects.insert(ObjectDigest::of(b"old"), old);
        for number in 0..4u32 {
            memory.insert(ObjectDigest::of(&number.to_le_bytes()), Bytes::from(vec![0; 1 << 20]));
        }
        let evictions = metrics.memory_evictions.get();
        assert!(evictions > 0 && !memory.contains(&ObjectDigest::of(b"old")));
        assert_eq!(metrics.evicted_ages(Tier::Memory), (evictions, hour.as_secs()));
    }
}

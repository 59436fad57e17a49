//! Blobs in memory: those that are asked for again, bounded in bytes, under the same policy as the disk.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use weir_shared::digest::BlobDigest;

use super::eviction::{Evicted, Limits, Policy, Slot};
use crate::clock::Moment;

/// The largest blob that is held in memory, in bytes.
const LARGEST: u64 = 4 << 20;

/// So many blobs of the largest size fit at least.
const FIT_AT_LEAST: u64 = 16;

/// The tier.
#[derive(Debug)]
pub(super) struct Memory {
    largest: u64,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    policy: Policy,
    blobs: HashMap<BlobDigest, Bytes>,
    /// Those that somebody is reading from disk.
    coming: HashSet<BlobDigest>,
}

/// The right to read one blob into memory: one at a time has it.
#[derive(Debug)]
pub(super) struct Coming<'a> {
    memory: &'a Memory,
    digest: BlobDigest,
}

impl Memory {
    /// An empty tier of at most `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        let policy = Policy::new(Limits { bytes: limit, entries: usize::MAX });
        let held = Held { policy, blobs: HashMap::new(), coming: HashSet::new() };
        Self { largest: LARGEST.min(limit / FIT_AT_LEAST), held: Mutex::new(held) }
    }

    /// A blob, which is thereby used.
    pub(super) fn get(&self, digest: &BlobDigest, now: Moment) -> Option<Bytes> {
        let mut held = self.held();
        held.policy.touch(digest, now)?;
        held.blobs.get(digest).cloned()
    }

    /// The right to bring a blob here; `None` when it is too large, is here, or is on its way.
    pub(super) fn expect(&self, digest: BlobDigest, size: u64) -> Option<Coming<'_>> {
        let mut held = self.held();
        let wanted = size <= self.largest && !held.blobs.contains_key(&digest) && held.coming.insert(digest);
        wanted.then(|| Coming { memory: self, digest })
    }

    /// Forgets a blob, and gives its size; `None` when it was not here.
    pub(super) fn remove(&self, digest: &BlobDigest) -> Option<u64> {
        let gone = {
            let mut held = self.held();
            held.policy.remove(digest);
            held.blobs.remove(digest)
        };
        gone.map(|bytes| bytes.len() as u64)
    }

    /// What is known of a blob, which is not thereby used.
    pub(super) fn look_at(&self, digest: &BlobDigest) -> Option<Slot> {
        self.held().policy.slot(digest).copied()
    }

    /// Bytes and blobs that are held, and the bytes that may be.
    pub(super) fn usage(&self) -> (u64, usize, u64) {
        let held = self.held();
        (held.policy.used(), held.policy.len(), held.policy.limits().bytes)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Coming<'_> {
    /// Takes up the blob. Says how many had to go for it.
    pub(super) fn put(self, bytes: Bytes, now: Moment) -> usize {
        let size = bytes.len() as u64;
        // Dropped after the lock is released: giving megabytes back to the allocator takes its time.
        let gone: Vec<Option<Bytes>> = {
            let mut held = self.memory.held();
            let evicted: Vec<Evicted> = held.policy.reserve(size);
            held.policy.release(size);
            held.policy.insert(self.digest, size, true, now);
            held.blobs.insert(self.digest, bytes);
            evicted.iter().map(|gone| held.blobs.remove(&gone.digest)).collect()
        };
        gone.len()
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.memory.held().coming.remove(&self.digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn its_bytes_are_bounded_and_one_reader_at_a_time_brings_a_blob() {
        let now = Clock::begin().now();
        let memory = Memory::new(16 << 10);
        let blob = |n: u8| Bytes::from(vec![n; 1 << 10]);
        assert!(memory.expect(BlobDigest::of(b"large"), (1 << 10) + 1).is_none());
        for n in 0..100 {
            let digest = BlobDigest::of(&blob(n));
            let coming = memory.expect(digest, 1 << 10).unwrap();
            assert!(memory.expect(digest, 1 << 10).is_none());
            coming.put(blob(n), now);
            assert_eq!(memory.get(&digest, now), Some(blob(n)));
            assert!(memory.expect(digest, 1 << 10).is_none());
            let (bytes, blobs, limit) = memory.usage();
            assert!(bytes <= limit && memory.held().blobs.len() == blobs && memory.held().coming.is_empty());
        }
        drop(memory.expect(BlobDigest::of(b"given up"), 1).unwrap());
        assert!(memory.expect(BlobDigest::of(b"given up"), 1).is_some());
        memory.remove(&BlobDigest::of(&blob(99)));
        assert_eq!(memory.get(&BlobDigest::of(&blob(99)), now), None);
    }
}

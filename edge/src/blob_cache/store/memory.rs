//! Blobs in memory: those that are asked for again, bounded in bytes, under the same policy as the disk.
//!
//! The bound holds for the process and not only for the tier: a blob takes its [`Place`] until the last one who reads it
//! has let go of it, wherever it went meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prometheus::IntCounter;
use weir_shared::digest::BlobDigest;

use super::eviction::{Limits, Policy, Slot};
use crate::clock::Moment;

/// The largest blob that is held in memory, in bytes.
const LARGEST: u64 = 4 << 20;

/// So many blobs of the largest size fit at least.
const FIT_AT_LEAST: u64 = 16;

/// The tier.
#[derive(Debug)]
pub(super) struct Memory {
    largest: u64,
    limit: u64,
    held: Mutex<Held>,
    /// Bytes of all places.
    taken: Arc<AtomicU64>,
    evictions: IntCounter,
}

/// Bytes of the memory that are set aside for one blob; given back when this is dropped.
#[derive(Debug)]
pub(in crate::blob_cache) struct Place {
    size: u64,
    taken: Arc<AtomicU64>,
}

/// Bytes that take a place.
struct Placed {
    bytes: Bytes,
    _place: Place,
}

/// What is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InMemory {
    /// Bytes of the blobs that are held.
    pub(super) bytes: u64,
    /// Blobs that are held.
    pub(super) blobs: usize,
    /// Bytes of blobs that are on their way here, or are held no more and still read.
    pub(super) lent_bytes: u64,
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
    place: Option<Place>,
}

impl Memory {
    /// An empty tier of at most `limit` bytes, which counts what it evicts.
    pub(super) fn new(limit: u64, evictions: IntCounter) -> Self {
        let policy = Policy::new(Limits { bytes: limit, entries: usize::MAX });
        let held = Held { policy, blobs: HashMap::new(), coming: HashSet::new() };
        let largest = LARGEST.min(limit / FIT_AT_LEAST);
        Self { largest, limit, held: Mutex::new(held), taken: Arc::default(), evictions }
    }

    /// A place for `size` bytes, evicting what has to go for it; `None` while readers have too much of the memory.
    pub(super) fn place(&self, size: u64) -> Option<Place> {
        // Dropped after the lock is released: giving megabytes back to the allocator takes its time.
        let gone: Vec<Option<Bytes>> = {
            let mut held = self.held();
            let wanted = size + held.lent(&self.taken);
            if wanted > self.limit {
                return None;
            }
            let evicted = held.policy.reserve(wanted);
            held.policy.release(wanted);
            evicted.iter().map(|gone| held.blobs.remove(&gone.digest)).collect()
        };
        self.evictions.inc_by(gone.len() as u64);
        drop(gone);
        // What somebody reads of the evicted ones is in memory still.
        let more = |taken: u64| Some(taken + size).filter(|taken| *taken <= self.limit);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Place { size, taken: self.taken.clone() })
    }

    /// A blob, which is thereby used.
    pub(super) fn get(&self, digest: &BlobDigest, now: Moment) -> Option<Bytes> {
        let mut held = self.held();
        held.policy.touch(digest, now)?;
        held.blobs.get(digest).cloned()
    }

    /// The right to bring a blob here; `None` when it is too large, is here, is on its way, or finds no place.
    pub(super) fn expect(&self, digest: BlobDigest, size: u64) -> Option<Coming<'_>> {
        let is_wanted = {
            let mut held = self.held();
            size <= self.largest && !held.blobs.contains_key(&digest) && held.coming.insert(digest)
        };
        let mut coming = is_wanted.then(|| Coming { memory: self, digest, place: None })?;
        coming.place = Some(self.place(size)?);
        Some(coming)
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

    /// Bytes that may be in memory.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// What is in memory.
    pub(super) fn usage(&self) -> InMemory {
        let held = self.held();
        InMemory { bytes: held.policy.used(), blobs: held.policy.len(), lent_bytes: held.lent(&self.taken) }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn lent(&self, taken: &AtomicU64) -> u64 {
        taken.load(Ordering::Relaxed).saturating_sub(self.policy.used())
    }
}

impl Place {
    /// Puts a blob there. Its bytes take the place until nobody has them any more.
    pub(in crate::blob_cache) fn put(self, bytes: Bytes) -> Bytes {
        debug_assert_eq!(bytes.len() as u64, self.size);
        Bytes::from_owner(Placed { bytes, _place: self })
    }
}

impl AsRef<[u8]> for Placed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.size, Ordering::Relaxed);
    }
}

impl Coming<'_> {
    /// Takes up the blob, and gives it back as it is held.
    pub(super) fn put(mut self, bytes: Bytes, now: Moment) -> Bytes {
        let Some(place) = self.place.take() else { return bytes };
        let bytes = place.put(bytes);
        let mut held = self.memory.held();
        held.policy.insert(self.digest, bytes.len() as u64, None, now);
        let before = held.blobs.insert(self.digest, bytes.clone());
        drop(held);
        drop(before);
        bytes
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

    fn memory(limit: u64) -> Memory {
        Memory::new(limit, IntCounter::new("evictions", "evictions").unwrap())
    }

    fn blob(n: u8) -> (BlobDigest, Bytes) {
        let bytes = Bytes::from(vec![n; 1 << 10]);
        (BlobDigest::of(&bytes), bytes)
    }

    #[test]
    fn its_bytes_are_bounded_and_one_reader_at_a_time_brings_a_blob() {
        let now = Clock::begin().now();
        let memory = memory(16 << 10);
        assert!(memory.expect(BlobDigest::of(b"large"), (1 << 10) + 1).is_none());
        for n in 0..100 {
            let (digest, bytes) = blob(n);
            let coming = memory.expect(digest, 1 << 10).unwrap();
            assert!(memory.expect(digest, 1 << 10).is_none());
            coming.put(bytes.clone(), now);
            assert_eq!(memory.get(&digest, now), Some(bytes));
            assert!(memory.expect(digest, 1 << 10).is_none());
            let usage = memory.usage();
            assert!(usage.bytes <= memory.limit && usage.lent_bytes == 0);
            assert!(memory.held().blobs.len() == usage.blobs && memory.held().coming.is_empty());
        }
        assert_eq!(memory.evictions.get() as usize, 100 - memory.usage().blobs);
        drop(memory.expect(BlobDigest::of(b"given up"), 1).unwrap());
        assert!(memory.expect(BlobDigest::of(b"given up"), 1).is_some());
        memory.remove(&blob(99).0);
        assert_eq!(memory.get(&blob(99).0, now), None);
    }

    #[test]
    fn what_readers_have_of_evicted_blobs_counts_until_they_let_go_of_it() {
        let now = Clock::begin().now();
        let memory = memory(16 << 10);
        let mut read = Vec::new();
        for n in 0..100 {
            let (digest, bytes) = blob(n);
            if let Some(coming) = memory.expect(digest, 1 << 10) {
                // A part of it is as good as all of it.
                read.push(coming.put(bytes, now).slice(..1));
            }
            let usage = memory.usage();
            assert!(usage.bytes + usage.lent_bytes <= memory.limit);
        }
        assert_eq!(read.len(), 16, "the others are served from their files");
        assert!(memory.place(1 << 10).is_none() && memory.held().coming.is_empty());
        read.truncate(1);
        let place = memory.place(1 << 10).unwrap();
        let used = memory.usage();
        let bytes = place.put(blob(7).1);
        assert_eq!((bytes, memory.usage()), (blob(7).1, used));
        drop(read);
        let left = memory.usage();
        assert_eq!(left.lent_bytes, 0);
        assert_eq!(memory.taken.load(Ordering::Relaxed), left.bytes);
    }
}

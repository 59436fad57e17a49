//! Which blobs are kept and which have to go: bytes and order of use, without I/O and without a clock.
//!
//! Bytes count from the moment a fill begins: room is reserved before a byte is written, so that the bound holds for
//! the disk and not only for what is finished.

use std::collections::{BTreeMap, HashMap};

use weir_shared::digest::BlobDigest;

use crate::clock::Moment;

/// To how many hundredths of the limit the cache is emptied when it is full: a little room at a time would make every
/// fill evict.
const LOW_WATERMARK_PERCENT: u64 = 90;

/// The blobs of the cache, by name and by use.
#[derive(Debug)]
pub(crate) struct Accounting {
    limit: u64,
    kept: u64,
    reserved: u64,
    slots: HashMap<BlobDigest, Slot>,
    /// From the one that was used the longest ago.
    by_use: BTreeMap<u64, BlobDigest>,
    next_use: u64,
}

/// What is known of a blob that is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    /// Its bytes.
    pub(crate) size: u64,
    /// Its bytes were compared with its name since the process began.
    pub(crate) verified: bool,
    last_use: u64,
    /// When it was used last.
    pub(crate) last_used_at: Moment,
}

/// A blob that has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evicted {
    /// Its name.
    pub(crate) digest: BlobDigest,
    /// Its bytes.
    pub(crate) size: u64,
}

impl Accounting {
    /// An empty cache of at most `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, kept: 0, reserved: 0, slots: HashMap::new(), by_use: BTreeMap::new(), next_use: 0 }
    }

    /// Bytes that are kept or reserved.
    pub(crate) fn used(&self) -> u64 {
        self.kept + self.reserved
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether a blob of this size is kept at all.
    pub(crate) fn fits(&self, size: u64) -> bool {
        size <= self.limit
    }

    /// What is known of a blob, which is thereby used.
    pub(crate) fn touch(&mut self, digest: &BlobDigest, now: Moment) -> Option<Slot> {
        let slot = self.slots.get_mut(digest)?;
        self.by_use.remove(&slot.last_use);
        (slot.last_use, slot.last_used_at) = (self.next_use, now);
        self.by_use.insert(self.next_use, *digest);
        self.next_use += 1;
        Some(*slot)
    }

    /// What is known of a blob, which is not thereby used.
    pub(crate) fn look_at(&self, digest: &BlobDigest) -> Option<Slot> {
        self.slots.get(digest).copied()
    }

    /// Has a blob's bytes compared with its name before its next use. Its size, when it was known.
    pub(crate) fn distrust(&mut self, digest: &BlobDigest) -> Option<u64> {
        let slot = self.slots.get_mut(digest)?;
        slot.verified = false;
        Some(slot.size)
    }

    /// Notes that a blob's bytes are what its name says.
    pub(crate) fn verified(&mut self, digest: &BlobDigest) {
        if let Some(slot) = self.slots.get_mut(digest) {
            slot.verified = true;
        }
    }

    /// Makes room for a blob that is about to be fetched. What is returned has to be deleted.
    pub(crate) fn reserve(&mut self, size: u64) -> Vec<Evicted> {
        self.reserved += size;
        self.shrink()
    }

    /// Gives back room that was reserved.
    pub(crate) fn release(&mut self, size: u64) {
        self.reserved = self.reserved.saturating_sub(size);
    }

    /// Takes up a blob that is on disk. Room must have been reserved, or [`Accounting::shrink`] follows.
    pub(crate) fn insert(&mut self, digest: BlobDigest, size: u64, verified: bool, now: Moment) {
        self.remove(&digest);
        self.kept += size;
        self.by_use.insert(self.next_use, digest);
        self.slots.insert(digest, Slot { size, verified, last_use: self.next_use, last_used_at: now });
        self.next_use += 1;
    }

    /// Forgets a blob. `None` when it was not known.
    pub(crate) fn remove(&mut self, digest: &BlobDigest) -> Option<Evicted> {
        let slot = self.slots.remove(digest)?;
        self.by_use.remove(&slot.last_use);
        self.kept -= slot.size;
        Some(Evicted { digest: *digest, size: slot.size })
    }

    /// When more is used than is allowed, forgets what was used the longest ago until the low watermark is reached.
    /// What is returned has to be deleted.
    pub(crate) fn shrink(&mut self) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        if self.used() <= self.limit {
            return evicted;
        }
        let low = u64::try_from(u128::from(self.limit) * u128::from(LOW_WATERMARK_PERCENT) / 100).unwrap_or(self.limit);
        while self.used() > low {
            let Some(oldest) = self.by_use.first_key_value().map(|(_, digest)| *digest) else { break };
            evicted.extend(self.remove(&oldest));
        }
        evicted
    }

    /// When the blob that is the next to go was used last.
    pub(crate) fn oldest_use(&self) -> Option<Moment> {
        let (_, digest) = self.by_use.first_key_value()?;
        Some(self.slots.get(digest)?.last_used_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use proptest::prelude::*;

    fn name(n: u8) -> BlobDigest {
        BlobDigest::of(&[n])
    }

    #[test]
    fn the_one_used_the_longest_ago_goes_first() {
        let now = Clock::begin().now();
        let mut cache = Accounting::new(100);
        for n in 0..4 {
            assert!(cache.reserve(25).is_empty());
            cache.release(25);
            cache.insert(name(n), 25, true, now);
        }
        cache.touch(&name(0), now);
        // One byte too many empties it to 90 in all: 74 of the old ones may stay, and two of them are 50.
        let evicted: Vec<_> = cache.reserve(16).into_iter().map(|e| e.digest).collect();
        assert_eq!(evicted, [name(1), name(2)]);
        assert_eq!(cache.used(), 66);
        assert!(!cache.fits(101));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Fill(u8, u64),
        Fail(u64),
        Touch(u8),
        Remove(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u8..20, 1u64..60).prop_map(|(n, size)| Step::Fill(n, size)),
            (1u64..60).prop_map(Step::Fail),
            (0u8..20).prop_map(Step::Touch),
            (0u8..20).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn the_bound_holds_and_the_books_balance(steps in proptest::collection::vec(step(), 0..80)) {
            let now = Clock::begin().now();
            let mut cache = Accounting::new(100);
            let mut on_disk = HashMap::new();
            for step in steps {
                match step {
                    Step::Fill(n, size) => {
                        for gone in cache.reserve(size) {
                            prop_assert_eq!(on_disk.remove(&gone.digest), Some(gone.size));
                        }
                        prop_assert!(cache.used() <= 100);
                        cache.release(size);
                        on_disk.insert(name(n), size);
                        cache.insert(name(n), size, true, now);
                    }
                    Step::Fail(size) => {
                        for gone in cache.reserve(size) {
                            on_disk.remove(&gone.digest);
                        }
                        cache.release(size);
                    }
                    Step::Touch(n) => prop_assert_eq!(cache.touch(&name(n), now).is_some(), on_disk.contains_key(&name(n))),
                    Step::Remove(n) => {
                        let removed = cache.remove(&name(n)).map(|gone| gone.size);
                        prop_assert_eq!(removed, on_disk.remove(&name(n)));
                    }
                }
                prop_assert_eq!(cache.used(), on_disk.values().sum::<u64>());
                prop_assert!(cache.used() <= 100);
                prop_assert_eq!(cache.len(), on_disk.len());
                prop_assert_eq!(cache.by_use.len(), on_disk.len());
                prop_assert_eq!(cache.oldest_use().is_some(), !on_disk.is_empty());
            }
        }
    }
}

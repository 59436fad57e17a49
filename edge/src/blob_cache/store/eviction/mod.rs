//! Which blobs are kept and which have to go: S3-FIFO over bytes and entries, without I/O and without a clock.
//!
//! A new blob is on **probation**. When its turn to go comes it stays only if it was asked for again meanwhile; then it
//! is **established**. So what is asked for once (a scan, a restore of old versions) passes through the tenth that is
//! probation's and disturbs nobody else. **Ghosts** are the names of blobs that failed probation: one that is fetched
//! again soon was judged too early, and is established at once.
//!
//! Bytes count before they are written: room is reserved first, so that the bound holds for the disk and not only for
//! what is finished. Nothing has to go for a blob before its origin has sent some of it: until then there is a **claim**,
//! which says only that the room is there to be had. Claims and reservations are probation's: what is on its way takes
//! the place of established blobs only as far as all of it together stays within probation's tenth, or is one blob alone.

mod ghosts;
#[cfg(test)]
mod hit_ratio;
mod on_the_way;
mod queue;
mod slot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;

use weir_shared::digest::BlobDigest;

use self::ghosts::Ghosts;
use self::on_the_way::OnTheWay;
use self::queue::Queue;
use self::slot::MAX_USES;
use super::file_stamp::FileStamp;
use crate::clock::Moment;

pub(crate) use self::slot::{Evicted, Slot, Usage};

/// The high watermark is the limit itself; an eviction goes on to this many hundredths of it, because a little room at
/// a time would make every fill evict.
const LOW_WATERMARK_PERCENT: u64 = 90;

/// Blobs that one eviction drops at the most beyond those that it has to: nobody waits for a hundred thousand files to
/// be deleted.
const MAX_AHEAD: usize = 256;

/// Blobs that one eviction gives another turn, at the most: where all were used it would otherwise go through all of them
/// before it finds one, and everybody waits for it.
const MAX_TURNS_GIVEN: usize = 4096;

/// The share of the limits that is probation's, in hundredths.
const PROBATION_PERCENT: u64 = 10;

/// Turns are numbered below this: at a million a second it is reached in a hundred thousand years.
const MAX_TURN: u64 = 1 << 62;

/// What is kept at the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes, of blobs and of reservations.
    pub(crate) bytes: u64,
    /// Blobs, reservations included.
    pub(crate) entries: usize,
}

/// The blobs that are kept, by name and by their turn to go.
#[derive(Debug)]
pub(crate) struct Policy {
    limits: Limits,
    slots: BTreeMap<BlobDigest, Slot>,
    probation: Queue,
    established: Queue,
    ghosts: Ghosts,
    claimed: OnTheWay,
    reserved: OnTheWay,
    next_turn: u64,
}

impl Policy {
    /// Nothing is kept yet.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            slots: BTreeMap::new(),
            probation: Queue::default(),
            established: Queue::default(),
            ghosts: Ghosts::default(),
            claimed: OnTheWay::default(),
            reserved: OnTheWay::default(),
            next_turn: 0,
        }
    }

    /// Bytes that are kept or reserved.
    pub(crate) fn used(&self) -> u64 {
        self.probation.bytes + self.established.bytes + self.reserved.bytes
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Blobs that are kept.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether a blob of this size is kept at all.
    pub(crate) fn fits(&self, size: u64) -> bool {
        size <= self.limits.bytes
    }

    /// What is known of a blob.
    pub(crate) fn slot(&self, digest: &BlobDigest) -> Option<&Slot> {
        self.slots.get(digest)
    }

    /// The blobs by name, those behind `behind` only.
    pub(crate) fn by_name(&self, behind: Option<BlobDigest>) -> impl Iterator<Item = (&BlobDigest, &Slot)> {
        let start = behind.map_or(Bound::Unbounded, Bound::Excluded);
        self.slots.range((start, Bound::Unbounded))
    }

    /// What was known of a blob until now; it is thereby used.
    pub(crate) fn touch(&mut self, digest: &BlobDigest, now: Moment) -> Option<Slot> {
        let slot = self.slots.get_mut(digest)?;
        let before = *slot;
        slot.touch(now);
        Some(before)
    }

    /// Notes that a blob's bytes are what its name says, in this state of its file.
    pub(crate) fn verified(&mut self, digest: &BlobDigest, as_of: Option<FileStamp>) {
        if let Some(slot) = self.slots.get_mut(digest) {
            slot.verified = as_of;
        }
    }

    /// Notes that a blob's bytes may not be what its name says.
    pub(crate) fn doubt(&mut self, digest: &BlobDigest) {
        if let Some(slot) = self.slots.get_mut(digest) {
            slot.verified = None;
        }
    }

    /// Takes up a blob. Room must have been reserved, or [`Policy::shrink`] follows.
    pub(crate) fn insert(&mut self, digest: BlobDigest, size: u64, verified: Option<FileStamp>, now: Moment) {
        let known = self.slots.get(&digest).is_some_and(|slot| slot.usage.established);
        let established = known || self.ghosts.take(&digest);
        self.remove(&digest);
        let turn = self.turn();
        self.put(digest, Slot { size, verified, usage: Usage { last: now, uses: 0, established }, turn });
    }

    /// Takes up a blob as an earlier process knew it. [`Policy::shrink`] follows.
    pub(crate) fn restore(&mut self, digest: BlobDigest, size: u64, usage: Usage, turn: u64) {
        self.remove(&digest);
        let usage = Usage { uses: usage.uses.min(MAX_USES), ..usage };
        // No two have the same turn, unless the index is wrong.
        let is_free = turn < MAX_TURN && !self.queue(usage.established).turns.contains_key(&turn);
        let turn = if is_free { turn } else { self.turn() };
        self.next_turn = self.next_turn.max(turn);
        self.put(digest, Slot { size, verified: None, usage, turn });
    }

    fn put(&mut self, digest: BlobDigest, slot: Slot) {
        self.queue(slot.usage.established).push(slot.turn, digest, slot.size);
        self.slots.insert(digest, slot);
    }

    /// Forgets a blob. `None` when it was not known.
    pub(crate) fn remove(&mut self, digest: &BlobDigest) -> Option<Evicted> {
        let slot = self.slots.remove(digest)?;
        self.queue(slot.usage.established).remove(slot.turn, slot.size);
        Some(Evicted { digest: *digest, size: slot.size, last_use: slot.usage.last })
    }

    /// When more is used than is allowed, forgets blobs until the low watermark is reached. What is returned has to be
    /// deleted.
    pub(crate) fn shrink(&mut self) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        let Limits { bytes, entries } = self.limits;
        let (low_bytes, low_entries) = (percent(bytes, LOW_WATERMARK_PERCENT), low_entries(entries));
        if !self.is_above(bytes, entries) {
            return evicted;
        }
        let (mut ahead, mut turns_left) = (0, MAX_TURNS_GIVEN);
        while self.is_above(low_bytes, low_entries) {
            if !self.is_above(bytes, entries) {
                if ahead == MAX_AHEAD || turns_left == 0 {
                    break;
                }
                ahead += 1;
            }
            let Some(gone) = self.evict(&mut turns_left) else { break };
            evicted.push(gone);
        }
        evicted
    }

    fn is_above(&self, bytes: u64, entries: usize) -> bool {
        self.used() > bytes || self.slots.len() + self.reserved.entries > entries
    }

    /// Forgets the blob whose turn it is. Those that were used stay for another turn, as long as there are any to give.
    fn evict(&mut self, turns_left: &mut usize) -> Option<Evicted> {
        loop {
            let is_on_probation = self.is_probation_s_turn();
            let digest = self.queue(!is_on_probation).first()?;
            let was_used = self.slots.get(&digest)?.usage.uses > 0;
            if !was_used || *turns_left == 0 {
                let gone = self.remove(&digest)?;
                if is_on_probation {
                    let most = self.slots.len().max(ghosts::AT_LEAST).min(self.limits.entries);
                    self.ghosts.remember(&digest, gone.size, Limits { bytes: self.limits.bytes, entries: most });
                }
                return Some(gone);
            }
            *turns_left -= 1;
            self.queue_again(&digest, |usage| {
                let uses = if is_on_probation { 0 } else { usage.uses - 1 };
                Usage { uses, established: true, ..usage }
            });
        }
    }

    fn is_probation_s_turn(&self) -> bool {
        let share = |of: u64| percent(of, PROBATION_PERCENT);
        let (bytes, entries) = (self.probation.bytes, self.probation.turns.len());
        let is_over = bytes + self.reserved.bytes > share(self.limits.bytes)
            || (entries + self.reserved.entries) as u64 > share(self.limits.entries as u64);
        (is_over && entries > 0) || self.established.turns.is_empty()
    }

    fn queue_again(&mut self, digest: &BlobDigest, change: impl FnOnce(Usage) -> Usage) {
        let turn = self.turn();
        let Some(slot) = self.slots.get_mut(digest) else { return };
        let before = *slot;
        slot.usage = change(before.usage);
        slot.turn = turn;
        let after = slot.usage.established;
        self.queue(before.usage.established).remove(before.turn, before.size);
        self.queue(after).push(turn, *digest, before.size);
    }

    fn queue(&mut self, established: bool) -> &mut Queue {
        if established { &mut self.established } else { &mut self.probation }
    }

    fn turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    /// The longest ago that one of the blobs that are next to go was used.
    pub(crate) fn oldest_use(&self) -> Option<Moment> {
        /// Those that were used since stay for another turn: a few are looked at.
        const LOOKED_AT: usize = 64;
        let next = |queue: &Queue| {
            let next = queue.turns.values().take(LOOKED_AT);
            next.filter_map(|digest| Some(self.slots.get(digest)?.usage.last)).min()
        };
        [next(&self.probation), next(&self.established)].into_iter().flatten().min()
    }
}

fn percent(of: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(percent) / 100).unwrap_or(of)
}

fn low_entries(limit: usize) -> usize {
    usize::try_from(percent(limit as u64, LOW_WATERMARK_PERCENT)).unwrap_or(limit)
}

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

use std::collections::BTreeMap;
use std::ops::Bound;

use weir_shared::digest::BlobDigest;

use self::ghosts::Ghosts;
use crate::clock::Moment;

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

/// Uses that are remembered of a blob: each one saves an established blob from one turn to go.
const MAX_USES: u8 = 3;

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

/// What is known of a blob that is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    /// Its bytes.
    pub(crate) size: u64,
    /// Its bytes were compared with its name since the process began.
    pub(crate) verified: bool,
    /// What is known of its use.
    pub(crate) usage: Usage,
    /// Its place among those of its queue: the lowest is the next to go.
    pub(crate) turn: u64,
}

/// How a blob was used: what the index remembers of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    /// When it was used last.
    pub(crate) last: Moment,
    /// Uses since it was taken up or had its last turn, at most [`MAX_USES`].
    pub(crate) uses: u8,
    /// It has passed its probation.
    pub(crate) established: bool,
}

/// A blob that has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evicted {
    /// Its name.
    pub(crate) digest: BlobDigest,
    /// Its bytes.
    pub(crate) size: u64,
    /// When it was used last.
    pub(crate) last_use: Moment,
}

/// Blobs in the order in which their turn to go comes.
#[derive(Debug, Default)]
struct Queue {
    turns: BTreeMap<u64, BlobDigest>,
    bytes: u64,
}

/// Blobs that are on their way, as far as they have come to this.
#[derive(Debug, Clone, Copy, Default)]
struct OnTheWay {
    bytes: u64,
    entries: usize,
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
        slot.usage.last = now;
        slot.usage.uses = (slot.usage.uses + 1).min(MAX_USES);
        Some(before)
    }

    /// Notes that a blob's bytes are what its name says.
    pub(crate) fn verified(&mut self, digest: &BlobDigest) {
        if let Some(slot) = self.slots.get_mut(digest) {
            slot.verified = true;
        }
    }

    /// Notes that a blob's bytes may not be what its name says.
    pub(crate) fn doubt(&mut self, digest: &BlobDigest) {
        if let Some(slot) = self.slots.get_mut(digest) {
            slot.verified = false;
        }
    }

    /// Whether a blob that is about to be fetched can have room, beside all that is on its way already. Nothing goes
    /// for it yet.
    pub(crate) fn claim(&mut self, size: u64) -> bool {
        let is_alone = self.claimed.entries == 0;
        let all = self.claimed.with(size);
        let Limits { bytes, entries } = self.limits;
        let share = |of: u64| percent(of, PROBATION_PERCENT);
        let is_within_share = all.bytes <= share(bytes) && all.entries as u64 <= share(entries as u64);
        // An eviction goes on to the low watermark, and would take from them what lies above it.
        let leaves_established = all.bytes + self.established.bytes <= percent(bytes, LOW_WATERMARK_PERCENT)
            && all.entries + self.established.turns.len() <= low_entries(entries);
        let is_granted = self.fits(size) && (is_alone || is_within_share || leaves_established);
        if is_granted {
            self.claimed = all;
        }
        is_granted
    }

    /// Gives back a claim.
    pub(crate) fn unclaim(&mut self, size: u64) {
        self.claimed = self.claimed.without(size);
    }

    /// Makes room for a blob that is being fetched. What is returned has to be deleted.
    pub(crate) fn reserve(&mut self, size: u64) -> Vec<Evicted> {
        self.reserved = self.reserved.with(size);
        self.shrink()
    }

    /// Gives back room that was reserved.
    pub(crate) fn release(&mut self, size: u64) {
        self.reserved = self.reserved.without(size);
    }

    /// Takes up a blob. Room must have been reserved, or [`Policy::shrink`] follows.
    pub(crate) fn insert(&mut self, digest: BlobDigest, size: u64, verified: bool, now: Moment) {
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
        self.put(digest, Slot { size, verified: false, usage, turn });
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

impl OnTheWay {
    fn with(self, size: u64) -> Self {
        Self { bytes: self.bytes + size, entries: self.entries + 1 }
    }

    fn without(self, size: u64) -> Self {
        Self { bytes: self.bytes.saturating_sub(size), entries: self.entries.saturating_sub(1) }
    }
}

impl Queue {
    fn push(&mut self, turn: u64, digest: BlobDigest, size: u64) {
        self.turns.insert(turn, digest);
        self.bytes += size;
    }

    fn remove(&mut self, turn: u64, size: u64) {
        if self.turns.remove(&turn).is_some() {
            self.bytes -= size;
        }
    }

    fn first(&self) -> Option<BlobDigest> {
        self.turns.first_key_value().map(|(_, digest)| *digest)
    }
}

fn percent(of: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(percent) / 100).unwrap_or(of)
}

fn low_entries(limit: usize) -> usize {
    usize::try_from(percent(limit as u64, LOW_WATERMARK_PERCENT)).unwrap_or(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn name(n: u8) -> BlobDigest {
        BlobDigest::of(&[n])
    }

    fn of(bytes: u64, entries: usize) -> Policy {
        Policy::new(Limits { bytes, entries })
    }

    fn fill(policy: &mut Policy, n: u8, size: u64) -> Vec<BlobDigest> {
        let evicted = policy.reserve(size);
        policy.release(size);
        policy.insert(name(n), size, true, Clock::begin().now());
        evicted.into_iter().map(|gone| gone.digest).collect()
    }

    #[test]
    fn what_was_asked_for_again_stays_and_the_rest_goes_in_the_order_in_which_it_came() {
        let now = Clock::begin().now();
        let mut policy = of(100, 100);
        for n in 0..4 {
            assert!(fill(&mut policy, n, 25).is_empty());
        }
        policy.touch(&name(0), now);
        // One byte too many empties it to 90 in all: 74 of the old ones may stay, and two of them are 50.
        let evicted: Vec<_> = policy.reserve(16).into_iter().map(|gone| gone.digest).collect();
        assert_eq!(evicted, [name(1), name(2)]);
        assert_eq!(policy.used(), 66);
        assert!(!policy.fits(101));
        assert!(policy.slot(&name(0)).unwrap().usage.established);
    }

    #[test]
    fn one_that_comes_back_soon_is_established_at_once() {
        let mut policy = of(100, 100);
        for n in 0..4 {
            fill(&mut policy, n, 25);
        }
        assert_eq!(fill(&mut policy, 4, 25), [name(0), name(1)]);
        fill(&mut policy, 0, 25);
        assert!(policy.slot(&name(0)).unwrap().usage.established);
        assert!(!policy.slot(&name(4)).unwrap().usage.established);
    }

    #[test]
    fn entries_are_bounded_too() {
        let mut policy = of(1_000_000, 10);
        for n in 0..200 {
            fill(&mut policy, n, 1);
            assert!(policy.len() <= 10);
        }
        assert!(policy.len() >= 9);
    }

    #[test]
    fn a_process_that_knows_how_blobs_were_used_goes_on_as_the_one_before() {
        let now = Clock::begin().now();
        let mut before = of(100, 100);
        for n in 0..10 {
            fill(&mut before, n, 10);
            for _ in 0..n % 4 {
                before.touch(&name(n), now);
            }
        }
        fill(&mut before, 10, 10);
        let mut after = of(100, 100);
        for (digest, slot) in before.by_name(None) {
            after.restore(*digest, slot.size, slot.usage, slot.turn);
        }
        let gone = |policy: &mut Policy| policy.reserve(60).into_iter().map(|gone| gone.digest).collect::<Vec<_>>();
        assert_eq!(gone(&mut after), gone(&mut before));
    }

    #[test]
    fn an_eviction_looks_at_a_bounded_number_of_blobs_however_much_they_were_used() {
        let now = Clock::begin().now();
        let usage = Usage { last: now, uses: MAX_USES, established: true };
        let mut policy = of(100_000, 100_000);
        let wide = |n: u64| BlobDigest::of(&n.to_le_bytes());
        for n in 0..100_000 {
            policy.restore(wide(n), 1, usage, n + 1);
        }
        let before = policy.next_turn;
        let gone = policy.reserve(1).into_iter().map(|gone| gone.digest);
        assert_eq!(
            gone.collect::<Vec<_>>(),
            [wide(MAX_TURNS_GIVEN as u64)],
            "the one that is needed, the next in turn"
        );
        assert_eq!(policy.next_turn - before, MAX_TURNS_GIVEN as u64);
    }

    /// A policy of established blobs, ten bytes each.
    fn established() -> Policy {
        let (now, mut policy) = (Clock::begin().now(), of(1000, 1000));
        let usage = Usage { last: now, uses: 0, established: true };
        (0..100).for_each(|n| policy.restore(name(n), 10, usage, u64::from(n)));
        policy
    }

    #[test]
    fn what_is_on_its_way_together_leaves_the_established_all_but_a_tenth() {
        let now = Clock::begin().now();
        let mut policy = established();
        // A scan, as many at a time as may be: of what is asked for once, and of what fails.
        let mut under_way = std::collections::VecDeque::new();
        for n in 0..2000_u32 {
            while !policy.claim(30) {
                let failed: u32 = under_way.pop_front().unwrap();
                policy.release(30);
                policy.unclaim(30);
                if !failed.is_multiple_of(3) {
                    policy.insert(BlobDigest::of(&failed.to_le_bytes()), 30, true, now);
                }
            }
            policy.reserve(30);
            under_way.push_back(n);
        }
        assert!(under_way.len() >= 3, "several at a time");
        let limits = policy.limits();
        let least = percent(limits.bytes, LOW_WATERMARK_PERCENT - PROBATION_PERCENT);
        assert!(policy.established.bytes >= least, "{}", policy.established.bytes);
    }

    #[test]
    fn a_claim_moves_nobody_and_a_small_one_finds_room_beside_a_large_one() {
        let mut policy = established();
        assert!(policy.claim(90) && policy.claim(10), "a tenth");
        assert!(!policy.claim(1));
        assert_eq!(policy.used(), 1000);
        policy.unclaim(90);
        assert!(policy.claim(89) && policy.claim(1), "which a large one that is refused does not keep from others");
        for size in [89, 1, 10] {
            policy.unclaim(size);
        }
        assert!(policy.claim(1000), "one that is alone");
        assert!(!policy.claim(1) && !policy.fits(1001));
        // Where nobody is established there is room for all, up to the low watermark.
        let mut empty = of(1000, 4);
        assert!(empty.claim(500) && empty.claim(300) && !empty.claim(101) && empty.claim(100));
        assert!(!empty.claim(0), "entries are bounded too");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Fill(u8, u64),
        Begin(u64),
        Fail,
        Touch(u8),
        Remove(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u8..30, 1u64..60).prop_map(|(n, size)| Step::Fill(n, size)),
            1 => (1u64..30).prop_map(Step::Begin),
            1 => Just(Step::Fail),
            3 => (0u8..30).prop_map(Step::Touch),
            1 => (0u8..30).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn the_bounds_hold_and_the_books_balance(steps in proptest::collection::vec(step(), 0..120)) {
            let now = Clock::begin().now();
            let limits = Limits { bytes: 100, entries: 8 };
            let mut policy = Policy::new(limits);
            let mut kept = HashMap::new();
            let mut begun: Vec<u64> = Vec::new();
            for step in steps {
                match step {
                    Step::Fill(n, size) if policy.claim(size) => {
                        for gone in policy.reserve(size) {
                            prop_assert_eq!(kept.remove(&gone.digest), Some(gone.size), "reported once, and as it was");
                        }
                        prop_assert!(policy.used() <= limits.bytes);
                        policy.release(size);
                        policy.unclaim(size);
                        kept.insert(name(n), size);
                        policy.insert(name(n), size, true, now);
                    }
                    Step::Begin(size) if policy.claim(size) => {
                        for gone in policy.reserve(size) {
                            prop_assert_eq!(kept.remove(&gone.digest), Some(gone.size));
                        }
                        begun.push(size);
                    }
                    Step::Fill(..) | Step::Begin(_) => {}
                    Step::Fail => begun.pop().into_iter().for_each(|size| {
                        policy.release(size);
                        policy.unclaim(size);
                    }),
                    Step::Touch(n) => {
                        prop_assert_eq!(policy.touch(&name(n), now).is_some(), kept.contains_key(&name(n)));
                    }
                    Step::Remove(n) => {
                        let removed = policy.remove(&name(n)).map(|gone| gone.size);
                        prop_assert_eq!(removed, kept.remove(&name(n)));
                    }
                }
                let sum = kept.values().sum::<u64>() + begun.iter().sum::<u64>();
                prop_assert_eq!(policy.used(), sum);
                prop_assert!(policy.used() <= limits.bytes);
                prop_assert!(policy.len() + begun.len() <= limits.entries);
                prop_assert_eq!(policy.len(), kept.len());
                prop_assert_eq!(policy.probation.turns.len() + policy.established.turns.len(), kept.len());
                prop_assert!(policy.ghosts.len() <= limits.entries && policy.ghosts.bytes() <= limits.bytes);
                prop_assert_eq!(policy.oldest_use().is_some(), !kept.is_empty());
            }
        }
    }
}

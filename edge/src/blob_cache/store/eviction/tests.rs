//! The policy against what it promises, step by step and at random.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::clock::Clock;

fn name(n: u8) -> BlobDigest {
    BlobDigest::of(&[n])
}

fn of(bytes: u64, entries: usize) -> Policy {
    Policy::new(Limits { bytes, entries })
}

fn fill(policy: &mut Policy, n: u8, size: u64) -> Vec<BlobDigest> {
    let evicted = policy.reserve(size);
    policy.release(size);
    policy.insert(name(n), size, None, Clock::begin().now());
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
    assert_eq!(gone.collect::<Vec<_>>(), [wide(MAX_TURNS_GIVEN as u64)], "the one that is needed, the next in turn");
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
                policy.insert(BlobDigest::of(&failed.to_le_bytes()), 30, None, now);
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
                    policy.insert(name(n), size, None, now);
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

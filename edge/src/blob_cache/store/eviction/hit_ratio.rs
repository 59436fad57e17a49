//! How good the policy is beside LRU and FIFO: hit ratios on made-up traces, always the same ones.
//!
//! `cargo test -p weir-edge --lib hit_ratio -- --nocapture` prints them.

use std::collections::{BTreeMap, HashMap};

use weir_shared::digest::BlobDigest;

use super::{Limits, Policy};
use crate::clock::Clock;

/// Blobs that are asked for again and again.
const HOT: u64 = 10_000;

const REQUESTS: usize = 200_000;

/// About a tenth of all bytes of the hot blobs.
const LIMIT: u64 = 300 << 20;

trait Cache {
    /// Whether it is there; afterwards it is.
    fn ask(&mut self, object: u64, size: u64) -> bool;
}

struct S3Fifo(Policy, Clock);

impl Cache for S3Fifo {
    fn ask(&mut self, object: u64, size: u64) -> bool {
        let (digest, now) = (BlobDigest::of(&object.to_le_bytes()), self.1.now());
        if self.0.touch(&digest, now).is_some() {
            return true;
        }
        self.0.reserve(size);
        self.0.release(size);
        self.0.insert(digest, size, None, now);
        false
    }
}

/// The one used (LRU) or fetched (FIFO) the longest ago goes first.
struct Ordered {
    is_lru: bool,
    turns: BTreeMap<u64, (u64, u64)>,
    by_object: HashMap<u64, u64>,
    bytes: u64,
    next: u64,
}

impl Ordered {
    fn new(is_lru: bool) -> Self {
        Self { is_lru, turns: BTreeMap::new(), by_object: HashMap::new(), bytes: 0, next: 0 }
    }
}

impl Cache for Ordered {
    fn ask(&mut self, object: u64, size: u64) -> bool {
        self.next += 1;
        let known = self.by_object.get(&object).copied();
        if let Some(turn) = known {
            if self.is_lru {
                self.turns.remove(&turn);
                self.turns.insert(self.next, (object, size));
                self.by_object.insert(object, self.next);
            }
            return true;
        }
        self.bytes += size;
        while self.bytes > LIMIT {
            let (_, (gone, size)) = self.turns.pop_first().unwrap();
            self.by_object.remove(&gone);
            self.bytes -= size;
        }
        self.turns.insert(self.next, (object, size));
        self.by_object.insert(object, self.next);
        false
    }
}

/// A generator of numbers that look random, the same on every run (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// From 4 KiB to 4 MiB, each power of two as likely as the other; the same one for the same object.
fn size(object: u64) -> u64 {
    let mut numbers = Numbers(object);
    let power = 12 + numbers.next() % 10;
    (1 << power) + numbers.next() % (1 << power)
}

/// Objects asked for as often as Zipf's law with an exponent of 0.9 has it.
fn zipf(requests: usize) -> Vec<u64> {
    let mut sums: Vec<f64> = Vec::new();
    for rank in 1..=HOT {
        sums.push(sums.last().unwrap_or(&0.0) + (rank as f64).powf(-0.9));
    }
    let all = *sums.last().unwrap();
    let mut numbers = Numbers(7);
    (0..requests).map(|_| sums.partition_point(|sum| *sum < numbers.unit() * all) as u64).collect()
}

/// The same, and after every twenty thousand requests as many for objects that nobody asks for twice.
fn zipf_and_scans() -> Vec<u64> {
    let mut cold = HOT;
    let mut trace = Vec::new();
    for part in zipf(REQUESTS / 2).chunks(20_000) {
        trace.extend_from_slice(part);
        trace.extend(cold..cold + part.len() as u64);
        cold += part.len() as u64;
    }
    trace
}

/// All objects in turn, again and again: half as much again as fits.
fn looped() -> Vec<u64> {
    let mut bytes = 0;
    let once: Vec<u64> = (0..).take_while(|object| (bytes += size(*object), bytes < LIMIT * 3 / 2).1).collect();
    once.iter().copied().cycle().take(REQUESTS / 2).collect()
}

struct Ratio {
    requests: f64,
    bytes: f64,
}

/// Of the requests for those objects that `counts` says.
fn ratio(cache: &mut dyn Cache, trace: &[u64], counts: impl Fn(u64) -> bool) -> Ratio {
    let (mut hits, mut asked, mut hit_bytes, mut asked_bytes) = (0u64, 0u64, 0u64, 0u64);
    for object in trace {
        let size = size(*object);
        let is_hit = cache.ask(*object, size);
        if counts(*object) {
            (asked, asked_bytes) = (asked + 1, asked_bytes + size);
            (hits, hit_bytes) = (hits + u64::from(is_hit), hit_bytes + if is_hit { size } else { 0 });
        }
    }
    Ratio { requests: hits as f64 / asked as f64, bytes: hit_bytes as f64 / asked_bytes as f64 }
}

fn caches() -> [(&'static str, Box<dyn Cache>); 3] {
    let limits = Limits { bytes: LIMIT, entries: 1_000_000 };
    [
        ("S3-FIFO", Box::new(S3Fifo(Policy::new(limits), Clock::begin()))),
        ("LRU", Box::new(Ordered::new(true))),
        ("FIFO", Box::new(Ordered::new(false))),
    ]
}

#[test]
fn the_hit_ratio_is_no_worse_than_that_of_lru_and_fifo() {
    for (what, trace) in [("Zipf", zipf(REQUESTS)), ("Zipf and scans", zipf_and_scans()), ("loop", looped())] {
        let ratios = caches().map(|(name, mut cache)| (name, ratio(cache.as_mut(), &trace, |object| object < HOT)));
        for (name, ratio) in &ratios {
            println!("| {what} | {name} | {:.1} % | {:.1} % |", 100.0 * ratio.requests, 100.0 * ratio.bytes);
        }
        let [(_, ours), others @ ..] = &ratios;
        for (name, other) in others {
            assert!(ours.requests >= other.requests, "{what}: {name} has {}", other.requests);
        }
    }
}

#[test]
fn a_scan_of_cold_objects_does_not_flush_the_hot_ones() {
    // The hot ones fit, and are asked for again before the scan, which is three times what fits, and after it.
    let hot: Vec<u64> = (0..400).collect();
    let scan: Vec<u64> = (HOT..HOT + 3000).collect();
    let warm = [&hot[..], &hot[..], &hot[..]].concat();
    let hits = caches().map(|(name, mut cache)| {
        assert_eq!(ratio(cache.as_mut(), &warm, |_| true).requests, 2.0 / 3.0, "{name}: they fit");
        assert_eq!(ratio(cache.as_mut(), &scan, |_| true).requests, 0.0);
        ratio(cache.as_mut(), &hot, |_| true).requests
    });
    let [ours, lru, fifo] = hits;
    println!("hot objects that are still there after a scan: S3-FIFO {ours:.2}, LRU {lru:.2}, FIFO {fifo:.2}");
    assert!(ours > 0.95, "{ours}");
    assert_eq!((lru, fifo), (0.0, 0.0), "the scan is large enough to flush a cache");
}

//! The metrics of the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge};
use weir_runtime::metric_families;

use super::disk_failure::DiskFailure;

/// What becomes of fills, as values of a label.
const FILL_RESULTS: [&str; 7] = ["ok", "not_found", "origin_failed", "broken", "slow", "corrupt", "abandoned"];

/// Why objects are dropped, as values of a label.
const DROP_REASONS: [&str; 4] = ["size", "corrupt", "vanished", "purged"];

metric_families! {
    /// The families of the cache.
    pub struct CacheMetrics {
        /// Objects found in the cache. Misses are `weir_edge_fills_total`.
        hits: IntCounterVec = "weir_edge_cache_hits_total" { tier: ["memory", "disk"] };
        /// Bytes of objects found in the cache.
        hit_bytes: IntCounterVec = "weir_edge_cache_hit_bytes_total" { tier: ["memory", "disk"] };
        /// Fills: objects fetched from an origin or a shield because the edge had not stored them.
        fills: IntCounterVec = "weir_edge_fills_total" { result: FILL_RESULTS };
        /// Time from the start of a fill until its object was verified.
        fill_duration: Histogram = "weir_edge_fill_duration_seconds" [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0];
        /// Retries of fills, by the failure before.
        fill_retries: IntCounterVec = "weir_edge_fill_retries_total"
            { reason: ["origin_failed", "broken", "slow", "corrupt"] };
        /// Requests rejected because too many wait for objects. Find out what delays fills, or raise `cache.waiters`.
        pub(super) waiters_refused: IntCounter = "weir_edge_fill_waiters_refused_total";
        /// Requests that waited for a fill already under way.
        pub(super) collapsed: IntCounter = "weir_edge_fills_collapsed_total";
        /// Objects whose bytes did not match their digest, by source. They were not served. Alert above 0.
        verify_failures: IntCounterVec = "weir_edge_verify_failures_total" { tier: ["memory", "disk", "origin"] };
        /// Objects on disk that could not be read. They were filled instead. Above 0: check the disk.
        pub(super) read_failures: IntCounter = "weir_edge_cache_read_failures_total";
        /// Objects removed from disk. `vanished`: another program deleted the file.
        evictions: IntCounterVec = "weir_edge_evictions_total" { reason: DROP_REASONS };
        /// Bytes of objects removed from disk.
        evicted_bytes: IntCounterVec = "weir_edge_evicted_bytes_total" { reason: DROP_REASONS };
        /// Objects evicted from memory. They are still on disk.
        pub(super) memory_evictions: IntCounter = "weir_edge_cache_memory_evictions_total";
        /// Age of objects that were evicted because room was needed: the time since they were stored in the tier, on disk also
        /// before a restart. Below the `refresh_interval` of agents (2 h) on disk: enlarge `cache.disk`.
        evicted_age: HistogramVec = "weir_edge_evicted_age_seconds" { tier: ["memory", "disk"] }
            [1.0, 10.0, 60.0, 600.0, 3600.0, 7200.0, 21600.0, 86400.0, 604800.0, 2592000.0];
        /// Objects served and not stored on disk. `paused`: within 30 s of a failure of the disk. `too_large`: for
        /// `cache.disk`. `queue_full`: objects arrived faster than the disk writes. The others: check the disk.
        not_stored: IntCounterVec = "weir_edge_cache_write_dropped_total"
            { reason: ["no_space", "read_only", "too_many_files", "failed", "paused", "too_large", "queue_full"] };
        /// Objects being written to disk, or waiting for it.
        pub(super) writes: IntGauge = "weir_edge_cache_writes";
        /// 0 after the disk failed to store an object, until it stores one.
        pub(super) writing: IntGauge = "weir_edge_cache_writing";
        /// 1 while the files of an earlier process are counted, or when not all can be.
        pub(super) scanning: IntGauge = "weir_edge_cache_scanning";
    }
}

/// Where an object was found, the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// In memory.
    Memory,
    /// On disk.
    Disk,
    /// At an origin.
    Origin,
}

impl Tier {
    /// The value of a metric's label, and the word in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Tier::Memory => "memory",
            Tier::Disk => "disk",
            Tier::Origin => "origin",
        }
    }
}

/// The farthest tier that bytes of a body have come from so far. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct FarthestTier(Arc<AtomicUsize>);

impl FarthestTier {
    pub(super) fn at_least(&self, tier: Tier) {
        self.0.fetch_max(tier as usize, Ordering::Relaxed);
    }

    /// The farthest tier.
    pub fn get(&self) -> Tier {
        [Tier::Memory, Tier::Disk, Tier::Origin][self.0.load(Ordering::Relaxed)]
    }
}

/// Why an object that was fetched is not stored on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotStored {
    /// The disk did not take it.
    Disk(DiskFailure),
    /// The disk failed a moment ago.
    Paused,
    /// It is larger than a shard of the index.
    TooLarge,
    /// Too many others waited to be written.
    QueueFull,
}

impl NotStored {
    fn as_str(self) -> &'static str {
        match self {
            Self::Disk(failure) => failure.into_str(),
            Self::Paused => "paused",
            Self::TooLarge => "too_large",
            Self::QueueFull => "queue_full",
        }
    }
}

/// Why an object was dropped from the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum RemovalReason {
    /// Room was needed.
    Size,
    /// Its bytes no longer match its digest.
    Corrupt,
    /// Somebody else deleted its file.
    Vanished,
    /// An operator wanted it.
    Purged,
}

impl CacheMetrics {
    pub(super) fn filled(&self, result: &'static str, took: Duration) {
        self.fills.with_label_values(&[result]).inc();
        self.fill_duration.observe(took.as_secs_f64());
    }

    pub(super) fn retried(&self, reason: &'static str) {
        self.fill_retries.with_label_values(&[reason]).inc();
    }

    pub(super) fn verify_failed(&self, at: Tier) {
        self.verify_failures.with_label_values(&[at.as_str()]).inc();
    }

    pub(super) fn dropped(&self, why: RemovalReason, bytes: u64) {
        self.evictions.with_label_values(&[why.into_str()]).inc();
        self.evicted_bytes.with_label_values(&[why.into_str()]).inc_by(bytes);
    }

    /// An object was evicted, so long after it was stored in this tier.
    pub(super) fn evicted(&self, from: Tier, age: Duration) {
        self.evicted_age.with_label_values(&[from.as_str()]).observe(age.as_secs_f64());
    }

    pub(super) fn hit(&self, tier: Tier, bytes: u64) {
        self.hits.with_label_values(&[tier.as_str()]).inc();
        self.hit_bytes.with_label_values(&[tier.as_str()]).inc_by(bytes);
    }

    /// The number of evicted objects and the sum of their ages in whole seconds.
    #[cfg(test)]
    pub(super) fn evicted_ages(&self, from: Tier) -> (u64, u64) {
        let ages = self.evicted_age.with_label_values(&[from.as_str()]);
        (ages.get_sample_count(), ages.get_sample_sum() as u64)
    }

    pub(super) fn not_stored(&self, why: NotStored) {
        self.not_stored.with_label_values(&[why.as_str()]).inc();
    }
}

/// How full the cache is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Bytes of files, in blocks of the disk.
    pub(super) bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) objects: u64,
    pub(super) memory_bytes: u64,
    pub(super) memory_limit_bytes: u64,
    pub(super) memory_objects: u64,
    /// Bytes in memory that are being fetched, or are read and not in the tier.
    pub(super) in_flight_bytes: u64,
    pub(super) in_flight_limit_bytes: u64,
    pub(super) is_writing: bool,
    pub(super) fills: u64,
}

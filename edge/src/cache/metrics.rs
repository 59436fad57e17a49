//! What the cache counts.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};
use weir_runtime::metric_families::MetricFamilies;

use super::disk::DiskFailure;

/// What becomes of fetches, as values of a label.
const FETCH_RESULTS: [&str; 7] = ["ok", "not_found", "origin_failed", "broken", "slow", "corrupt", "abandoned"];

/// Why objects are dropped, as values of a label.
const DROP_REASONS: [&str; 4] = ["size", "corrupt", "vanished", "purged"];

/// What the cache counts.
#[derive(Debug, Clone)]
pub(crate) struct CacheMetrics {
    fetches: IntCounterVec,
    fetch_duration: Histogram,
    fetch_retries: IntCounterVec,
    pub(super) waiters_refused: IntCounter,
    pub(super) collapsed: IntCounter,
    verify_failures: IntCounterVec,
    pub(super) read_failures: IntCounter,
    evictions: IntCounterVec,
    evicted_bytes: IntCounterVec,
    pub(super) memory_evictions: IntCounter,
    memory_hits: Hits,
    disk_hits: Hits,
    not_stored: IntCounterVec,
    pub(super) writes: IntGauge,
    pub(super) writing: IntGauge,
    pub(super) scanning: IntGauge,
}

/// Where an object was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tier {
    /// In memory.
    Memory,
    /// On disk.
    Disk,
    /// At an origin.
    Origin,
}

impl Tier {
    /// The value of a metric's label, and the word in documents.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Tier::Memory => "memory",
            Tier::Disk => "disk",
            Tier::Origin => "origin",
        }
    }
}

/// Objects that were found in one tier, and their bytes.
#[derive(Debug, Clone)]
struct Hits {
    objects: IntCounter,
    bytes: IntCounter,
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
    const ALL: [Self; 7] = [
        Self::Disk(DiskFailure::NoSpace),
        Self::Disk(DiskFailure::ReadOnly),
        Self::Disk(DiskFailure::TooManyFiles),
        Self::Disk(DiskFailure::Failed),
        Self::Paused,
        Self::TooLarge,
        Self::QueueFull,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Disk(failure) => failure.as_str(),
            Self::Paused => "paused",
            Self::TooLarge => "too_large",
            Self::QueueFull => "queue_full",
        }
    }
}

/// Why an object was dropped from the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemovalReason {
    /// Room was needed.
    Size,
    /// Its bytes were no longer what its name says.
    Corrupt,
    /// Somebody else deleted its file.
    Vanished,
    /// An operator wanted it.
    Purged,
}

impl RemovalReason {
    fn as_str(self) -> &'static str {
        match self {
            RemovalReason::Size => "size",
            RemovalReason::Corrupt => "corrupt",
            RemovalReason::Vanished => "vanished",
            RemovalReason::Purged => "purged",
        }
    }
}

impl CacheMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let family = MetricFamilies(registry);
        let hits = family.counters("weir_edge_cache_hits_total", "Objects found in the cache, by where.", &["tier"])?;
        let hit_bytes = family.counters(
            "weir_edge_cache_hit_bytes_total",
            "Bytes of the objects that were found in the cache, by where.",
            &["tier"],
        )?;
        let hits = |tier: Tier| Hits {
            objects: hits.with_label_values(&[tier.as_str()]),
            bytes: hit_bytes.with_label_values(&[tier.as_str()]),
        };
        Ok(Self {
            memory_hits: hits(Tier::Memory),
            disk_hits: hits(Tier::Disk),
            fetches: family.counters_of(
                "weir_edge_fills_total",
                "Objects fetched from origins, by the result.",
                "result",
                &FETCH_RESULTS,
            )?,
            fetch_duration: family.histogram(
                "weir_edge_fill_duration_seconds",
                "From the beginning of a fetch until its object was verified.",
                &[0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0],
            )?,
            fetch_retries: family.counters_of(
                "weir_edge_fill_retries_total",
                "Fetches of objects that were tried again, by what had failed.",
                "reason",
                &FETCH_RESULTS[2..6],
            )?,
            waiters_refused: family.counter(
                "weir_edge_fill_waiters_refused_total",
                "Requests that were refused because too many wait for objects.",
            )?,
            collapsed: family.counter(
                "weir_edge_fills_collapsed_total",
                "Requests that waited for a fetch that was under way already.",
            )?,
            verify_failures: family.counters_of(
                "weir_edge_verify_failures_total",
                "Objects whose bytes were not what their name says, by where they came from. Should be 0.",
                "where",
                &["memory", "disk", "origin"],
            )?,
            read_failures: family.counter(
                "weir_edge_cache_read_failures_total",
                "Objects on disk that could not be read. Should be 0.",
            )?,
            evictions: family.counters_of(
                "weir_edge_evictions_total",
                "Objects dropped from the disk.",
                "reason",
                &DROP_REASONS,
            )?,
            evicted_bytes: family.counters_of(
                "weir_edge_evicted_bytes_total",
                "Bytes of objects dropped from the disk.",
                "reason",
                &DROP_REASONS,
            )?,
            memory_evictions: family.counter(
                "weir_edge_cache_memory_evictions_total",
                "Objects dropped from memory for want of room; they are still on disk.",
            )?,
            not_stored: family.counters_of(
                "weir_edge_cache_write_dropped_total",
                "Objects that were fetched and served and could not be stored on disk, by the reason.",
                "reason",
                &NotStored::ALL.map(NotStored::as_str),
            )?,
            writes: family
                .gauge("weir_edge_cache_writes", "Objects that are being written to disk, or wait for their turn.")?,
            writing: family.gauge(
                "weir_edge_cache_writing",
                "Whether the disk took the last object: 0 until it takes one again.",
            )?,
            scanning: family.gauge(
                "weir_edge_cache_scanning",
                "1 while the files of an earlier process are being counted, or cannot all be.",
            )?,
        })
    }

    pub(super) fn fetched(&self, result: &'static str, took: Duration) {
        self.fetches.with_label_values(&[result]).inc();
        self.fetch_duration.observe(took.as_secs_f64());
    }

    pub(super) fn retried(&self, reason: &'static str) {
        self.fetch_retries.with_label_values(&[reason]).inc();
    }

    pub(super) fn verify_failed(&self, at: Tier) {
        self.verify_failures.with_label_values(&[at.as_str()]).inc();
    }

    pub(super) fn dropped(&self, why: RemovalReason, bytes: u64) {
        self.evictions.with_label_values(&[why.as_str()]).inc();
        self.evicted_bytes.with_label_values(&[why.as_str()]).inc_by(bytes);
    }

    pub(super) fn hit(&self, tier: Tier, bytes: u64) {
        let hits = if tier == Tier::Memory { &self.memory_hits } else { &self.disk_hits };
        hits.objects.inc();
        hits.bytes.inc_by(bytes);
    }

    pub(super) fn not_stored(&self, why: NotStored) {
        self.not_stored.with_label_values(&[why.as_str()]).inc();
    }
}

/// How full the cache is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Usage {
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
    pub(super) being_fetched: u64,
}

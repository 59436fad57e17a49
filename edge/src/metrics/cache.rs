//! What the blob cache counts.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};
use weir_shared::process::metric_families::MetricFamilies;

use super::cache_usage::CacheUsage;
use super::observed::Observed;
use crate::blob_cache::DiskTrouble;

/// What becomes of fills, as values of a label.
const FILL_RESULTS: [&str; 8] =
    ["ok", "not_found", "origin_failed", "broken", "stalled", "corrupt", "disk_failed", "abandoned"];

/// Why blobs are dropped, as values of a label.
const DROP_REASONS: [&str; 4] = ["size", "corrupt", "vanished", "purged"];

/// What the blob cache counts.
#[derive(Debug, Clone)]
pub(crate) struct CacheMetrics {
    fills: IntCounterVec,
    fill_duration: Histogram,
    fill_first_byte: Histogram,
    fill_resumes: IntCounterVec,
    pub(crate) pieces_verified: IntCounter,
    pub(crate) fills_running: IntGauge,
    pub(crate) fills_limit: IntGauge,
    pub(crate) fill_waiters: IntGauge,
    pub(crate) fill_waiters_limit: IntGauge,
    pub(crate) fill_waiters_refused: IntCounter,
    served_through: IntCounterVec,
    pub(crate) serving_through: IntGauge,
    pub(crate) serving_through_limit: IntGauge,
    pub(crate) collapsed_fills: IntCounter,
    pub(crate) decoders: IntGauge,
    pub(crate) decoders_limit: IntGauge,
    verify_failures: IntCounterVec,
    evictions: IntCounterVec,
    evicted_bytes: IntCounterVec,
    evicted_idle: Histogram,
    pub(crate) memory_evictions: IntCounter,
    pub(crate) small_reclaims: IntCounter,
    /// In the order of [`Tier`].
    hits: [Hits; TIERS.len()],
    writes_dropped: IntCounterVec,
    scrubbed_blobs: IntCounterVec,
    pub(crate) scrubbed_bytes: IntCounter,
    pub(crate) scrub_round: IntGauge,
    pub(crate) usage: CacheUsage,
}

/// Where a blob was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// In memory.
    Memory,
    /// Among the small ones on disk.
    Small,
    /// In a file of its own.
    File,
}

/// The tiers, as values of a label.
const TIERS: [&str; 3] = ["memory", "small", "file"];

/// Blobs that were found in one tier, and their bytes.
#[derive(Debug, Clone)]
struct Hits {
    blobs: IntCounter,
    bytes: IntCounter,
}

/// Why a blob that was fetched was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteDropped {
    /// The disk did not take it.
    Disk(DiskTrouble),
    /// The disk was full or read-only a moment ago.
    Paused,
    /// A small blob found the buffer full that goes to disk next.
    BufferFull,
    /// A small blob found too many before it that wait to be written.
    QueueFull,
}

impl WriteDropped {
    const ALL: [Self; 7] = [
        Self::Disk(DiskTrouble::NoSpace),
        Self::Disk(DiskTrouble::ReadOnly),
        Self::Disk(DiskTrouble::TooManyFiles),
        Self::Disk(DiskTrouble::Failed),
        Self::Paused,
        Self::BufferFull,
        Self::QueueFull,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Disk(trouble) => trouble.as_str(),
            Self::Paused => "paused",
            Self::BufferFull => "small_buffer_full",
            Self::QueueFull => "small_queue_full",
        }
    }
}

/// Where a verification failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VerifiedAt {
    /// The bytes of a file that the edge itself had written.
    Disk,
    /// The bytes that an origin sent.
    Origin,
}

/// Why a blob was dropped from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// Room was needed.
    Size,
    /// Its bytes were no longer what its name says.
    Corrupt,
    /// Somebody else deleted its file.
    Vanished,
    /// An operator wanted it.
    Purged,
}

impl CacheMetrics {
    pub(super) fn register(family: &MetricFamilies<'_>) -> prometheus::Result<Self> {
        let hits = family.counters("weir_edge_cache_hits_total", "Blobs found in the cache, by where.", &["tier"])?;
        let hit_bytes = family.counters(
            "weir_edge_cache_hit_bytes_total",
            "Bytes of the blobs that were found in the cache, by where.",
            &["tier"],
        )?;
        Ok(Self {
            fills: family.counters_of(
                "weir_edge_fills_total",
                "Blobs fetched from origins, by the result.",
                "result",
                &FILL_RESULTS,
            )?,
            fill_duration: family.histogram(
                "weir_edge_fill_duration_seconds",
                "From the beginning of a fill until its blob was verified and stored.",
                &[0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0],
            )?,
            fill_first_byte: family.histogram(
                "weir_edge_fill_first_byte_seconds",
                "From the question to the origin until the first piece of a blob was verified.",
                &[0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0],
            )?,
            fill_resumes: family.counters_of(
                "weir_edge_fill_resumes_total",
                "Transfers of blobs that were taken up again, by what had ended them.",
                "reason",
                &["broken", "stalled", "unreachable", "timeout", "wrong_bytes"],
            )?,
            pieces_verified: family
                .counter("weir_edge_pieces_verified_total", "Pieces of blobs that origins sent and that were right.")?,
            fills_running: family.gauge("weir_edge_fills_running", "Blobs that are being fetched now.")?,
            fills_limit: family.gauge("weir_edge_fills_limit", "Blobs that are fetched at a time, at the most.")?,
            fill_waiters: family
                .gauge("weir_edge_fill_waiters", "Requests that wait for the first byte of a blob now.")?,
            fill_waiters_limit: family.gauge(
                "weir_edge_fill_waiters_limit",
                "Requests that wait for the first byte of a blob, at the most.",
            )?,
            fill_waiters_refused: family.counter(
                "weir_edge_fill_waiters_refused_total",
                "Requests that were refused because too many wait for a blob.",
            )?,
            served_through: family.counters_of(
                "weir_edge_served_through_total",
                "Answers whose bytes went past the edge's disk, by what was the matter with it.",
                "why",
                &DiskTrouble::ALL.map(DiskTrouble::as_str),
            )?,
            serving_through: family
                .gauge("weir_edge_serving_through", "Answers whose bytes go past the edge's disk now.")?,
            serving_through_limit: family.gauge(
                "weir_edge_serving_through_limit",
                "Answers whose bytes go past the edge's disk at a time, at the most.",
            )?,
            collapsed_fills: family.counter(
                "weir_edge_fills_collapsed_total",
                "Requests that waited for a fill that was under way already.",
            )?,
            decoders: family.gauge("weir_edge_decoders", "Tarballs that are being decoded for clients now.")?,
            decoders_limit: family
                .gauge("weir_edge_decoders_limit", "Tarballs that are decoded at a time, at the most.")?,
            verify_failures: family.counters_of(
                "weir_edge_verify_failures_total",
                "Blobs whose bytes were not what their name says, by where they came from. Should be 0.",
                "where",
                &["disk", "origin"],
            )?,
            evictions: family.counters_of(
                "weir_edge_evictions_total",
                "Blobs dropped from the cache.",
                "reason",
                &DROP_REASONS,
            )?,
            evicted_bytes: family.counters_of(
                "weir_edge_evicted_bytes_total",
                "Bytes of blobs dropped from the cache.",
                "reason",
                &DROP_REASONS,
            )?,
            evicted_idle: family.histogram(
                "weir_edge_evicted_idle_seconds",
                "For how long blobs that were evicted for want of room had not been used.",
                &[1.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0, 2_592_000.0],
            )?,
            memory_evictions: family.counter(
                "weir_edge_cache_memory_evictions_total",
                "Blobs dropped from memory for want of room; they are still on disk.",
            )?,
            small_reclaims: family.counter(
                "weir_edge_cache_small_reclaims_total",
                "Parts of the disk for small blobs, of 4 to 16 MiB, whose blobs gave way to new ones.",
            )?,
            hits: TIERS.map(|tier| Hits {
                blobs: hits.with_label_values(&[tier]),
                bytes: hit_bytes.with_label_values(&[tier]),
            }),
            writes_dropped: family.counters_of(
                "weir_edge_cache_write_dropped_total",
                "Blobs that were fetched and served and could not be kept, by the reason.",
                "reason",
                &WriteDropped::ALL.map(WriteDropped::as_str),
            )?,
            scrubbed_blobs: family.counters_of(
                "weir_edge_scrub_blobs_total",
                "Blobs on disk that were read again in the background, by the result.",
                "result",
                &["ok", "dropped"],
            )?,
            scrubbed_bytes: family
                .counter("weir_edge_scrub_bytes_total", "Bytes on disk that were read again in the background.")?,
            scrub_round: family.gauge(
                "weir_edge_scrub_round_timestamp_seconds",
                "When all blobs on disk had been read again in the background for the last time.",
            )?,
            usage: CacheUsage::new()?,
        })
    }

    pub(crate) fn filled(&self, result: &'static str, took: Duration) {
        self.fills.with_label_values(&[result]).inc();
        self.fill_duration.observe(took.as_secs_f64());
    }

    pub(crate) fn first_piece_verified(&self, took: Duration) {
        self.fill_first_byte.observe(took.as_secs_f64());
    }

    pub(crate) fn resumed(&self, reason: &'static str) {
        self.fill_resumes.with_label_values(&[reason]).inc();
    }

    pub(crate) fn served_through(&self, why: &'static str) {
        self.served_through.with_label_values(&[why]).inc();
    }

    pub(crate) fn verify_failed(&self, at: VerifiedAt) {
        let place = match at {
            VerifiedAt::Disk => "disk",
            VerifiedAt::Origin => "origin",
        };
        self.verify_failures.with_label_values(&[place]).inc();
    }

    /// A blob was dropped that had not been used for `idle`.
    pub(crate) fn dropped(&self, why: Dropped, bytes: u64, idle: Duration) {
        let reason = match why {
            Dropped::Size => "size",
            Dropped::Corrupt => "corrupt",
            Dropped::Vanished => "vanished",
            Dropped::Purged => "purged",
        };
        if why == Dropped::Size {
            self.evicted_idle.observe(idle.as_secs_f64());
        }
        self.evictions.with_label_values(&[reason]).inc();
        self.evicted_bytes.with_label_values(&[reason]).inc_by(bytes);
    }

    /// Registers the gauges that describe the cache's use; `refresh` sets them when somebody looks.
    pub(crate) fn observe_use(
        &self,
        registry: &Registry,
        refresh: impl Fn() + Send + Sync + 'static,
    ) -> prometheus::Result<()> {
        registry.register(Box::new(Observed { gauges: self.usage.all(), refresh: Box::new(refresh) }))
    }

    pub(crate) fn hit(&self, tier: Tier, bytes: u64) {
        let hits = &self.hits[tier as usize];
        hits.blobs.inc();
        hits.bytes.inc_by(bytes);
    }

    pub(crate) fn write_dropped(&self, why: WriteDropped) {
        self.writes_dropped.with_label_values(&[why.as_str()]).inc();
    }

    pub(crate) fn scrubbed(&self, result: &'static str) {
        self.scrubbed_blobs.with_label_values(&[result]).inc();
    }
}

//! What the catalog counts.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};
use weir_runtime::metric_families::MetricFamilies;

/// What the catalog counts.
#[derive(Debug, Clone)]
pub(crate) struct CatalogMetrics {
    pub(super) regressions: IntCounter,
    pub(super) collapsed_queries: IntCounter,
    stale_served: IntCounterVec,
    evictions: IntCounterVec,
    pub(super) writable: IntGauge,
    pub(super) damaged_records: IntCounter,
    pub(super) revisions_dropped: IntCounter,
}

/// Why an answer was served although it was stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StaleReason {
    /// The origin is being asked in the background.
    Revalidating,
    /// The origin did not answer in time.
    OriginSlow,
    /// The origin could not be asked.
    OriginFailed,
    /// The origin offered an older version than was seen before.
    Regressed,
    /// As many queries to origins as may be were under way.
    EdgeBusy,
    /// The edge itself failed: a bug.
    EdgeFailed,
}

impl StaleReason {
    fn as_str(self) -> &'static str {
        match self {
            StaleReason::Revalidating => "revalidating",
            StaleReason::OriginSlow => "origin_slow",
            StaleReason::OriginFailed => "origin_failed",
            StaleReason::Regressed => "regressed",
            StaleReason::EdgeBusy => "edge_busy",
            StaleReason::EdgeFailed => "edge_failed",
        }
    }
}

/// Why a service left the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictionReason {
    /// There was no room for it.
    Capacity,
    /// It had been gone for long enough.
    TombstoneEnded,
}

impl EvictionReason {
    fn as_str(self) -> &'static str {
        match self {
            EvictionReason::Capacity => "capacity",
            EvictionReason::TombstoneEnded => "tombstone_ended",
        }
    }
}

impl CatalogMetrics {
    /// # Errors
    /// A name is taken.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let family = MetricFamilies(registry);
        Ok(Self {
            regressions: family.counter(
                "weir_edge_generation_regressions_total",
                "Descriptors that were refused because a newer one had been seen. Should be 0.",
            )?,
            collapsed_queries: family.counter(
                "weir_edge_asks_collapsed_total",
                "Requests that waited for a query to an origin that was under way already.",
            )?,
            stale_served: family.counters_of(
                "weir_edge_stale_served_total",
                "Answers that were served although they were stale, by the reason.",
                "why",
                &["revalidating", "origin_slow", "origin_failed", "regressed"],
            )?,
            evictions: family.counters_of(
                "weir_edge_catalog_evictions_total",
                "Services that left the catalog, by the reason; their highest generation is remembered.",
                "reason",
                &["capacity", "tombstone_ended"],
            )?,
            writable: family.gauge(
                "weir_edge_catalog_writable",
                "0 while the disk does not take the catalog: a crash would forget what it did not take.",
            )?,
            damaged_records: family.counter(
                "weir_edge_catalog_damaged_records_total",
                "Records of the catalog's file that could not be read at the start; their services are asked for again.",
            )?,
            revisions_dropped: family.counter(
                "weir_edge_catalog_revisions_dropped_total",
                "Refs whose revision an origin announced and that found no room.",
            )?,
        })
    }

    pub(super) fn stale_served(&self, why: StaleReason) {
        self.stale_served.with_label_values(&[why.as_str()]).inc();
    }

    pub(super) fn evicted(&self, reason: EvictionReason) {
        self.evictions.with_label_values(&[reason.as_str()]).inc();
    }
}

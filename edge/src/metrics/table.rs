//! What the service table counts.

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use weir_shared::process::metric_families::MetricFamilies;

/// What the service table counts.
#[derive(Debug, Clone)]
pub(crate) struct TableMetrics {
    pub(crate) regressions: IntCounter,
    pub(crate) collapsed_asks: IntCounter,
    stale_served: IntCounterVec,
    pub(crate) entries: IntGauge,
    pub(crate) writable: IntGauge,
    gzips: IntCounterVec,
}

/// Why an answer was served although it was stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StaleWhy {
    /// The origin is being asked in the background.
    Revalidating,
    /// The origin was waited for in vain.
    OriginSlow,
    /// The origin could not be asked.
    OriginFailed,
    /// The origin offered an older version than was seen before.
    Regressed,
    /// As many questions to origins as may be were under way.
    EdgeBusy,
    /// The edge itself could not take the answer: its disk, or a bug.
    EdgeFailed,
}

impl StaleWhy {
    /// The value of a metric's label, and of a log's field.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            StaleWhy::Revalidating => "revalidating",
            StaleWhy::OriginSlow => "origin_slow",
            StaleWhy::OriginFailed => "origin_failed",
            StaleWhy::Regressed => "regressed",
            StaleWhy::EdgeBusy => "edge_busy",
            StaleWhy::EdgeFailed => "edge_failed",
        }
    }
}

impl TableMetrics {
    pub(super) fn register(family: &MetricFamilies<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            regressions: family.counter(
                "weir_edge_generation_regressions_total",
                "Descriptors that were refused because a newer one had been seen. Should be 0.",
            )?,
            collapsed_asks: family.counter(
                "weir_edge_asks_collapsed_total",
                "Requests that waited for a question to an origin that was under way already.",
            )?,
            stale_served: family.counters_of(
                "weir_edge_stale_served_total",
                "Answers that were served although they were stale, by the reason.",
                "why",
                &["revalidating", "origin_slow", "origin_failed", "regressed"],
            )?,
            entries: family
                .gauge("weir_edge_table_entries", "Services in the table, in memory; tombstones included.")?,
            writable: family.gauge(
                "weir_edge_table_writable",
                "0 while the disk does not take the table: new versions of what it holds cannot be served.",
            )?,
            gzips: family.counters_of(
                "weir_edge_gzips_total",
                "Questions to origins to make a gzip representation, by the result.",
                "result",
                &["made", "unsupported", "failed", "full"],
            )?,
        })
    }

    pub(crate) fn gzip(&self, result: &'static str) {
        self.gzips.with_label_values(&[result]).inc();
    }

    pub(crate) fn stale_served(&self, why: StaleWhy) {
        self.stale_served.with_label_values(&[why.as_str()]).inc();
    }
}

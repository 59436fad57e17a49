//! What operators' requests count.

use prometheus::{IntCounterVec, Registry};
use weir_shared::process::metric_families::MetricFamilies;

/// What operators' requests count.
#[derive(Debug, Clone)]
pub(crate) struct OperatorMetrics {
    purges: IntCounterVec,
}

impl OperatorMetrics {
    /// # Errors
    /// A name is taken.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let purges = MetricFamilies(registry).counters(
            "weir_edge_purges_total",
            "Purges by operators, by what was named and how far they went.",
            &["kind", "mode"],
        )?;
        for kind in ["digest", "service", "repository"] {
            ["hard", "soft"].iter().for_each(|mode| drop(purges.with_label_values(&[kind, mode])));
        }
        Ok(Self { purges })
    }

    pub(super) fn purged(&self, kind: &'static str, mode: &'static str) {
        self.purges.with_label_values(&[kind, mode]).inc();
    }
}

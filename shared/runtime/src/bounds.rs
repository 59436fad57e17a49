//! The limits of a role's resources with their use, read when metrics are collected.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Registry};

/// A bound's name, its use, and the bound.
pub type Bound = (&'static str, u64, u64);

crate::metric_families! {
    /// The families of bounds.
    pub struct BoundMetrics {
        /// How much of a bound is in use. See the reference of limits for each bound.
        in_use: IntGaugeVec = "weir_bound_in_use" { bound };
        /// The bound: how much may be in use.
        limit: IntGaugeVec = "weir_bound_limit" { bound };
    }
}

struct Bounds {
    metrics: BoundMetrics,
    read: Box<dyn Fn() -> Vec<Bound> + Send + Sync>,
}

/// Registers the bounds that `read` returns.
///
/// # Errors
/// The names are registered already.
pub fn register(registry: &Registry, read: impl Fn() -> Vec<Bound> + Send + Sync + 'static) -> prometheus::Result<()> {
    registry.register(Box::new(Bounds { metrics: BoundMetrics::build("")?, read: Box::new(read) }))
}

impl Collector for Bounds {
    fn desc(&self) -> Vec<&Desc> {
        self.metrics.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for (name, in_use, limit) in (self.read)() {
            self.metrics.in_use.with_label_values(&[name]).set(number(in_use));
            self.metrics.limit.with_label_values(&[name]).set(number(limit));
        }
        self.metrics.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}

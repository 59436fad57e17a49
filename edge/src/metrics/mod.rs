//! What an edge counts. Each component is given its own families; nothing is global.

mod api;
mod cache;
mod cache_usage;
mod follower;
mod observed;
mod operator;
mod origin;
mod table;

use std::time::SystemTime;

use prometheus::Registry;
use weir_shared::process::metric_families::MetricFamilies;

pub(crate) use api::ApiMetrics;
pub(crate) use cache::{CacheMetrics, Dropped, Tier, VerifiedAt, WriteDropped};
pub(crate) use follower::{FollowerMetrics, Refused};
pub(crate) use observed::Observed;
pub(crate) use operator::OperatorMetrics;
pub(crate) use origin::OriginMetrics;
pub(crate) use table::{StaleWhy, TableMetrics};

/// All families of an edge.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub(crate) api: ApiMetrics,
    pub(crate) table: TableMetrics,
    pub(crate) origin: OriginMetrics,
    pub(crate) follower: FollowerMetrics,
    pub(crate) cache: CacheMetrics,
    pub(crate) operators: OperatorMetrics,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let family = MetricFamilies(registry);
        Ok(Self {
            api: ApiMetrics::register(&family)?,
            table: TableMetrics::register(&family)?,
            origin: OriginMetrics::register(&family)?,
            follower: FollowerMetrics::register(&family)?,
            cache: CacheMetrics::register(&family)?,
            operators: OperatorMetrics::register(&family)?,
        })
    }
}

/// A moment as a gauge holds it.
pub(crate) fn unix_seconds(at: SystemTime) -> i64 {
    let since_1970 = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_alerts_are_about_is_there_before_it_counts() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        metrics.origin.begin("o:1");
        let families = registry.gather();
        for (name, series) in [
            ("weir_edge_verify_failures_total", 2),
            ("weir_edge_served_through_total", 4),
            ("weir_edge_cache_write_dropped_total", 7),
            ("weir_edge_tarballs_served_total", 3),
            ("weir_edge_generation_regressions_total", 1),
            ("weir_edge_push_missed_total", 1),
            ("weir_edge_stale_served_total", 4),
            ("weir_edge_fills_total", 8),
            ("weir_edge_evictions_total", 4),
            ("weir_edge_streams_ended_total", 7),
            ("weir_edge_purges_total", 6),
            ("weir_edge_origin_circuit_opened_total", 1),
        ] {
            let family = families.iter().find(|family| family.name() == name);
            assert_eq!(family.map_or(0, |family| family.get_metric().len()), series, "{name}");
        }
    }
}

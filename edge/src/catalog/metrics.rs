//! The metrics of the catalog.

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use weir_runtime::metric_families;

metric_families! {
    /// The families of the catalog.
    pub(crate) struct CatalogMetrics {
        /// Descriptors rejected because a newer one was seen before. Alert above 0.
        pub(super) regressions: IntCounter = "weir_edge_generation_regressions_total";
        /// Versions that a query found and a push missed: the event stream of the origin was complete, and had not announced
        /// them by its second heartbeat after the query. The log names the services. Above 0: edges serve changes late; please
        /// report it.
        pub(super) pushes_missed: IntCounter = "weir_edge_push_missed_total";
        /// Requests that waited for a query to an origin already under way.
        pub(super) collapsed_queries: IntCounter = "weir_edge_queries_collapsed_total";
        /// Stale responses. `revalidating`: the origin is queried in the background. `edge_busy`: too many queries were under
        /// way. `edge_failed`: a bug, please report it.
        stale_served: IntCounterVec = "weir_edge_stale_served_total"
            { reason: ["revalidating", "origin_slow", "origin_failed", "regressed", "edge_busy", "edge_failed"] };
        /// Services that left the catalog. Their highest generation is remembered. `capacity`: raise `cache.services` or
        /// `cache.service_bytes`.
        evictions: IntCounterVec = "weir_edge_catalog_evictions_total" { reason: ["capacity", "tombstone_ended"] };
        /// 0 while the catalog cannot be written to disk: after a crash, changes since then are lost. Alert on 0.
        pub(super) writable: IntGauge = "weir_edge_catalog_writable";
        /// Records of the catalog's file that could not be read at the start. Their services are requested again.
        pub(super) damaged_records: IntCounter = "weir_edge_catalog_damaged_records_total";
        /// Refs that an origin announced and that exceed the limit `announced_refs`.
        pub(super) revisions_dropped: IntCounter = "weir_edge_catalog_revisions_dropped_total";
    }
}

/// Why an answer was served although it was stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum StaleReason {
    /// The origin is being queried in the background.
    Revalidating,
    /// The origin did not answer in time.
    OriginSlow,
    /// The origin could not be queried.
    OriginFailed,
    /// The origin offered an older version than was seen before.
    Regressed,
    /// The limit of concurrent queries to origins was reached.
    EdgeBusy,
    /// The edge itself failed: a bug.
    EdgeFailed,
}

/// Why a service left the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictionReason {
    /// There was no room for it.
    Capacity,
    /// Its tombstone expired.
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
    pub(super) fn stale_served(&self, why: StaleReason) {
        self.stale_served.with_label_values(&[why.into_str()]).inc();
    }

    pub(super) fn evicted(&self, reason: EvictionReason) {
        self.evictions.with_label_values(&[reason.as_str()]).inc();
    }
}

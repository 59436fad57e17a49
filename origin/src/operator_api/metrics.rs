//! What operators' requests are counted by.

use http::StatusCode;
use prometheus::{IntCounterVec, Registry};
use weir_shared::process::metric_families::MetricFamilies;

use super::route::Route;

/// The families.
#[derive(Debug, Clone)]
pub(super) struct OperatorMetrics {
    requests: IntCounterVec,
}

impl OperatorMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let requests = MetricFamilies(registry).counters(
            "weir_origin_operator_requests_total",
            "Requests on the operators' listener, by what they ask for and by status.",
            &["route", "status"],
        )?;
        Ok(Self { requests })
    }

    /// A request was answered. Without a route: its path leads nowhere.
    pub(super) fn answered(&self, route: Option<&Route>, status: StatusCode) {
        self.requests.with_label_values(&[route.map_or("none", Route::label), status.as_str()]).inc();
    }
}

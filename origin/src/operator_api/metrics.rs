//! Metrics of operators' requests and webhook deliveries.

use http::StatusCode;
use prometheus::{IntCounterVec, Registry};
use weir_runtime::metric_families::MetricFamilies;

use super::route::Route;
use crate::webhook::Provider;

/// The results of webhook deliveries.
const RESULTS: [&str; 6] = ["kicked", "ping", "other_event", "not_followed", "refused", "unread"];

#[derive(Debug, Clone)]
pub(super) struct OperatorMetrics {
    requests: IntCounterVec,
    webhooks: IntCounterVec,
}

impl OperatorMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let families = MetricFamilies(registry);
        let requests = families.counters(
            "weir_origin_operator_requests_total",
            "Requests on the operators' listener, by what they ask for and by status.",
            &["route", "status"],
        )?;
        let webhooks = families.counters(
            "weir_origin_webhooks_total",
            "Deliveries of webhooks, by result (kicked, ping, other_event, not_followed, refused, unread).",
            &["provider", "result"],
        )?;
        for provider in Provider::ALL {
            for result in RESULTS {
                webhooks.with_label_values(&[provider.as_str(), result]);
            }
        }
        Ok(Self { requests, webhooks })
    }

    /// Counts a delivery.
    pub(super) fn delivered(&self, provider: Provider, result: &str) {
        self.webhooks.with_label_values(&[provider.as_str(), result]).inc();
    }

    /// Counts a request. `None`: its path has no route.
    pub(super) fn answered(&self, route: Option<&Route>, status: StatusCode) {
        self.requests.with_label_values(&[route.map_or("none", Route::label), status.as_str()]).inc();
    }
}

//! Metrics of operators' requests and webhook deliveries.

use http::StatusCode;
use prometheus::IntCounterVec;
use weir_runtime::metric_families;

use crate::webhook::Provider;

metric_families! {
    /// The families of the operators' listener.
    pub(crate) struct OperatorMetrics {
        /// Requests on `operator_listen`. The route `none` is a path that leads nowhere, `page` that for
        /// people.
        requests: IntCounterVec = "weir_origin_operator_requests_total" { route, status };
        /// Deliveries of webhooks. `triggered`: a poll was requested. `unread`: the delivery was too long, too slow or
        /// incomplete. `overloaded`: there were too many at once. `source_limited`: too many came from one address.
        webhooks: IntCounterVec = "weir_origin_webhooks_total" {
            provider: ["github", "gitlab", "gitea", "bitbucket", "generic"],
            result: ["triggered", "ping", "other_event", "not_followed", "refused", "unread", "overloaded", "source_limited"]
        };
    }
}

impl OperatorMetrics {
    /// Counts a delivery.
    pub(super) fn delivered(&self, provider: Provider, result: &str) {
        self.webhooks.with_label_values(&[provider.as_str(), result]).inc();
    }

    /// Counts a request. `None`: its path has no route.
    pub(super) fn answered(&self, route: Option<&str>, status: StatusCode) {
        self.requests.with_label_values(&[route.unwrap_or("none"), status.as_str()]).inc();
    }
}

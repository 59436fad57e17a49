//! Metrics of requests to other members of the cluster.

use prometheus::IntCounterVec;
use weir_runtime::metric_families;

metric_families! {
    /// The families of requests to other members.
    pub(crate) struct MemberMetrics {
        /// Requests to other origins of the cluster. `operator` and `webhook` were passed on to the owner of a repository.
        /// The status is that of HTTP, or `unreachable`, `timeout`, `overloaded` (none was sent).
        requests: IntCounterVec = "weir_origin_member_requests_total"
            { kind: ["ask", "tell", "changed", "lists", "heartbeats", "operator", "webhook"], status };
    }
}

impl MemberMetrics {
    pub(super) fn answered(&self, kind: &str, status: &str) {
        self.requests.with_label_values(&[kind, status]).inc();
    }
}

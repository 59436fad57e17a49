//! The metrics of requests to origins.

use std::time::SystemTime;

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};
use weir_runtime::metric_families;
use weir_runtime::metric_families::unix_seconds;

metric_families! {
    /// The families of requests to origins.
    pub(crate) struct OriginMetrics {
        /// Requests to origins, and for objects to shields. The status is that of HTTP, or `unreachable`, `timeout`,
        /// `bad_answer`, `circuit_open` (no request was sent).
        requests: IntCounterVec = "weir_edge_origin_requests_total"
            { kind: ["service", "version", "versions", "object", "shield", "access", "events", "members", "heartbeats", "observed",
            "probe"], status };
        /// Bytes of responses from origins and shields. Offload = 1 − this / `weir_edge_sent_bytes_total`.
        received_bytes: IntCounter = "weir_edge_origin_received_bytes_total";
        /// 1 while the origin or shield answers and its circuit is closed.
        up: IntGaugeVec = "weir_edge_origin_up" { origin };
        /// How often requests to the origin were suspended because it did not answer.
        circuits_opened: IntCounterVec = "weir_edge_origin_circuit_opened_total" { origin };
        /// When the edge's client certificate for the origin expires, in Unix seconds. Alert two
        /// weeks before.
        client_not_after: IntGaugeVec = "weir_edge_origin_client_certificate_not_after_timestamp_seconds" { origin };
    }
}

impl OriginMetrics {
    pub(crate) fn answered(&self, kind: &str, status: &str) {
        self.requests.with_label_values(&[kind, status]).inc();
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received_bytes.inc_by(bytes as u64);
    }

    /// Creates the series of an origin.
    pub(crate) fn create_series(&self, origin: &str) {
        self.up(origin, false);
        self.circuits_opened.with_label_values(&[origin]);
    }

    pub(crate) fn circuit_opened(&self, origin: &str) {
        self.circuits_opened.with_label_values(&[origin]).inc();
    }

    pub(crate) fn client_certificate(&self, origin: &str, ends: SystemTime) {
        self.client_not_after.with_label_values(&[origin]).set(unix_seconds(ends));
    }

    /// The origin has left: what is not up is not down.
    pub(crate) fn left(&self, origin: &str) {
        // An error means that there is no such series.
        let _ = self.up.remove_label_values(&[origin]);
        let _ = self.circuits_opened.remove_label_values(&[origin]);
        let _ = self.client_not_after.remove_label_values(&[origin]);
    }

    pub(crate) fn up(&self, origin: &str, up: bool) {
        self.up.with_label_values(&[origin]).set(i64::from(up));
    }
}

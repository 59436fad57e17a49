//! The metrics of the API for edges.

use http::StatusCode;
use prometheus::{IntCounter, IntCounterVec};
use weir_runtime::metric_families;

metric_families! {
    /// The families of the API for edges.
    pub(crate) struct PeerMetrics {
        /// Requests of other edges, for which this edge is a shield.
        requests: IntCounterVec = "weir_edge_peer_requests_total"
            { route: ["service", "version", "versions", "object", "access", "events", "heartbeats", "observed", "unknown"], status };
        /// Bytes of objects sent to other edges.
        pub(super) sent_bytes: IntCounter = "weir_edge_peer_sent_bytes_total";
        /// Event streams to other edges that ended. `behind`: the reader was too slow. `suspect`: a service may have changed
        /// unseen, or an origin sent a snapshot, and readers start over.
        ended: IntCounterVec = "weir_edge_peer_streams_ended_total"
            { reason: ["reader_gone", "drained", "stalled", "behind", "suspect", "access_list", "credential_ended"] };
    }
}

impl PeerMetrics {
    pub(super) fn answered(&self, route: &str, status: StatusCode) {
        self.requests.with_label_values(&[route, status.as_str()]).inc();
    }

    pub(super) fn stream_ended(&self, why: &str) {
        self.ended.with_label_values(&[why]).inc();
    }
}

//! The families of connections: [`super::connection_metrics`] counts in them.

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};

crate::metric_families! {
    /// The families of connections, for all listeners of a role.
    pub(super) struct ConnectionMetrics {
        /// Open connections.
        pub(super) open: IntGaugeVec = "weir_http_connections" { listener, transport: TRANSPORTS, protocol: ["h1", "h2", "h3"] };
        /// How many connections may be open.
        pub(super) open_limit: IntGaugeVec = "weir_http_connections_limit" { listener, transport: TRANSPORTS };
        /// TLS and QUIC handshakes under way.
        pub(super) handshakes: IntGaugeVec = "weir_http_handshakes" { listener, transport: TRANSPORTS };
        /// How many handshakes may be under way.
        pub(super) handshakes_limit: IntGaugeVec = "weir_http_handshakes_limit" { listener, transport: TRANSPORTS };
        /// Duration of TLS and QUIC handshakes that succeeded.
        pub(super) handshake_duration: HistogramVec = "weir_http_handshake_duration_seconds" { listener, transport: TRANSPORTS }
            [1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
        /// TLS and QUIC handshakes that failed. `closed`: the client closed the connection. `rejected`: the client sent an
        /// alert, most often because it does not trust the certificate. `refused`: the client sent no accepted
        /// certificate, no common protocol, or no TLS.
        pub(super) handshake_failures: IntCounterVec = "weir_http_handshake_failures_total"
            { listener, transport: TRANSPORTS, reason: HANDSHAKE_FAILURES };
        /// Connections that a limit delayed or rejected. Over TCP a connection waits in the kernel's backlog. Over QUIC it is
        /// rejected, or (`unvalidated_handshakes`) the client must prove its address first, which costs a round trip. `source`:
        /// one address has a quarter of the connections or QUIC handshakes; the new connection is closed. `first_request`: the
        /// connection is closed because none of its requests was accepted (below 400, or 500 and above) within 10 s.
        pub(super) limited: IntCounterVec = "weir_http_connections_limited_total"
            { listener, transport: TRANSPORTS, bound: BOUNDS };
        /// Responses that were reset because the client took nothing for 60 s, or less than 16 KiB in 60 s of waiting
        /// (HTTP/2 and HTTP/3).
        pub(super) stalled: IntCounterVec = "weir_http_stalled_total" { listener, protocol: ["h1", "h2", "h3"] };
    }
}

const TRANSPORTS: [&str; 2] = ["tcp", "quic"];
const BOUNDS: [&str; 6] =
    ["connections", "open_files", "handshakes", "unvalidated_handshakes", "source", "first_request"];
pub(super) const HANDSHAKE_FAILURES: [&str; 4] = ["timeout", "closed", "rejected", "refused"];

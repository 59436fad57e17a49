//! The metrics of every listener, in the same families for all roles.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, Registry};

use super::connection_metrics::ConnectionMetrics;
use super::quic_metrics::QuicMetrics;
use super::request_counters::RequestCounters;
use crate::metric_families::Family;

crate::metric_families! {
    /// The families of requests, for all listeners of a role.
    pub(super) struct RequestMetrics {
        /// Requests answered.
        requests: IntCounterVec = "weir_http_requests_total" { listener, protocol, method, status };
        /// Time from the end of a request's headers to the response's headers.
        duration: HistogramVec = "weir_http_request_duration_seconds" { listener, protocol }
            [5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1.0, 5.0, 30.0];
    }
}

/// The families of all listeners of a role.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    requests: RequestMetrics,
    connections: ConnectionMetrics,
    quic: QuicMetrics,
}

/// The families, for one listener.
#[derive(Debug, Clone)]
pub struct ListenerMetrics {
    families: HttpMetrics,
    listener: &'static str,
    counters: Arc<RequestCounters>,
}

impl HttpMetrics {
    /// Registers the families.
    ///
    /// # Errors
    /// They were registered there before.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            requests: RequestMetrics::register(registry)?,
            connections: ConnectionMetrics::register(registry)?,
            quic: QuicMetrics::register(registry)?,
        })
    }

    /// The table of the families.
    pub fn families() -> Vec<Family> {
        [RequestMetrics::FAMILIES, ConnectionMetrics::FAMILIES, QuicMetrics::FAMILIES].concat()
    }

    /// The families, for one listener.
    pub fn listener(&self, listener: &'static str) -> ListenerMetrics {
        let counters =
            Arc::new(RequestCounters::new(listener, self.requests.requests.clone(), self.requests.duration.clone()));
        ListenerMetrics { families: self.clone(), listener, counters }
    }
}

impl ListenerMetrics {
    pub(super) fn request_finished(
        &self,
        version: http::Version,
        method: &http::Method,
        status: http::StatusCode,
        took: Duration,
    ) {
        self.counters.count(version, method, status, took);
    }

    /// The value of the label `listener`.
    pub(super) fn listener(&self) -> &'static str {
        self.listener
    }

    /// The families of connections.
    pub(super) fn connections(&self) -> &ConnectionMetrics {
        &self.families.connections
    }

    /// The families of QUIC.
    pub(super) fn quic(&self) -> &QuicMetrics {
        &self.families.quic
    }
}

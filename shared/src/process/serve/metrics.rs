//! What every listener counts, in the same families for all roles.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Registry};

use super::MAX_CONNECTIONS;
use crate::process::metric_families::MetricFamilies;

/// The families. One per process role; listeners are told apart by a label.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    connections: IntGaugeVec,
    connections_limit: IntGaugeVec,
    handshake_failures: IntCounterVec,
}

/// The families, for one listener.
#[derive(Debug, Clone)]
pub struct ListenerMetrics {
    families: HttpMetrics,
    listener: &'static str,
}

impl HttpMetrics {
    /// Registers the families.
    ///
    /// # Errors
    /// They were registered there before.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let families = MetricFamilies(registry);
        let latency =
            HistogramOpts::new("weir_http_request_duration_seconds", "From the request's head to the response's head.")
                .buckets(vec![5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1.0, 5.0, 30.0]);
        let by_transport = &["listener", "transport"];
        Ok(Self {
            requests: families.counters(
                "weir_http_requests_total",
                "Requests answered, by listener, protocol, method and status.",
                &["listener", "protocol", "method", "status"],
            )?,
            duration: families.add(HistogramVec::new(latency, &["listener", "protocol"])?)?,
            connections: families.gauges("weir_http_connections", "Connections that are open.", by_transport)?,
            connections_limit: families.gauges(
                "weir_http_connections_limit",
                "Connections that a listener holds at the most.",
                by_transport,
            )?,
            handshake_failures: families.counters(
                "weir_http_handshake_failures_total",
                "TLS or QUIC handshakes that failed or timed out.",
                by_transport,
            )?,
        })
    }

    /// The families, for one listener.
    pub fn listener(&self, listener: &'static str) -> ListenerMetrics {
        ListenerMetrics { families: self.clone(), listener }
    }
}

impl ListenerMetrics {
    pub(super) fn answered(
        &self,
        version: http::Version,
        method: &http::Method,
        status: http::StatusCode,
        took: Duration,
    ) {
        let protocol = match version {
            http::Version::HTTP_3 => "h3",
            http::Version::HTTP_2 => "h2",
            _ => "h1",
        };
        let method = match *method {
            http::Method::GET => "GET",
            http::Method::HEAD => "HEAD",
            http::Method::POST => "POST",
            http::Method::PUT => "PUT",
            http::Method::DELETE => "DELETE",
            _ => "other",
        };
        self.families.requests.with_label_values(&[self.listener, protocol, method, status.as_str()]).inc();
        self.families.duration.with_label_values(&[self.listener, protocol]).observe(took.as_secs_f64());
    }

    pub(super) fn handshake_failed(&self, transport: &'static str) {
        self.families.handshake_failures.with_label_values(&[self.listener, transport]).inc();
    }

    /// Counts an open connection until the guard is dropped.
    pub(super) fn connection(&self, transport: &'static str) -> impl Drop + Send + use<> {
        struct Open(prometheus::IntGauge);
        impl Drop for Open {
            fn drop(&mut self) {
                self.0.dec();
            }
        }
        let labels = [self.listener, transport];
        self.families.connections_limit.with_label_values(&labels).set(MAX_CONNECTIONS as i64);
        let gauge = self.families.connections.with_label_values(&labels);
        gauge.inc();
        Open(gauge)
    }
}

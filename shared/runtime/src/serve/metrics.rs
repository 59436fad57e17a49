//! What every listener counts, in the same families for all roles.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Registry};

use super::answer_counts::AnswerCounts;
use super::connection_metrics::ConnectionFamilies;
use crate::metric_families::MetricFamilies;

/// The families. One per process role; listeners are told apart by a label.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    connections: ConnectionFamilies,
}

/// The families, for one listener.
#[derive(Debug, Clone)]
pub struct ListenerMetrics {
    families: HttpMetrics,
    listener: &'static str,
    answers: Arc<AnswerCounts>,
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
        Ok(Self {
            requests: families.counters(
                "weir_http_requests_total",
                "Requests answered, by listener, protocol, method and status.",
                &["listener", "protocol", "method", "status"],
            )?,
            duration: families.add(HistogramVec::new(latency, &["listener", "protocol"])?)?,
            connections: ConnectionFamilies::register(families)?,
        })
    }

    /// The families, for one listener.
    pub fn listener(&self, listener: &'static str) -> ListenerMetrics {
        let answers = Arc::new(AnswerCounts::of(listener, self.requests.clone(), self.duration.clone()));
        ListenerMetrics { families: self.clone(), listener, answers }
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
        self.answers.count(version, method, status, took);
    }

    /// The label's value.
    pub(super) fn listener(&self) -> &'static str {
        self.listener
    }

    /// What is counted of connections.
    pub(super) fn connections(&self) -> &ConnectionFamilies {
        &self.families.connections
    }
}

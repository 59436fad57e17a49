//! What the requests to origins count.

use std::time::SystemTime;

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};
use weir_runtime::metric_families::MetricFamilies;

use crate::clock::unix_seconds;

/// What the requests to origins count.
#[derive(Debug, Clone)]
pub(crate) struct OriginMetrics {
    requests: IntCounterVec,
    received_bytes: IntCounter,
    up: IntGaugeVec,
    circuits_opened: IntCounterVec,
    client_not_after: IntGaugeVec,
}

impl OriginMetrics {
    pub(crate) fn register(family: &MetricFamilies<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            requests: family.counters(
                "weir_edge_origin_requests_total",
                "Requests to origins, by what was asked for and the status of the answer.",
                &["kind", "status"],
            )?,
            received_bytes: family
                .counter("weir_edge_origin_received_bytes_total", "Bytes of bodies that origins sent.")?,
            up: family.gauges(
                "weir_edge_origin_up",
                "Whether an origin has answered and its circuit is closed.",
                &["origin"],
            )?,
            circuits_opened: family.counters(
                "weir_edge_origin_circuit_opened_total",
                "How often an origin was left alone because it had not answered.",
                &["origin"],
            )?,
            client_not_after: family.gauges(
                "weir_edge_origin_client_certificate_not_after_timestamp_seconds",
                "When the certificate that the edge shows to an origin ends, or the first of its chain.",
                &["origin"],
            )?,
        })
    }

    pub(crate) fn answered(&self, kind: &str, status: &str) {
        self.requests.with_label_values(&[kind, status]).inc();
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received_bytes.inc_by(bytes as u64);
    }

    /// An origin is to be called: what is said of each is there from now on.
    pub(crate) fn begin(&self, origin: &str) {
        self.up(origin, false);
        self.circuits_opened.with_label_values(&[origin]);
    }

    pub(crate) fn circuit_opened(&self, origin: &str) {
        self.circuits_opened.with_label_values(&[origin]).inc();
    }

    pub(crate) fn client_certificate(&self, origin: &str, ends: SystemTime) {
        self.client_not_after.with_label_values(&[origin]).set(unix_seconds(ends));
    }

    pub(crate) fn up(&self, origin: &str, up: bool) {
        self.up.with_label_values(&[origin]).set(i64::from(up));
    }
}

//! What the agents' side counts.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec};
use weir_runtime::metric_families::MetricFamilies;

use crate::cache::Source;

/// What the agents' side counts.
#[derive(Debug, Clone)]
pub(crate) struct ApiMetrics {
    requests: IntCounterVec,
    /// Of `requests`, the polls and the fetches that find everything at hand: looked up once, because nothing is asked for
    /// more often.
    unchanged: IntCounter,
    full: IntCounter,
    /// In the order of [`SOURCES`].
    served: [Served; SOURCES.len()],
    served_staleness: Histogram,
    publication_age: Histogram,
}

/// Where the bytes of a body come from: values of a label.
const SOURCES: [&str; 3] = ["memory", "disk", "origin"];

/// Bodies from one source, and their bytes.
#[derive(Debug, Clone)]
struct Served {
    bodies: IntCounter,
    bytes: IntCounter,
}

impl ApiMetrics {
    pub(crate) fn register(family: &MetricFamilies<'_>) -> prometheus::Result<Self> {
        let requests = family.counters(
            "weir_edge_requests_total",
            "Requests of agents, by what was asked for, what the cache did and the status of the answer.",
            &["route", "method", "cache", "status"],
        )?;
        let served = family.counters(
            "weir_edge_tarballs_served_total",
            "Bodies of tarballs that were begun, by where their bytes came from.",
            &["tier"],
        )?;
        let sent_bytes = family.counters(
            "weir_edge_sent_bytes_total",
            "Bytes of tarballs handed to agents, by where they came from.",
            &["tier"],
        )?;
        Ok(Self {
            unchanged: requests.with_label_values(&["tarball", "HEAD", "hit", "304"]),
            full: requests.with_label_values(&["tarball", "GET", "hit", "200"]),
            requests,
            served: SOURCES.map(|source| Served {
                bodies: served.with_label_values(&[source]),
                bytes: sent_bytes.with_label_values(&[source]),
            }),
            publication_age: family.histogram(
                "weir_edge_served_publication_age_seconds",
                "How long before a body was sent its version had been published.",
                &[0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 3600.0, 86_400.0, 604_800.0],
            )?,
            served_staleness: family.histogram(
                "weir_edge_served_staleness_seconds",
                "For how long the stale answers that were served had been stale.",
                &[1.0, 5.0, 15.0, 60.0, 300.0, 3600.0, 21_600.0, 86_400.0, 604_800.0],
            )?,
        })
    }

    pub(crate) fn answered(&self, route: &str, method: &http::Method, cache: &str, status: http::StatusCode) {
        let method = match *method {
            http::Method::GET => "GET",
            http::Method::HEAD => "HEAD",
            _ => "other",
        };
        match (route, method, cache, status) {
            ("tarball", "HEAD", "hit", http::StatusCode::NOT_MODIFIED) => self.unchanged.inc(),
            ("tarball", "GET", "hit", http::StatusCode::OK) => self.full.inc(),
            _ => self.requests.with_label_values(&[route, method, cache, status.as_str()]).inc(),
        }
    }

    /// A body is begun; what counts its bytes.
    pub(crate) fn served(&self, source: Source, published_ago: Duration) -> &IntCounter {
        let served = &self.served[match source {
            Source::Memory => 0,
            Source::Disk => 1,
            Source::Origin { .. } => 2,
        }];
        served.bodies.inc();
        self.publication_age.observe(published_ago.as_secs_f64());
        &served.bytes
    }

    pub(crate) fn served_stale(&self, seconds: u64) {
        self.served_staleness.observe(seconds as f64);
    }
}

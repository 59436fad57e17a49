//! The metrics of the agents' API.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, Registry};
use weir_cache::{SentBytes, Source};
use weir_protocol::encoding::Encoding;
use weir_protocol::observed::TransferKind;
use weir_runtime::metric_families;

metric_families! {
    /// The families of the agents' API.
    pub(crate) struct ApiFamilies {
        /// Requests of agents. `cache` is what the cache did. Polls that changed nothing have the status 304.
        requests: IntCounterVec = "weir_edge_requests_total"
            { route, method, cache: ["hit", "stale", "miss", "collapsed", "revalidated", "forced", "error"], status };
        /// Responses with a whole tarball, a delta or a blob of the OCI API, by the source of their first bytes. Hit ratio = 1 − origin / all.
        tarballs: IntCounterVec = "weir_edge_tarballs_served_total" { tier: TIERS };
        /// Bytes of tarballs sent to agents, by content coding, by the tier that each frame came from, and by `kind`: whole bodies,
        /// deltas, or ranges, which are the frames that an agent lacks or the rest of a download. Blobs of the OCI API have the
        /// encoding `oci`. Byte hit ratio = 1 − origin / all.
        sent_bytes: IntCounterVec = "weir_edge_sent_bytes_total" { tier: TIERS, encoding: ENCODINGS, kind: TransferKind::LABELS };
        /// Age of the publication when a response with its tarball or a delta started. Polls and ranges do not count.
        publication_age: Histogram = "weir_edge_served_publication_age_seconds"
            [0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 3600.0, 86_400.0, 604_800.0];
        /// How long stale responses had been stale when they were served.
        served_staleness: Histogram = "weir_edge_served_staleness_seconds"
            [1.0, 5.0, 15.0, 60.0, 300.0, 3600.0, 21_600.0, 86_400.0, 604_800.0];
    }
}

/// The metrics of the agents' API.
#[derive(Debug, Clone)]
pub(crate) struct ApiMetrics {
    families: ApiFamilies,
    /// The series of unchanged polls and of cache hits, looked up once because nothing is requested more often.
    unchanged: IntCounter,
    full: IntCounter,
    manifests: IntCounter,
    /// Bodies by the tier of their first bytes, in the order of [`TIERS`].
    bodies: [IntCounter; TIERS.len()],
    /// Their bytes, in the order of [`ENCODINGS`]: of whole bodies, and of ranges.
    sent: [[SentBytes; 2]; ENCODINGS.len()],
}

/// The tiers that a body's bytes come from: values of a label, in the order of [`Tier`](weir_cache::Tier).
const TIERS: [&str; 3] = ["memory", "disk", "origin"];

/// The content codings of bodies: values of a label, in the order of [`Encoding::PREFERENCE`], and last blobs.
const ENCODINGS: [&str; 5] = ["dcz", "zstd", "gzip", "identity", "oci"];

/// A range counts as frames, also if it is the rest of a download.
fn kind(encoding: &str, is_range: bool) -> TransferKind {
    match (encoding, is_range) {
        ("dcz", _) => TransferKind::Delta,
        (_, true) => TransferKind::Frames,
        (_, false) => TransferKind::Full,
    }
}

impl ApiMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let families = ApiFamilies::register(registry)?;
        Ok(Self {
            unchanged: families.requests.with_label_values(&["tarball", "HEAD", "hit", "304"]),
            full: families.requests.with_label_values(&["tarball", "GET", "hit", "200"]),
            manifests: families.requests.with_label_values(&["oci_manifest", "HEAD", "hit", "200"]),
            bodies: TIERS.map(|tier| families.tarballs.with_label_values(&[tier])),
            sent: ENCODINGS.map(|encoding| {
                [false, true].map(|is_range| {
                    let labels = |tier| [tier, encoding, kind(encoding, is_range).as_str()];
                    Arc::new(TIERS.map(|tier| families.sent_bytes.with_label_values(&labels(tier))))
                })
            }),
            families,
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
            ("oci_manifest", "HEAD", "hit", http::StatusCode::OK) => self.manifests.inc(),
            _ => self.families.requests.with_label_values(&[route, method, cache, status.as_str()]).inc(),
        }
    }

    /// Counts a body that starts; a range is only a part of one. `encoding`: of a tarball, not of a blob. Returns the counters
    /// of its bytes.
    pub(crate) fn served(
        &self,
        source: &Source,
        encoding: Option<Encoding>,
        is_range: bool,
        published_ago: Duration,
    ) -> &SentBytes {
        if !is_range {
            self.bodies[source.tier() as usize].inc();
            self.families.publication_age.observe(published_ago.as_secs_f64());
        }
        let position = encoding.map_or(ENCODINGS.len() - 1, |encoding| encoding as usize);
        &self.sent[position][usize::from(is_range)]
    }

    pub(crate) fn served_stale(&self, seconds: u64) {
        self.families.served_staleness.observe(seconds as f64);
    }
}

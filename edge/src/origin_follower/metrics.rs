//! The metrics of the followers of event streams.

use std::time::SystemTime;

use prometheus::{Histogram, IntCounterVec, IntGauge, IntGaugeVec};
use weir_protocol::event::EventKind;
use weir_runtime::metric_families;
use weir_runtime::metric_families::unix_seconds;

metric_families! {
    /// The families of the followers of event streams.
    pub(crate) struct FollowerMetrics {
        /// 1 while the origin's event stream is followed and complete. Alert on 0 for minutes.
        up: IntGaugeVec = "weir_edge_stream_up" { origin };
        /// When the last heartbeat of the origin's event stream came, in Unix seconds. Heartbeats come every 5 s.
        last_heartbeat: IntGaugeVec = "weir_edge_stream_last_heartbeat_timestamp_seconds" { origin };
        /// Origins that the last lists of members name. 0: no origin is a member of a cluster.
        pub(super) members: IntGauge = "weir_edge_members";
        /// Events from origins.
        events: IntCounterVec = "weir_edge_events_total"
            { event: ["descriptor", "tombstone", "revision", "heartbeat", "resync", "snapshot_end", "access", "released"] };
        /// Event streams that started with a full snapshot. `start`: the edge started. `cursor_unknown`: the origin restarted,
        /// or the edge was disconnected for too long. `lost`: events could not be read.
        resyncs: IntCounterVec = "weir_edge_resyncs_total" { reason: ["start", "cursor_unknown", "lost"] };
        /// Event streams that ended.
        ended: IntCounterVec = "weir_edge_streams_ended_total"
            { reason: ["not_served", "refused", "ended", "broken", "silent", "malformed"] };
        /// Pushed descriptors that were not accepted. `regressed`: older than the stored one; the origin is queried.
        /// `other_origin`: the service belongs to an origin of another cluster. `unreadable`: the origin is newer; upgrade the
        /// edge.
        refused: IntCounterVec = "weir_edge_push_refused_total" { reason: ["regressed", "other_origin", "unreadable"] };
        /// Time from a publication until it was in the catalog, by the clocks of both machines. Snapshots and new
        /// representations of a known generation do not count.
        pub(super) push_delay: Histogram = "weir_edge_push_delay_seconds"
            [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];
        /// New versions of services in use that were prefetched, or not because too many waited.
        prefetched: IntCounterVec = "weir_edge_prefetches_total" { result: ["begun", "dropped"] };
    }
}

/// Why something that was pushed was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// A newer version was seen before.
    Regressed,
    /// The service is another origin's.
    OtherOrigin,
    /// This version of the edge cannot read it.
    Unreadable,
}

impl FollowerMetrics {
    pub(super) fn stream_up(&self, origin: &str, up: bool) {
        self.up.with_label_values(&[origin]).set(i64::from(up));
    }

    /// The origin has left, and is not followed any longer.
    pub(super) fn left(&self, origin: &str) {
        // An error means that there is no such series.
        let _ = self.up.remove_label_values(&[origin]);
        let _ = self.last_heartbeat.remove_label_values(&[origin]);
    }

    pub(super) fn heartbeat(&self, origin: &str) {
        self.last_heartbeat.with_label_values(&[origin]).set(unix_seconds(SystemTime::now()));
    }

    pub(super) fn event(&self, kind: &EventKind) {
        self.events.with_label_values(&[kind.as_str()]).inc();
    }

    pub(super) fn resynced(&self, why: &str) {
        self.resyncs.with_label_values(&[why]).inc();
    }

    pub(super) fn stream_ended(&self, why: &str) {
        self.ended.with_label_values(&[why]).inc();
    }

    pub(super) fn refused(&self, why: Refused) {
        let why = match why {
            Refused::Regressed => "regressed",
            Refused::OtherOrigin => "other_origin",
            Refused::Unreadable => "unreadable",
        };
        self.refused.with_label_values(&[why]).inc();
    }

    pub(super) fn prefetched(&self, result: &str) {
        self.prefetched.with_label_values(&[result]).inc();
    }
}

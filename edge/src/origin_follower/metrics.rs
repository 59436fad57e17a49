//! What the followers of event streams count.

use std::time::SystemTime;

use prometheus::{Histogram, IntCounterVec, IntGaugeVec, Registry};
use weir_protocol::event::EventKind;
use weir_runtime::metric_families::MetricFamilies;

use crate::clock::unix_seconds;

/// Kinds of events, as values of a label.
const EVENTS: [&str; 7] = ["descriptor", "tombstone", "revision", "heartbeat", "resync", "snapshot_end", "access"];

/// Why event streams end, as values of a label.
const ENDS: [&str; 6] = ["not_served", "refused", "ended", "broken", "silent", "malformed"];

/// What the followers of event streams count.
#[derive(Debug, Clone)]
pub(crate) struct FollowerMetrics {
    up: IntGaugeVec,
    last_heartbeat: IntGaugeVec,
    events: IntCounterVec,
    resyncs: IntCounterVec,
    ended: IntCounterVec,
    refused: IntCounterVec,
    pub(super) push_delay: Histogram,
    prefetched: IntCounterVec,
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
    /// # Errors
    /// A name is taken.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let family = MetricFamilies(registry);
        Ok(Self {
            up: family.gauges(
                "weir_edge_stream_up",
                "Whether an origin's event stream is followed and in step.",
                &["origin"],
            )?,
            last_heartbeat: family.gauges(
                "weir_edge_stream_last_heartbeat_timestamp_seconds",
                "When an origin's event stream had its last heartbeat, in Unix seconds.",
                &["origin"],
            )?,
            events: family.counters_of(
                "weir_edge_events_total",
                "Events that origins sent, by kind.",
                "event",
                &EVENTS,
            )?,
            resyncs: family.counters_of(
                "weir_edge_resyncs_total",
                "Event streams that began with everything that is current: start, cursor_unknown, lost.",
                "why",
                &["start", "cursor_unknown", "lost"],
            )?,
            ended: family.counters_of(
                "weir_edge_streams_ended_total",
                "Event streams that ended, by why.",
                "why",
                &ENDS,
            )?,
            refused: family.counters_of(
                "weir_edge_push_refused_total",
                "Pushed descriptors that were not taken: regressed, another_origins, unreadable.",
                "why",
                &["regressed", "another_origins", "unreadable"],
            )?,
            push_delay: family.histogram(
                "weir_edge_push_delay_seconds",
                "From a publication until it was in the catalog, by the wall clocks of both machines.",
                &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0],
            )?,
            prefetched: family.counters_of(
                "weir_edge_prefetches_total",
                "New versions of services in use: begun (fetched before a client asks), dropped (too many waited).",
                "result",
                &["begun", "dropped"],
            )?,
        })
    }

    pub(super) fn stream_up(&self, origin: &str, up: bool) {
        self.up.with_label_values(&[origin]).set(i64::from(up));
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
            Refused::OtherOrigin => "another_origins",
            Refused::Unreadable => "unreadable",
        };
        self.refused.with_label_values(&[why]).inc();
    }

    pub(super) fn prefetched(&self, result: &str) {
        self.prefetched.with_label_values(&[result]).inc();
    }
}

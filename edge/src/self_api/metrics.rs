//! The metrics of agents' requests about themselves.

use prometheus::IntCounterVec;
use weir_runtime::metric_families;

metric_families! {
    /// The families of agents' requests about themselves.
    pub(crate) struct SelfMetrics {
        /// Events sent to agents.
        events: IntCounterVec = "weir_edge_agent_events_total"
            { event: ["changed", "assigned", "unassigned", "upstream", "heartbeat", "resync"] };
        /// Event streams to agents that ended. `credential`: it has ended or was denied.
        ended: IntCounterVec = "weir_edge_agent_streams_ended_total"
            { reason: ["reader_gone", "drained", "stalled", "credential", "too_many_services"] };
    }
}

impl SelfMetrics {
    pub(super) fn sent(&self, event: &str) {
        self.events.with_label_values(&[event]).inc();
    }

    pub(super) fn stream_ended(&self, why: &str) {
        self.ended.with_label_values(&[why]).inc();
    }
}

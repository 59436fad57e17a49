//! The metrics of what agents say that they run.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use weir_runtime::metric_families;

metric_families! {
    /// The families of what agents say that they run.
    pub(crate) struct ObservedMetrics {
        /// Messages of agents about what they run. `resync`: one before it is missing, so the agent sends all rows. `no_room`:
        /// `observed_bytes`, or the rows that one agent may have, are used up. `too_many`: agents with one name send more often
        /// than agents do, and the messages were not read.
        messages: IntCounterVec = "weir_edge_agent_observed_messages_total"
            { result: ["accepted", "resync", "no_room", "too_many"] };
        /// Rows that were dropped: about services that the agent may not read.
        pub(crate) dropped_rows: IntCounter = "weir_edge_agent_observed_rows_dropped_total";
        /// Agents that have said what they run. `unheard`: no request came for 90 s; forgotten after a day.
        pub(super) agents: IntGaugeVec = "weir_edge_agents" { state: ["connected", "unheard"] };
        /// Messages to origins about what agents run. `resync`: the origin lacked earlier ones, so everything follows.
        /// `deferred`: it is busy, or has no room. `name_twice`: another edge has the name of this one. `unavailable`: it is older.
        pub(super) sent: IntCounterVec = "weir_edge_observed_messages_total"
            { result: ["accepted", "resync", "deferred", "name_twice", "unavailable", "error"] };
        /// Bytes of these messages.
        pub(super) sent_bytes: IntCounter = "weir_edge_observed_bytes_total";
        /// Rows that origins lack, of all origins together. It returns to 0 within seconds.
        pub(super) behind: IntGauge = "weir_edge_observed_rows_behind";
        /// Origins that another edge tells the same name: give each a `name`, or a certificate of its own. Alert above 0.
        pub(super) name_twice: IntGauge = "weir_edge_name_duplicated";
        /// Names that two agents use at the same time. Alert above 0.
        pub(super) duplicated: IntGauge = "weir_edge_agents_duplicated";
    }
}

impl ObservedMetrics {
    pub(crate) fn received(&self, result: &str) {
        self.messages.with_label_values(&[result]).inc();
    }
}

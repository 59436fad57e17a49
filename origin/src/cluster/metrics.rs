//! Metrics of a member.

use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use weir_runtime::metric_families;

metric_families! {
    /// The families of a member of a cluster. Clones count together.
    pub(crate) struct ClusterMetrics {
        /// Members with living sessions, as this origin sees them and with itself.
        pub(super) members: IntGaugeVec = "weir_origin_cluster_members" { state: ["active", "draining"] };
        /// Members whose configuration file or signing keys are not this origin's. `/status` names them. Above 0, nothing is
        /// retired and nothing is signed again.
        pub(super) differing: IntGauge = "weir_origin_cluster_differing_members";
        /// Repositories that this origin owns.
        pub(super) owned: IntGauge = "weir_origin_cluster_owned_repositories";
        /// Repositories that this origin has taken. `new`: it had no record. `released`: its owner handed it over.
        /// `ended`: the session of its owner had ended. `own`: this origin owned it in an earlier session.
        pub(super) taken: IntCounterVec = "weir_origin_cluster_taken_total" { from: ["new", "released", "ended", "own"] };
        /// Repositories that this origin has handed over.
        pub(super) released: IntCounter = "weir_origin_cluster_released_total";
        /// Claimed repositories that this origin cannot start, because their state cannot be read. The log has the reason.
        pub(super) failed_takes: IntCounter = "weir_origin_cluster_failed_takes_total";
        /// Time from the last renewal of an owner whose session had ended until this origin took the repository.
        pub(super) without_owner: Histogram = "weir_origin_cluster_without_owner_seconds"
            [1.0, 3.0, 10.0, 20.0, 30.0, 40.0, 60.0, 120.0, 300.0, 1200.0];
        /// Writers that found a record of another origin and stopped.
        pub(super) superseded: IntCounter = "weir_origin_cluster_superseded_writers_total";
        /// When the session of this origin ends unless it is renewed, in Unix seconds. 0: it has none, and polls and
        /// publishes nothing.
        pub(super) valid_until: Gauge = "weir_origin_cluster_session_valid_until_timestamp_seconds";
        /// Sessions that ended because they could not be renewed, or because other members had seen them end.
        pub(super) lost_sessions: IntCounter = "weir_origin_cluster_lost_sessions_total";
    }
}

//! What metrics show of rollouts: services are labels, because plans stage few at a time.

use prometheus::IntGaugeVec;
use weir_protocol::name::ServiceName;
use weir_publish::StagedByPlan;
use weir_rollout::Counts;
use weir_runtime::metric_families;

const STATES: [&str; 5] = ["running", "scheduled", "waiting", "paused", "stopped"];
const RESULTS: [&str; 4] = ["done", "pending", "failed", "silent"];

metric_families! {
    /// The families of rollouts.
    pub(crate) struct RolloutMetrics {
        /// 1 for the state of the rollout that stages the service by a plan, on the origin that owns its repository. `scheduled`: it
        /// waits for a window or the end of a freeze. `waiting`: for an agent, an edge or an approval. `stopped`: too many agents
        /// failed, or its deadline has passed.
        rollout: IntGaugeVec = "weir_origin_rollout" { service, state: STATES };
        /// Agents of the stages so far, by what has become of the staged version there. `pending`: they are about to get it.
        /// `silent`: they are not heard.
        agents: IntGaugeVec = "weir_origin_rollout_agents" { service, result: RESULTS };
    }
}

impl RolloutMetrics {
    /// Shows where a rollout stands.
    pub(super) fn show(&self, rollout: &StagedByPlan, counts: &Counts, state: &str) {
        let service = rollout.service.as_str();
        for each in STATES {
            self.rollout.with_label_values(&[service, each]).set(i64::from(each == state));
        }
        let so_far = rollout.state.stage.map(|stage| counts.so_far(stage)).unwrap_or_default();
        let numbers = [so_far.done, so_far.pending(), so_far.failed, so_far.silent];
        for (result, number) in RESULTS.into_iter().zip(numbers) {
            self.agents.with_label_values(&[service, result]).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }

    /// Nothing is staged of a service any more.
    pub(super) fn hide(&self, service: &ServiceName) {
        // A missing series is no error.
        for state in STATES {
            let _ = self.rollout.remove_label_values(&[service.as_str(), state]);
        }
        for result in RESULTS {
            let _ = self.agents.remove_label_values(&[service.as_str(), result]);
        }
    }
}

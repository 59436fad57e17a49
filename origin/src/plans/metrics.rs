//! Metrics of plans.

use prometheus::IntGauge;
use weir_runtime::metric_families;

metric_families! {
    /// The families of plans.
    pub(crate) struct PlanMetrics {
        /// Plans of rollouts that this origin follows, of the configuration file and of operators.
        pub(super) plans: IntGauge = "weir_origin_rollout_plans";
        /// 1 while the record of operators' plans can be read. At 0 the plans that were read last apply; an origin that has read none
        /// since its start publishes nothing new of the services that name one.
        pub(super) readable: IntGauge = "weir_origin_rollout_plans_readable";
    }
}

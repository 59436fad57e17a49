//! Metrics of freezes.

use prometheus::IntGauge;
use weir_runtime::metric_families;

metric_families! {
    /// The families of freezes.
    pub(crate) struct FreezeMetrics {
        /// Freezes in force. Of the services that they match nothing new is published.
        pub(super) freezes: IntGauge = "weir_origin_freezes";
        /// 1 while the record of freezes can be read. At 0 the freezes that were read last apply; an origin that has read none since
        /// its start publishes nothing new.
        pub(super) readable: IntGauge = "weir_origin_freezes_readable";
    }
}

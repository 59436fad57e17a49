//! Gauges that are looked up when somebody looks.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

/// Gauges whose values are looked up when they are collected.
pub(super) struct Observed {
    pub(super) gauges: Vec<Box<dyn Collector>>,
    pub(super) refresh: Box<dyn Fn() + Send + Sync>,
}

impl Collector for Observed {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().flat_map(|gauge| gauge.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        (self.refresh)();
        self.gauges.iter().flat_map(|gauge| gauge.collect()).collect()
    }
}

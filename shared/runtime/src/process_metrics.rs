//! What every program shows of itself: its version, and what its process uses of the machine, under the names that
//! Prometheus' own client libraries use.

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::MetricType;
use prometheus::{IntGaugeVec, Registry};

crate::metric_families! {
    /// The family of the program.
    pub struct BuildMetrics {
        /// Always 1. The label is the version of the program.
        build: IntGaugeVec = "weir_build_info" { version };
    }
}

/// Registers the families.
///
/// # Errors
/// They were registered there before.
pub fn register(registry: &Registry) -> prometheus::Result<()> {
    BuildMetrics::register(registry)?.build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    registry.register(Box::new(ProcessCollector::for_self()))
}

/// The families of the process, which the library defines: name, type and help.
pub fn of_process() -> Vec<(String, &'static str, String)> {
    let kind = |of| if of == MetricType::COUNTER { "counter" } else { "gauge" };
    let families = ProcessCollector::for_self().collect();
    families.iter().map(|each| (each.name().to_owned(), kind(each.get_field_type()), each.help().to_owned())).collect()
}

//! The metrics of every process: its version, and its CPU, memory and file descriptors under the names of Prometheus' own
//! client libraries.

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
/// They are registered already.
pub fn register(registry: &Registry) -> prometheus::Result<()> {
    BuildMetrics::register(registry)?.build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    registry.register(Box::new(ProcessCollector::for_self()))
}

/// The families of the process, which the library defines: name, type and help.
pub fn process_families() -> Vec<(String, &'static str, String)> {
    let kind = |of| if of == MetricType::COUNTER { "counter" } else { "gauge" };
    let families = ProcessCollector::for_self().collect();
    families.iter().map(|each| (each.name().to_owned(), kind(each.get_field_type()), each.help().to_owned())).collect()
}

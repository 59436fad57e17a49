//! What every program shows of itself: which version runs, and what its process takes of the machine, under the names that
//! Prometheus' own client libraries use.

use prometheus::Registry;
use prometheus::process_collector::ProcessCollector;

use super::metric_families::MetricFamilies;

/// Registers the families.
///
/// # Errors
/// They were registered there before.
pub fn register(registry: &Registry) -> prometheus::Result<()> {
    let build = MetricFamilies(registry).gauges(
        "weir_build_info",
        "1, with the version of the program that runs as a label.",
        &["version"],
    )?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    registry.register(Box::new(ProcessCollector::for_self()))
}

//! The metrics of each configured edge, read when they are collected: an edge that a reload removed has none.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Registry};
use weir_runtime::metric_families;

use super::EdgeClient;

metric_families! {
    /// The families of edges.
    pub(crate) struct EdgeMetrics {
        /// 1 for the edge in use, 0 for the others of the configuration.
        preferred: IntGaugeVec = "weir_agent_edge_preferred" { edge };
        /// 1 when the last connection to the edge used HTTP/3, 0 when UDP is blocked. Absent before the first try, and where
        /// HTTP/3 is not used: with `http = "h2"`, and with a proxy.
        http3_usable: IntGaugeVec = "weir_agent_http3_usable" { edge };
    }
}

struct EdgeCollector {
    edges: Arc<EdgeClient>,
    metrics: EdgeMetrics,
}

/// Registers the metrics of the edges.
///
/// # Errors
/// The names are registered already.
pub(crate) fn register(registry: &Registry, edges: Arc<EdgeClient>) -> prometheus::Result<()> {
    registry.register(Box::new(EdgeCollector { edges, metrics: EdgeMetrics::build("")? }))
}

impl Collector for EdgeCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.metrics.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Ok(metrics) = EdgeMetrics::build("") else { return Vec::new() };
        for edge in self.edges.current().overview() {
            let url = edge.url.to_string();
            metrics.preferred.with_label_values(&[&url]).set(edge.preferred.into());
            if let Some(usable) = edge.http3_usable {
                metrics.http3_usable.with_label_values(&[&url]).set(usable.into());
            }
        }
        metrics.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}

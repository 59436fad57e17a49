//! What an origin that has started says of itself.

use std::sync::Arc;
use std::time::SystemTime;

use weir_protocol::name::NodeName;
use weir_runtime::admin::Readiness;

use crate::catalog::Catalog;
use crate::cluster::{self, Cluster};
use crate::starting::Shown;
use crate::{status, summary};

/// For its admin listener: whether it is `ready`, `/status` and `/v1/summary`.
pub(crate) fn shown(
    name: NodeName,
    begun: SystemTime,
    catalog: Arc<Catalog>,
    cluster: Option<Cluster>,
    ready: Box<dyn Fn() -> Readiness + Send + Sync>,
) -> Shown {
    let (summed, in_cluster) = (catalog.clone(), cluster.clone());
    Shown {
        ready,
        status: Box::new(move |readiness| {
            let mut status = status::status(&name, begun, &catalog, readiness);
            if let Some(cluster) = &cluster {
                status["cluster"] = cluster::status(&cluster.view());
            }
            status
        }),
        summary: Box::new(move |head, families| {
            let mut summary = summary::summary(head, &summed.snapshot(), families);
            if let Some(cluster) = &in_cluster {
                let mut status = cluster::status(&cluster.view());
                // Their number: there may be thousands.
                status["owned"] = status["owned"].as_array().map(Vec::len).into();
                summary["cluster"] = status;
            }
            summary
        }),
    }
}

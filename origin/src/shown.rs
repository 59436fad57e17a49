//! What an origin that has started says of itself.

use std::sync::Arc;
use std::time::SystemTime;

use weir_protocol::name::NodeName;
use weir_runtime::admin::Readiness;
use weir_runtime::status_page::StatusPage;

use crate::catalog::Catalog;
use crate::cluster::{self, Cluster};
use crate::starting::Shown;
use crate::{status, status_page, summary};

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
        status: Box::new(move |readiness, query| {
            let page = StatusPage::parse(query).map_err(|error| error.to_string())?;
            let head = status::head(&name, begun, readiness);
            let view = cluster.as_ref().map(Cluster::view);
            Ok(status_page::add(head, &catalog.snapshot(), view.as_deref(), &page))
        }),
        summary: Box::new(move |head, families| {
            let mut summary = summary::summary(head, &summed.snapshot(), families);
            if let Some(cluster) = &in_cluster {
                let view = cluster.view();
                // Their number: there may be thousands.
                summary["cluster"] = cluster::status(&view, &view.owned.size().into());
            }
            summary
        }),
    }
}

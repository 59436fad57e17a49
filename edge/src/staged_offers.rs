//! Offers staged versions that are signed once their upstream gives freshness statements of them: without these an agent
//! with `trust` that takes one would lose its proof.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use weir_protocol::name::ServiceName;
use weir_runtime::shutdown::Drain;

use crate::catalog::{Catalog, RowChange};
use crate::heartbeats::Heartbeats;

/// The time between two requests for statements that an upstream did not give.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Requests the statements of staged versions until the drain.
pub(crate) async fn follow(catalog: Arc<Catalog>, heartbeats: Heartbeats, drain: Drain) {
    tokio::select! {
        () = drain.begun() => {}
        () = offer_all(&catalog, &heartbeats, catalog.row_changes()) => {}
    }
}

async fn offer_all(catalog: &Arc<Catalog>, heartbeats: &Heartbeats, mut changes: Receiver<RowChange>) {
    let mut waiting: BTreeSet<ServiceName> = catalog.unoffered().collect();
    loop {
        for statement in heartbeats.of_staged(&waiting).await {
            catalog.offer_staged(&statement);
        }
        waiting.retain(|service| catalog.is_unoffered(service));
        tokio::select! {
            () = tokio::time::sleep(RETRY_INTERVAL), if !waiting.is_empty() => {}
            service = next(catalog, &mut changes) => {
                let staged = service.map_or_else(|| catalog.unoffered().collect(), |service| BTreeSet::from([service]));
                // The last statements may be from before they were staged.
                staged.iter().for_each(|service| heartbeats.forget(service));
                waiting.extend(staged);
            }
        }
    }
}

/// The next service with a staged version that is not offered. `None`: changes were missed.
async fn next(catalog: &Catalog, changes: &mut Receiver<RowChange>) -> Option<ServiceName> {
    loop {
        match changes.recv().await {
            Ok(RowChange::Service(service)) if catalog.is_unoffered(&service) => return Some(service),
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return None,
            // The catalog is there as long as this.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

//! Tells the workers of composed services when a service that is a part of them has another version: one that this origin has
//! published, or one that it has read of another member.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::select_all;
use tokio::sync::watch;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::name::ServiceName;
use weir_runtime::shutdown::Drain;

use crate::catalog::{Catalog, Snapshot};
use crate::reconcile::PartSources;

/// The versions of the services that are parts.
type Versions = BTreeMap<ServiceName, watch::Receiver<Option<Arc<Descriptor>>>>;

/// Starts to follow the services that are parts, until the drain.
pub(crate) fn start(catalog: Arc<Catalog>, parts: Arc<PartSources>, drain: &Drain) {
    let begun = drain.clone();
    drain.spawn(async move {
        tokio::select! {
            () = begun.begun() => {}
            () = follow(&catalog, &parts) => {}
        }
    });
}

async fn follow(catalog: &Catalog, parts: &PartSources) {
    let (mut snapshots, mut versions) = (catalog.follow(), Versions::new());
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        for changed in update(&mut versions, parts.part_services(), &snapshot) {
            parts.resolve_composed(&changed);
        }
        tokio::select! {
            // The sender ends with the catalog.
            changed = snapshots.changed() => if changed.is_err() { return },
            changed = next(&mut versions) => drop(parts.resolve_composed(&changed)),
        }
    }
}

/// Follows what is defined now. Returns the services that appeared or went.
fn update(versions: &mut Versions, parts: Vec<ServiceName>, snapshot: &Snapshot) -> Vec<ServiceName> {
    let mut before = std::mem::take(versions);
    let mut changed = Vec::new();
    for part in parts {
        let (before, now) = (before.remove(&part), snapshot.services.get(&part).map(|service| service.follow()));
        match (before, now) {
            (Some(before), Some(now)) if before.same_channel(&now) => drop(versions.insert(part, before)),
            (None, None) => {}
            (_, now) => {
                versions.extend(now.map(|now| (part.clone(), now)));
                changed.push(part);
            }
        }
    }
    changed
}

/// Waits until one of the services has another version.
async fn next(versions: &mut Versions) -> ServiceName {
    let changes = versions.iter_mut().map(|(part, version)| {
        Box::pin(async move {
            // It is forgotten when its service goes.
            if version.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            part.clone()
        })
    });
    let changes: Vec<_> = changes.collect();
    if changes.is_empty() { std::future::pending().await } else { select_all(changes).await.0 }
}

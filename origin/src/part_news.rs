//! Tells the workers of composed services when a service that is a part of them has another version: one that this origin has
//! published, or one that it has read of another member.
//!
//! In a cluster the owner of a part notifies the owners of what is composed of it, which read its record again then. Every
//! [`RESOLVE_AGAIN_AFTER`] all parts are resolved again, in a cluster after their records were read: a message may be lost, and
//! what could not be read may be readable now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::watch;
use tokio::time::sleep;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::Publisher;
use weir_runtime::shutdown::Drain;

use crate::catalog::{Catalog, Snapshot};
use crate::cluster::{Cluster, Owner, owner};
use crate::member_client::MemberClient;
use crate::reconcile::PartSources;

/// The versions of the services that are parts.
type Versions = BTreeMap<ServiceName, watch::Receiver<Option<Arc<Descriptor>>>>;

/// How often all parts that are services are resolved again.
const RESOLVE_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// What the owner of a part tells others by.
#[derive(Clone)]
pub(crate) struct Members {
    pub(crate) cluster: Cluster,
    pub(crate) client: Arc<MemberClient>,
    pub(crate) publisher: Arc<Publisher>,
}

/// Starts to follow the services that are parts, until the drain. `members`: of a cluster.
pub(crate) fn start(catalog: Arc<Catalog>, parts: Arc<PartSources>, members: Option<Members>, drain: &Drain) {
    let (begun, of_catalog, of_parts, of_members) = (drain.clone(), catalog.clone(), parts.clone(), members.clone());
    drain.spawn(async move {
        tokio::select! {
            () = begun.begun() => {}
            () = resolve_again(&of_catalog, &of_parts, of_members.as_ref()) => {}
        }
    });
    let begun = drain.clone();
    drain.spawn(async move {
        tokio::select! {
            () = begun.begun() => {}
            () = follow(&catalog, &parts, members.as_ref(), &begun) => {}
        }
    });
}

async fn follow(catalog: &Catalog, parts: &PartSources, members: Option<&Members>, drain: &Drain) {
    let (mut snapshots, mut versions) = (catalog.follow(), Versions::new());
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        for changed in update(&mut versions, parts.part_services(), &snapshot) {
            parts.resolve_composed(&changed);
        }
        tokio::select! {
            // The sender ends with the catalog.
            changed = snapshots.changed() => if changed.is_err() { return },
            changed = next(&mut versions) => {
                let elsewhere = parts.resolve_composed(&changed);
                let of = snapshot.services.get(&changed).map(|service| &service.repository);
                if let (Some(members), Some(of)) = (members, of.filter(|of| snapshot.owns(of))) {
                    members.tell(of, &elsewhere, drain);
                }
            }
        }
    }
}

impl Members {
    /// Has the owners of these repositories read the one of a part again.
    fn tell(&self, of: &RepositoryName, homes: &[RepositoryName], drain: &Drain) {
        let view = self.cluster.view();
        let owners = homes.iter().filter_map(|home| {
            match owner(&view, home, self.publisher.repositories.claim(home).as_ref()) {
                Owner::Other(member) => Some(member.url),
                // The next owner reads the record before it uses it.
                Owner::Me | Owner::Nobody => None,
            }
        });
        for url in owners.collect::<BTreeSet<_>>() {
            let (client, of) = (self.client.clone(), of.clone());
            drain.spawn(async move {
                if let Err(error) = client.changed(&url, &of).await {
                    let after = RESOLVE_AGAIN_AFTER.as_secs();
                    tracing::warn!(member = url, repository = %of, %error, after, "a member was not told of a new part: it reads it later");
                }
            });
        }
    }

    /// Reads the records of these parts that other members own.
    async fn read(&self, parts: &[ServiceName], snapshot: &Snapshot) {
        let homes = parts.iter().filter_map(|part| snapshot.definitions.home_of(part));
        for repository in homes.filter(|home| !snapshot.owns(home)).collect::<BTreeSet<_>>() {
            if let Err(error) = self.publisher.ownership.refresh(&repository, RESOLVE_AGAIN_AFTER / 2).await {
                tracing::warn!(%repository, %error, "the record of a part cannot be read: its last version stays");
            }
        }
    }
}

/// Has the workers of composed services resolve all parts that are services, again and again.
async fn resolve_again(catalog: &Catalog, parts: &PartSources, members: Option<&Members>) {
    loop {
        sleep(RESOLVE_AGAIN_AFTER).await;
        let snapshot = catalog.snapshot();
        let all = parts.part_services_of(|home| snapshot.owns(home));
        if let Some(members) = members {
            members.read(&all, &snapshot).await;
        }
        all.iter().for_each(|part| drop(parts.resolve_composed(part)));
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

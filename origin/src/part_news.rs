//! Tells the workers of composed services when a service that is a part of them has another version. What this origin publishes
//! is in its event log; what it reads of other members, and new definitions, the catalog passes on itself.
//!
//! In a cluster the owner of a part notifies the owners of what is composed of it, which read its record again then. Every
//! [`RESOLVE_AGAIN_AFTER`] all composed services are resolved again: a message may be lost, and what could not be read may be
//! readable now.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::event::{Event, EventKind};
use weir_protocol::name::RepositoryName;
use weir_publish::Publisher;
use weir_runtime::shutdown::Drain;

use crate::cluster::{Cluster, Owner, owner};
use crate::event_log::{EventLog, Read};
use crate::member_client::MemberClient;
use crate::metrics::Metrics;
use crate::reconcile::PartSources;

/// How often all composed services with parts that are services are resolved again.
const RESOLVE_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// What the owner of a part tells others by.
#[derive(Clone)]
pub(crate) struct Members {
    pub(crate) cluster: Cluster,
    pub(crate) client: Arc<MemberClient>,
    pub(crate) publisher: Arc<Publisher>,
}

/// Starts to follow the services that are parts, until the drain. `members`: of a cluster.
pub(crate) fn start(
    log: Arc<EventLog>,
    parts: Arc<PartSources>,
    members: Option<Members>,
    metrics: Metrics,
    drain: &Drain,
) {
    let begun = drain.clone();
    drain.spawn(async move {
        tokio::select! {
            () = begun.begun() => {}
            () = resolve_again(&parts, &metrics) => {}
            () = follow(&log, &parts, members.as_ref(), &begun) => {}
        }
    });
}

async fn follow(log: &EventLog, parts: &PartSources, members: Option<&Members>, drain: &Drain) {
    let (mut newest, mut at) = (log.follow(), log.newest());
    loop {
        match log.read(at) {
            Read::Lines(lines, next) => {
                at = next;
                for published in lines.iter().filter_map(published) {
                    let publication = published.publication();
                    let elsewhere = parts.resolve_composed(&publication.service);
                    if let Some(members) = members {
                        members.tell(&publication.repository, &elsewhere, drain);
                    }
                }
            }
            // The sender ends with the log.
            Read::UpToDate => {
                if newest.changed().await.is_err() {
                    return;
                }
            }
            // Other members read what they have missed again.
            Read::Expired => {
                at = log.newest();
                parts.resolve_all();
            }
        }
    }
}

/// The publication in a line of the event log.
fn published(line: &Bytes) -> Option<Descriptor> {
    match Event::parse(&line.slice(..line.len() - 1)).ok()??.kind {
        EventKind::Descriptor(bytes) => Descriptor::parse(bytes).ok(),
        _ => None,
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
}

/// Has the workers of composed services resolve all parts that are services, again and again.
async fn resolve_again(parts: &PartSources, metrics: &Metrics) {
    loop {
        sleep(RESOLVE_AGAIN_AFTER).await;
        metrics.parts_resolved_again.inc_by(parts.resolve_all() as u64);
    }
}

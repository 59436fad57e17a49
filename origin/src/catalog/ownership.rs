//! What begins and ends with the ownership of a repository of a cluster.

use std::collections::BTreeSet;
use std::time::SystemTime;

use weir_protocol::event::EventKind;
use weir_protocol::name::RepositoryName;
use weir_publish::{Retired, Started};

use super::Snapshot;
use super::reconcile::Reconciler;
use crate::reconcile::Terminated;

/// Starts the worker of a repository that the publisher has taken, and announces its services, current and deleted. The
/// catalog has the state that the publisher has read for it.
pub(super) fn take(at: &mut Reconciler, repository: &RepositoryName) {
    let before = at.catalog.snapshot();
    let mut after = Snapshot::clone(&before);
    let Some(owned) = &mut after.owned else { return };
    // Another origin has published since.
    at.assigned.get(repository).into_iter().flat_map(|of| of.values()).for_each(|service| service.forget_standing());
    owned.insert_mut(repository.clone(), ());
    at.reconcile_workers(&BTreeSet::from([repository.clone()]), &before, &mut after);
    at.mark_not_mirrored(repository, &after);
    let services = || at.assigned.get(repository).into_iter().flatten();
    for (name, service) in services() {
        let document = after.definitions.services.get(name).and_then(|defined| defined.document.refused());
        if let Some(refused) = document {
            service.mark_failed("document", refused.reason.clone(), SystemTime::now());
        }
    }
    let published = &at.context.publisher.repositories;
    let tombstones = published
        .tombstones(repository)
        .into_iter()
        .filter(|(service, _)| !after.services.contains_key(service) && !published.is_published(service));
    let repository_of = |(service, generation)| Retired { repository: repository.clone(), service, generation };
    let tombstones: Vec<Retired> = tombstones.map(repository_of).collect();
    let current: Vec<_> = services().filter_map(|(_, service)| service.current()).collect();
    // A stream that begins now has all of this in its snapshot; earlier ones have it in the log.
    at.catalog.replace(after, &Default::default());
    for descriptor in current {
        at.context.log.append(EventKind::Descriptor(descriptor.bytes().clone()));
    }
    at.announce_retired(tombstones);
}

/// Stops the worker of a repository, withdraws the repository from the publisher, and announces that it is released.
pub(super) fn release(at: &mut Reconciler, repository: &RepositoryName) -> Terminated {
    let before = at.catalog.snapshot();
    let mut after = Snapshot::clone(&before);
    if let Some(owned) = after.owned.as_mut().filter(|owned| owned.contains_key(repository)) {
        owned.remove_mut(repository);
        // Its worker stops, and then nothing of it can be announced.
        at.reconcile_workers(&BTreeSet::from([repository.clone()]), &before, &mut after);
        at.context.publisher.ownership.withdraw(repository);
        for service in at.assigned.get(repository).into_iter().flat_map(|of| of.values()) {
            service.set_aside();
        }
        // No stream may begin with the repository after the event, so it is gone from snapshots first.
        at.catalog.replace(after, &Default::default());
        at.catalog.forget_retired(repository);
        at.context.log.append(EventKind::Released(repository.clone()));
    }
    at.leaving.get(repository).cloned().unwrap_or_else(Terminated::over)
}

/// Shows what has changed by aligning a repository with the definitions and keys of now.
pub(super) fn aligned(at: &Reconciler, repository: &RepositoryName, mut aligned: Started) {
    let retired = std::mem::take(&mut aligned.retired);
    at.show(repository, aligned);
    // Services that moved by the file wait until all members have the same one.
    let followed: Vec<_> = at.followed(repository).map(|service| service.name.clone()).collect();
    let unheld = at.context.publisher.repositories.unheld(repository, &followed);
    let worker = at.catalog.repository(repository).filter(|_| !unheld.is_empty());
    worker.into_iter().for_each(|worker| worker.resolve_all());
    at.announce_retired(retired);
}

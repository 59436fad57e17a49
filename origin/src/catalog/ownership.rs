//! Takes and releases the repositories of a cluster.

use std::collections::BTreeSet;
use std::time::SystemTime;

use tokio::sync::oneshot;
use weir_protocol::event::EventKind;
use weir_protocol::name::{RepositoryName, ServiceName};

use super::Snapshot;
use super::edits::{EditRequest, Editor, Written};
use super::owner::Owner;
use super::storing::Plan;
use crate::publish::{PublishError, Retired, Started};
use crate::reconcile::Terminated;

impl Editor {
    /// Starts the worker of a repository that the publisher has taken, and announces its services, current and deleted.
    /// Returns false if the origin is stopping.
    pub(crate) async fn take(&self, repository: &RepositoryName) -> bool {
        let (done, taken) = oneshot::channel();
        self.requests.send(EditRequest::Take(repository.clone(), done)).await.is_ok() && taken.await.is_ok()
    }

    /// Stops the worker of a repository, withdraws the repository from the publisher, and announces that it is released.
    /// Its mirror and its services stay. When the worker has terminated, `Ownership::release` must follow.
    pub(crate) async fn release(&self, repository: &RepositoryName) -> Option<Terminated> {
        let (done, released) = oneshot::channel();
        self.requests.send(EditRequest::Release(repository.clone(), done)).await.ok()?;
        released.await.ok()
    }

    /// Brings an owned repository in line with the definitions and keys of now: see `Ownership::align`.
    pub(crate) async fn align(&self, repository: &RepositoryName) -> Result<(), PublishError> {
        let (done, aligned) = oneshot::channel();
        let sent = self.requests.send(EditRequest::Align(repository.clone(), done)).await;
        sent.map_err(|_| PublishError::ShuttingDown)?;
        aligned.await.unwrap_or(Err(PublishError::ShuttingDown))
    }
}

impl Owner {
    pub(super) async fn take(&mut self, repository: &RepositoryName) {
        // The state that the publisher has read for it.
        self.apply_reloads().await;
        let before = self.catalog.snapshot();
        let mut after = Snapshot::clone(&before);
        let Some(owned) = &mut after.owned else { return };
        owned.insert_mut(repository.clone(), ());
        self.reconcile_workers(&BTreeSet::from([repository.clone()]), &before, &mut after);
        self.mark_not_mirrored(repository, &after);
        let services = || self.assigned.get(repository).into_iter().flatten();
        for (name, service) in services() {
            let document = after.definitions.services.get(name).and_then(|defined| defined.document.refused());
            if let Some(refused) = document {
                service.mark_failed("document", refused.reason.clone(), SystemTime::now());
            }
        }
        let publisher = &self.context.publisher;
        let tombstones = publisher.repositories.tombstones(repository).into_iter().filter(|(service, _)| {
            !after.services.contains_key(service) && !publisher.repositories.is_published(service)
        });
        let repository_of = |(service, generation)| Retired { repository: repository.clone(), service, generation };
        let tombstones: Vec<Retired> = tombstones.map(repository_of).collect();
        let current: Vec<_> = services().filter_map(|(_, service)| service.current()).collect();
        // A stream that begins now has all of this in its snapshot; earlier ones have it in the log.
        self.catalog.replace(after, &Default::default());
        for descriptor in current {
            self.context.log.append(EventKind::Descriptor(descriptor.bytes().clone()));
        }
        self.announce_retired(tombstones);
        let outdated = self.context.publisher.repositories.outdated(repository).into_iter();
        self.cleanups.extend(outdated.map(|service| Plan::removal(repository.clone(), service)));
    }

    pub(super) async fn release(&mut self, repository: &RepositoryName) -> Terminated {
        let before = self.catalog.snapshot();
        let mut after = Snapshot::clone(&before);
        if let Some(owned) = after.owned.as_mut().filter(|owned| owned.contains_key(repository)) {
            owned.remove_mut(repository);
            // Its worker stops, and then nothing of it can be announced.
            self.reconcile_workers(&BTreeSet::from([repository.clone()]), &before, &mut after);
            self.context.publisher.ownership.withdraw(repository);
            for service in self.assigned.get(repository).into_iter().flat_map(|of| of.values()) {
                service.set_aside();
            }
            // No stream may begin with the repository after the event, so it is gone from snapshots first.
            self.catalog.replace(after, &Default::default());
            self.catalog.forget_retired(repository);
            self.context.log.append(EventKind::Released(repository.clone()));
        }
        self.leaving.get(repository).cloned().unwrap_or_else(Terminated::over)
    }

    pub(super) async fn align(&mut self, repository: RepositoryName, done: oneshot::Sender<Result<(), PublishError>>) {
        // While a reload is not applied, a service may be defined in it.
        self.apply_reloads().await;
        if let Some(first) = self.writing(Some(&repository), &[]) {
            return first.waiting.push(EditRequest::Align(repository, done));
        }
        let definitions = self.catalog.snapshot().definitions.clone();
        let publisher = self.context.publisher.clone();
        self.beside(&repository.clone(), Vec::new(), false, async move {
            let is_configured = |service: &ServiceName| definitions.services.contains_key(service);
            let aligned = publisher.ownership.align(&repository, &is_configured, SystemTime::now()).await;
            Written::Align(repository, aligned, done)
        });
    }

    pub(super) fn aligned(&mut self, repository: &RepositoryName, mut aligned: Started) {
        let retired = std::mem::take(&mut aligned.retired);
        self.show(repository, aligned);
        // Services that moved by the file wait until all members have the same one.
        let followed: Vec<_> = self.followed(repository).map(|service| service.name.clone()).collect();
        let unheld = self.context.publisher.repositories.unheld(repository, &followed);
        let worker = self.catalog.repository(repository).filter(|_| !unheld.is_empty());
        worker.into_iter().for_each(|worker| worker.resolve_all());
        self.announce_retired(retired);
    }
}

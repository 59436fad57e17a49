//! Suspended repositories: their record or pages are damaged or unread, and nothing new is published until they are
//! read, or until an operator confirms the rest.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;
use weir_protocol::name::{RepositoryName, ServiceName};

use super::error::PublishError;
use super::known::Suspension;
use super::open::Started;
use super::publisher::Publisher;
use super::stored_definitions::{Definitions, StoredDefinitions};
use super::writer::{Repository, Request};

/// A repository that was reloaded, with the number of reloads so far.
pub(crate) struct Reload {
    repository: Arc<Repository>,
    number: u64,
}

/// What the catalog has to take over from a reloaded repository.
pub(crate) struct Reloaded {
    /// The documents of operators that were read, and that of the repository.
    pub(crate) stored: StoredDefinitions,
    /// Services that were read, and have no document of operators here.
    pub(crate) undefined: Vec<ServiceName>,
    /// The current versions of all services that were read.
    pub(crate) published: Started,
}

impl Reload {
    pub(crate) fn name(&self) -> &RepositoryName {
        &self.repository.name
    }
}

impl Publisher {
    /// The suspended repositories.
    pub(crate) fn suspended(&self) -> BTreeMap<RepositoryName, Suspension> {
        let handles = self.handles().into_iter();
        handles.filter_map(|(name, handle)| Some((name, handle.repository.suspension()?))).collect()
    }

    /// Whether the catalog may lack definitions: a repository is suspended, was reloaded just now, or has lost its
    /// record.
    pub(crate) fn may_have_unknown_definitions(&self) -> bool {
        let repositories = self.repositories.read().unwrap_or_else(PoisonError::into_inner);
        let unknown = repositories.values().any(|handle| handle.repository.may_have_unknown_definitions());
        drop(repositories);
        unknown || self.without_record() > 0
    }

    /// Whether operators ever defined anything, even if it was deleted since.
    pub(crate) fn operators_have_defined(&self) -> bool {
        let repositories = self.repositories.read().unwrap_or_else(PoisonError::into_inner);
        repositories.values().any(|handle| handle.repository.known().record.operators_have_defined)
    }

    /// How many repositories have objects but still no record.
    pub(crate) fn without_record(&self) -> usize {
        let has_none = |name: &&RepositoryName| {
            self.existing(name).is_none_or(|handle| handle.repository.known().version.is_none())
        };
        self.without_record.iter().filter(has_none).count()
    }

    /// Waits until a repository is reloaded.
    pub(crate) async fn wait_for_reload(&self) {
        self.shared.reloaded.notified().await;
    }

    /// The reloaded repositories that the catalog has not [applied](Publisher::mark_applied).
    pub(crate) fn unapplied_reloads(&self) -> Vec<Reload> {
        let names = self.shared.unapplied.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let due = names.iter().filter_map(|name| self.repository(name)).filter_map(|repository| {
            let number = repository.reloads.load(Ordering::SeqCst);
            let is_due = number != repository.applied_reloads.load(Ordering::SeqCst) && !repository.is_unread();
            is_due.then_some(Reload { repository, number })
        });
        due.collect()
    }

    /// What has changed in a reloaded repository since the last call.
    pub(crate) fn reloaded(&self, Reload { repository, .. }: &Reload) -> Reloaded {
        let mut read = repository.take_unapplied();
        let defined =
            read.iter().filter_map(|(service, definition)| Some((service.clone(), definition.as_ref()?.written_at)));
        for outdated in self.outdated_of(&defined.collect()) {
            read.insert(outdated, None);
        }
        let (mut definitions, mut published) = (Definitions::default(), Started::default());
        published.add(repository, |service| read.contains_key(service));
        let undefined = read.iter().filter(|(_, definition)| definition.is_none());
        let undefined = undefined.map(|(service, _)| service.clone()).collect();
        let of_services = read.into_iter().filter_map(|(service, definition)| Some((service, definition?)));
        definitions.add(&repository.name, repository.known().record.definition.clone(), of_services.collect());
        Reloaded { stored: definitions.stored, undefined, published }
    }

    /// The services whose document of operators in this repository is older than that in another one: they have moved.
    pub(crate) fn outdated(&self, repository: &RepositoryName) -> Vec<ServiceName> {
        let Some(handle) = self.existing(repository) else { return Vec::new() };
        let known = handle.repository.known();
        let written = known.services.iter().filter_map(|(service, known)| Some((service.clone(), known.defined_at?)));
        let written = written.collect();
        drop(known);
        self.outdated_of(&written)
    }

    /// Those of these services, with the times of their documents, that have a newer document in another repository.
    fn outdated_of(&self, written: &BTreeMap<ServiceName, u64>) -> Vec<ServiceName> {
        let is_newer =
            |service: &ServiceName, at: u64| self.shared.homes.newest(service).is_some_and(|newest| newest > at);
        written.iter().filter(|(name, at)| is_newer(name, **at)).map(|(name, _)| name.clone()).collect()
    }

    /// Whether the catalog has applied all reloads of a repository.
    pub(crate) fn is_applied(&self, repository: &RepositoryName) -> bool {
        self.existing(repository).is_none_or(|handle| {
            let Repository { reloads, applied_reloads, .. } = &*handle.repository;
            reloads.load(Ordering::SeqCst) == applied_reloads.load(Ordering::SeqCst)
        })
    }

    /// Called when the catalog has applied the definitions of a reload.
    pub(crate) fn mark_applied(&self, Reload { repository, number }: &Reload) {
        repository.applied_reloads.store(*number, Ordering::SeqCst);
        let mut unapplied = self.shared.unapplied.lock().unwrap_or_else(PoisonError::into_inner);
        if repository.reloads.load(Ordering::SeqCst) == *number {
            unapplied.remove(&repository.name);
        }
    }

    /// Why a repository is suspended.
    pub(crate) fn suspension(&self, repository: &RepositoryName) -> Option<Suspension> {
        self.existing(repository)?.repository.suspension()
    }

    /// An operator accepts the readable state of a repository, and publishing goes on from there. Returns false if
    /// the repository was not suspended.
    ///
    /// # Errors
    /// The stored state is not the one that is served, or cannot be read or written.
    pub(crate) async fn confirm(&self, repository: &RepositoryName) -> Result<bool, PublishError> {
        let Some(handle) = self.handles().remove(repository) else { return Ok(false) };
        let (done, answer) = oneshot::channel();
        handle.requests.send(Request::Confirm(done)).await.map_err(|_| PublishError::ShuttingDown)?;
        answer.await.map_err(|_| PublishError::ShuttingDown)?
    }
}

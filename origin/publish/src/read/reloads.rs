//! Repositories that were read again: what the catalog has to take over from them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use weir_protocol::name::{RepositoryName, ServiceName};

use crate::stored::known::Started;
use crate::stored::stored_definitions::{Definitions, StoredDefinitions};
use crate::write::repositories::Repositories;
use crate::write::repository::Repository;

/// The reloads of repositories, until the catalog has applied them.
pub struct Reloads {
    pub(crate) repositories: Arc<Repositories>,
}

/// A repository that was reloaded, with the number of reloads so far.
pub struct Reload {
    repository: Arc<Repository>,
    number: u64,
}

/// What the catalog has to take over from a reloaded repository.
pub struct Reloaded {
    /// The documents of operators that were read, and that of the repository.
    pub stored: StoredDefinitions,
    /// Services that were read, and have no document of operators here.
    pub undefined: Vec<ServiceName>,
    /// The current versions of all services that were read.
    pub published: Started,
}

impl Reload {
    /// Of the repository.
    pub fn name(&self) -> &RepositoryName {
        &self.repository.name
    }
}

impl Reloads {
    /// Waits until a repository is reloaded.
    pub async fn wait(&self) {
        self.repositories.shared.reloaded.notified().await;
    }

    /// The reloaded repositories that the catalog has not [applied](Reloads::mark_applied).
    pub fn unapplied(&self) -> Vec<Reload> {
        let names = self.repositories.shared.unapplied.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let due = names.iter().filter_map(|name| self.repositories.repository(name)).filter_map(|repository| {
            let number = repository.reloads.load(Ordering::SeqCst);
            let is_due = number != repository.applied_reloads.load(Ordering::SeqCst) && !repository.is_unread();
            is_due.then_some(Reload { repository, number })
        });
        due.collect()
    }

    /// What has changed in a reloaded repository since the last call.
    pub fn read(&self, Reload { repository, .. }: &Reload) -> Reloaded {
        let mut read = repository.take_unapplied();
        let defined =
            read.iter().filter_map(|(service, definition)| Some((service.clone(), definition.as_ref()?.written_at)));
        for outdated in self.repositories.outdated_of(&defined.collect()) {
            read.insert(outdated, None);
        }
        let (mut definitions, mut published) = (Definitions::default(), Started::default());
        published.add(&repository.known(), |service| read.contains_key(service));
        let undefined = read.iter().filter(|(_, definition)| definition.is_none());
        let undefined = undefined.map(|(service, _)| service.clone()).collect();
        let of_services = read.into_iter().filter_map(|(service, definition)| Some((service, definition?)));
        definitions.add(&repository.name, repository.known().record.definition.clone(), of_services.collect());
        Reloaded { stored: definitions.stored, undefined, published }
    }

    /// Called when the catalog has applied the definitions of a reload.
    pub fn mark_applied(&self, Reload { repository, number }: &Reload) {
        repository.applied_reloads.store(*number, Ordering::SeqCst);
        let mut unapplied = self.repositories.shared.unapplied.lock().unwrap_or_else(PoisonError::into_inner);
        if repository.reloads.load(Ordering::SeqCst) == *number {
            unapplied.remove(&repository.name);
        }
    }
}

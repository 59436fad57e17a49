//! The catalog: the repositories and services that the origin serves. It changes at run time; each reader sees one
//! consistent snapshot. Begin at [`Catalog`].
//!
//! `owner` is the only task that changes it: it makes `edits` durable, starts and stops workers (`reconcile`), and takes
//! and releases repositories of a cluster (`ownership`). Each of these files uses only those before it: `reconcile`,
//! `ownership`, `edits`, `owner`.
//! `definitions` merges the file and the operators, `edit` decides whether an edit is allowed, `permitted` what
//! operators may name, and `raw_document` which stored documents are invalid by today's rules.

mod collector;
mod definitions;
mod edit;
mod edits;
mod owner;
mod ownership;
mod permitted;
mod raw_document;
mod reconcile;
mod storing;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use tokio::sync::watch;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::Retired;
use weir_source::Service;

use crate::reconcile::Handle;

pub(crate) use collector::{CatalogCollector, CatalogMetrics};
pub(crate) use definitions::{Defined, Definitions, Documents, version};
pub(crate) use edit::{Edit, Matches, Outcome, Precondition, Refusal, changeable};
pub(crate) use edits::{AppliedEdit, EditError, Editor};
pub(crate) use owner::{Dependencies, begin};
pub(crate) use permitted::permitted;
#[cfg(feature = "fuzzing")]
pub use raw_document::fuzz_document;
pub(crate) use raw_document::{LONGEST_REASON, RawDocument, Refused};

/// Retired services that a new event stream announces; older ones are only answered on request.
const MAX_RETIRED: usize = 10_000;

/// A sorted map whose clones share their common parts, so that a change copies little.
pub(crate) type Map<K, V> = rpds::RedBlackTreeMapSync<K, V>;

#[derive(Default)]
pub(crate) struct Catalog {
    current: watch::Sender<Arc<Snapshot>>,
    retired: Mutex<VecDeque<Retired>>,
    /// Stays true once it was true: an addition at run time does not make the origin unready.
    was_ready: AtomicBool,
}

/// The catalog at one moment.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) definitions: Definitions,
    /// The workers of the mirrored repositories.
    pub(crate) workers: Map<RepositoryName, Handle>,
    /// Repositories without a worker.
    pub(crate) not_mirrored: Map<RepositoryName, NotMirrored>,
    /// The repositories that this origin owns; the services of others are views. `None`: it is the only origin.
    pub(crate) owned: Option<Map<RepositoryName, ()>>,
    pub(crate) services: Map<ServiceName, Arc<Service>>,
}

/// Why a repository has no worker: its document is invalid, or names something that is not permitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotMirrored {
    pub(crate) since: SystemTime,
    /// For operators.
    pub(crate) reason: String,
}

impl Catalog {
    /// `retired`: services that this start retired.
    pub(crate) fn new(snapshot: Snapshot, retired: Vec<Retired>) -> Self {
        Self { current: watch::Sender::new(Arc::new(snapshot)), retired: Mutex::new(retired.into()), ..Self::default() }
    }

    /// The current state.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.borrow().clone()
    }

    /// The state, as it changes.
    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.current.subscribe()
    }

    /// The worker of a repository.
    pub(crate) fn repository(&self, name: &RepositoryName) -> Option<Handle> {
        self.snapshot().workers.get(name).cloned()
    }

    pub(crate) fn service(&self, name: &ServiceName) -> Option<Arc<Service>> {
        self.snapshot().services.get(name).cloned()
    }

    /// The deleted services of owned repositories that new event streams announce.
    pub(crate) fn retired(&self) -> Vec<Retired> {
        self.lock_retired().iter().cloned().collect()
    }

    /// Ready once every service is published, or its repository was polled once or takes long. Returns the reason if not. It
    /// stays ready: additions at run time do not affect the rest.
    pub(crate) fn ready(&self) -> Result<(), String> {
        if self.was_ready.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ready = self.snapshot().ready(Instant::now());
        self.was_ready.store(ready.is_ok(), Ordering::Relaxed);
        ready
    }

    /// Replaces the snapshot. `created`: services that did not exist before.
    fn replace(&self, snapshot: Snapshot, created: &HashSet<ServiceName>) {
        if !created.is_empty() {
            // A service that exists again is not announced as deleted.
            self.lock_retired().retain(|retired| !created.contains(&retired.service));
        }
        self.current.send_replace(Arc::new(snapshot));
    }

    /// Remembers deleted services.
    fn retire(&self, gone: &[Retired]) {
        let names: HashSet<&ServiceName> = gone.iter().map(|gone| &gone.service).collect();
        let mut retired = self.lock_retired();
        retired.retain(|known| !names.contains(&known.service));
        retired.extend(gone.iter().cloned());
        while retired.len() > MAX_RETIRED {
            retired.pop_front();
        }
    }

    /// Forgets the deleted services of a repository that another origin announces.
    fn forget_retired(&self, repository: &RepositoryName) {
        self.lock_retired().retain(|retired| retired.repository != *repository);
    }

    fn lock_retired(&self) -> MutexGuard<'_, VecDeque<Retired>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshot {
    /// Whether this origin owns a repository.
    pub(crate) fn owns(&self, repository: &RepositoryName) -> bool {
        self.owned.as_ref().is_none_or(|owned| owned.contains_key(repository))
    }

    fn ready(&self, now: Instant) -> Result<(), String> {
        let waiting = self.services.values().find(|service| {
            service.current().is_none()
                && self.workers.get(&service.repository).is_some_and(|worker| worker.state().delays_readiness(now))
        });
        match waiting {
            None => Ok(()),
            Some(service) => Err(format!(
                "service `{}` is not published yet and repository `{}` has not finished its first poll",
                service.name, service.repository
            )),
        }
    }
}

//! The catalog: the repositories and services that the origin serves. It changes at run time; each reader sees one
//! consistent snapshot. Begin at [`Catalog`].
//!
//! `owner` is the only task that changes it: it makes `edits` durable and starts and stops workers (`reconcile`).
//! `definitions` merges the file and the operators, `edit` decides whether an edit is allowed, `permitted` what
//! operators may name, and `raw_document` which stored documents are invalid by today's rules.

mod collector;
mod definitions;
mod edit;
mod edits;
mod owner;
mod permitted;
mod raw_document;
mod reconcile;
mod storing;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

use weir_protocol::descriptor::Generation;
use weir_protocol::name::{RepositoryName, ServiceName};

use crate::reconcile::{Handle, Health};
use crate::service::Service;

pub(crate) use collector::{CatalogCollector, CatalogMetrics};
pub(crate) use definitions::{Defined, Definitions, Documents, version};
pub(crate) use edit::{Edit, Matches, Outcome, Precondition, Refusal};
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
    current: RwLock<Arc<Snapshot>>,
    retired: Mutex<VecDeque<(ServiceName, Generation)>>,
    /// Stays true once it was true: an addition at run time does not make the origin unready.
    was_ready: AtomicBool,
}

/// The catalog at one moment.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) definitions: Definitions,
    /// Whether operators ever defined anything, even if it was deleted since.
    pub(crate) operators_have_defined: bool,
    /// The workers of the mirrored repositories.
    pub(crate) workers: Map<RepositoryName, Handle>,
    /// Repositories without a worker.
    pub(crate) not_mirrored: Map<RepositoryName, NotMirrored>,
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
    /// `retired`: services that this start retired, with their last generation.
    pub(crate) fn new(snapshot: Snapshot, retired: Vec<(ServiceName, Generation)>) -> Self {
        Self { current: RwLock::new(Arc::new(snapshot)), retired: Mutex::new(retired.into()), ..Self::default() }
    }

    /// The current state.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The worker of a repository.
    pub(crate) fn repository(&self, name: &RepositoryName) -> Option<Handle> {
        self.snapshot().workers.get(name).cloned()
    }

    pub(crate) fn service(&self, name: &ServiceName) -> Option<Arc<Service>> {
        self.snapshot().services.get(name).cloned()
    }

    /// Services that were retired since the start, with their last generation.
    pub(crate) fn retired(&self) -> Vec<(ServiceName, Generation)> {
        self.lock_retired().iter().cloned().collect()
    }

    /// Ready once every service is published, or its repository was polled once. Returns the reason if not. It stays
    /// ready: additions at run time do not affect the rest.
    pub(crate) fn ready(&self) -> Result<(), String> {
        if self.was_ready.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ready = self.snapshot().ready();
        self.was_ready.store(ready.is_ok(), Ordering::Relaxed);
        ready
    }

    /// Replaces the snapshot. `created`: services that did not exist before.
    fn replace(&self, snapshot: Snapshot, created: &HashSet<ServiceName>) {
        if !created.is_empty() {
            // A service that exists again is not announced as deleted.
            self.lock_retired().retain(|(service, _)| !created.contains(service));
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }

    /// Remembers deleted services with their last generation.
    fn retire(&self, gone: &HashMap<ServiceName, Generation>) {
        let mut retired = self.lock_retired();
        retired.retain(|(known, _)| !gone.contains_key(known));
        retired.extend(gone.iter().map(|(service, generation)| (service.clone(), *generation)));
        while retired.len() > MAX_RETIRED {
            retired.pop_front();
        }
    }

    fn lock_retired(&self) -> MutexGuard<'_, VecDeque<(ServiceName, Generation)>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshot {
    fn ready(&self) -> Result<(), String> {
        let waiting = self.services.values().find(|service| {
            service.current().is_none()
                && self.workers.get(&service.repository).is_some_and(|worker| {
                    let state = worker.state();
                    state.applied_polls == 0 && !matches!(state.health, Health::Unhealthy { .. })
                })
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

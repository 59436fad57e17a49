//! What the origin serves at this moment. It changes at run time; each reader sees one consistent snapshot.
//!
//! `definitions` says what is wanted and by whom, `edit` decides whether a change may be, `permitted` what operators may
//! name, `raw_document` which stored documents the rules refuse by now. `owner` alone changes anything: it makes
//! `edits` durable, and brings agents and services to them (`reconcile`).

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
pub(crate) use definitions::{Defined, DefinedBy, Definitions, Documents, version};
pub(crate) use edit::{Edit, Matches, Outcome, Precondition, Refusal};
pub(crate) use edits::{AppliedEdit, EditError, Editor};
pub(crate) use owner::{Dependencies, begin};
pub(crate) use permitted::permitted;
#[cfg(feature = "fuzzing")]
pub use raw_document::fuzz_document;
pub(crate) use raw_document::{LONGEST_REASON, RawDocument, Refused};

/// Retired services that are told to readers who begin anew, at the most; older ones are asked about.
const MAX_RETIRED: usize = 10_000;

/// A map in the order of its keys whose clones share what they have in common: a change costs no copy of the others.
pub(crate) type Map<K, V> = rpds::RedBlackTreeMapSync<K, V>;

/// Repositories and services by their names, as they are now.
#[derive(Default)]
pub(crate) struct Catalog {
    current: RwLock<Arc<Snapshot>>,
    retired: Mutex<VecDeque<(ServiceName, Generation)>>,
    /// Once it was, what is added at run time does not change that.
    was_ready: AtomicBool,
}

/// The catalogue at one moment.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    /// What is defined.
    pub(crate) definitions: Definitions,
    /// Whether operators ever defined anything, also what was deleted since.
    pub(crate) operators_have_defined: bool,
    /// The agents of the repositories that are mirrored.
    pub(crate) agents: Map<RepositoryName, Handle>,
    /// The others.
    pub(crate) not_mirrored: Map<RepositoryName, NotMirrored>,
    /// The services.
    pub(crate) services: Map<ServiceName, Arc<Service>>,
}

/// A repository that has no agent: its document is refused, or names what it may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotMirrored {
    /// Since when.
    pub(crate) since: SystemTime,
    /// Why, in plain words.
    pub(crate) reason: String,
}

impl Catalog {
    /// A catalogue that begins like this. `retired`: the services that are not configured any more since this start.
    pub(crate) fn new(snapshot: Snapshot, retired: Vec<(ServiceName, Generation)>) -> Self {
        Self { current: RwLock::new(Arc::new(snapshot)), retired: Mutex::new(retired.into()), ..Self::default() }
    }

    /// All of it, at one moment.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A repository's agent.
    pub(crate) fn repository(&self, name: &RepositoryName) -> Option<Handle> {
        self.snapshot().agents.get(name).cloned()
    }

    /// A service.
    pub(crate) fn service(&self, name: &ServiceName) -> Option<Arc<Service>> {
        self.snapshot().services.get(name).cloned()
    }

    /// The services that went since this start, each with its last generation.
    pub(crate) fn retired(&self) -> Vec<(ServiceName, Generation)> {
        self.lock_retired().iter().cloned().collect()
    }

    /// Ready: every service is published, or its repository was tried. The reason when not. Once it was ready it stays so:
    /// what operators add at run time takes nothing from what is served.
    pub(crate) fn ready(&self) -> Result<(), String> {
        if self.was_ready.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ready = self.snapshot().ready();
        self.was_ready.store(ready.is_ok(), Ordering::Relaxed);
        ready
    }

    /// Replaces all of it at once. `created`: the services that were not there before.
    fn replace(&self, snapshot: Snapshot, created: &HashSet<ServiceName>) {
        if !created.is_empty() {
            // One that is there again is not told of as gone.
            self.lock_retired().retain(|(service, _)| !created.contains(service));
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }

    /// Services have gone, each with its last generation.
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
                && self.agents.get(&service.repository).is_some_and(|agent| {
                    let state = agent.state();
                    state.attempts == 0 && !matches!(state.health, Health::Unhealthy { .. })
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

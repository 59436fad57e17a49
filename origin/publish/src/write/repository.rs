//! The state that requests and writers share: that of one repository, and what all of them have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use weir_protocol::event::EventKind;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_store::{Objects, Records};
use weir_upstream::DataDir;

use super::delta_queue::DeltaQueue;
use super::homes::Homes;
use super::protection::Protected;
use super::validity::Validity;
use crate::decide::draft::Rules;
use crate::error::PublishError;
use crate::metrics::PublishMetrics;
use crate::stored::known::{Known, SuspendedUntil, Suspension};
use crate::stored::row::Definition;

/// Tells edges of an event.
pub type Announce = Arc<dyn Fn(EventKind) + Send + Sync>;

/// Tells whether all members know blobs.
pub type MayStoreBlobs = Arc<dyn Fn() -> bool + Send + Sync>;

/// What the writers of all repositories share.
pub(crate) struct Shared {
    pub(crate) objects: Objects,
    pub(crate) records: Records,
    pub(crate) rules: Rules,
    pub(crate) grace_period: Duration,
    /// Tells edges of a change that became visible. Those of one service come in their order.
    pub(crate) announce: Announce,
    pub(crate) metrics: PublishMetrics,
    /// The services with a new publication, for which deltas are to be made.
    pub(crate) delta_queue: DeltaQueue,
    /// Notified after each reload of a repository.
    pub(crate) reloaded: Notify,
    pub(crate) homes: Homes,
    /// The repositories whose last reload the catalog has not applied.
    pub(crate) unapplied: Mutex<BTreeSet<RepositoryName>>,
    /// Until when this origin may act for what it owns.
    pub(crate) validity: Validity,
    /// Receives the repositories whose record another origin wrote. `None`: this is the only origin, and owns everything.
    pub(crate) superseded: Option<mpsc::UnboundedSender<RepositoryName>>,
    /// See [`Options::may_store_blobs`](crate::open::Options::may_store_blobs).
    pub(crate) may_store_blobs: Option<MayStoreBlobs>,
    /// The lock of the data directory.
    pub(crate) _data_dir: DataDir,
}

/// The state of a repository that requests and its writer share.
pub(crate) struct Repository {
    pub(crate) name: RepositoryName,
    known: RwLock<Known>,
    pub(crate) protected: Arc<Protected>,
    /// Locked from before changes are applied until they are visible.
    pub(crate) committing: tokio::sync::Mutex<()>,
    /// The record was written since the last garbage collection.
    pub(crate) is_dirty: AtomicBool,
    /// Counts reloads of the stored state.
    pub(crate) reloads: AtomicU64,
    /// The last of these reloads whose definitions the catalog has applied.
    pub(crate) applied_reloads: AtomicU64,
    /// The services that were read again since then, with the documents of operators.
    pub(crate) unapplied: Mutex<BTreeMap<ServiceName, Option<Definition>>>,
    /// Whether this origin owns the repository. Locked while a change is announced: none is announced afterwards.
    taken: Mutex<bool>,
    /// Counts the services that moved away, so that what was found out about a service before is not relied on after.
    pub(crate) withdrawals: AtomicU64,
    /// Locked while unreferenced objects are deleted.
    pub(crate) deleting: tokio::sync::Mutex<()>,
    /// The last read of a repository that this origin does not own. Locked during the next one.
    pub(crate) last_read: tokio::sync::Mutex<LastRead>,
}

/// The last read of a repository that this origin does not own.
#[derive(Debug, Default)]
pub(crate) struct LastRead {
    /// When the last successful one began.
    pub(crate) begun: Option<Instant>,
    /// When the last one failed, and why.
    pub(crate) failed: Option<(Instant, PublishError)>,
}

impl Repository {
    pub(crate) fn new(name: RepositoryName, known: Known, is_taken: bool) -> Self {
        Self {
            name,
            known: RwLock::new(known),
            protected: Arc::default(),
            committing: tokio::sync::Mutex::default(),
            is_dirty: AtomicBool::new(true),
            reloads: AtomicU64::new(0),
            applied_reloads: AtomicU64::new(0),
            unapplied: Mutex::default(),
            taken: Mutex::new(is_taken),
            withdrawals: AtomicU64::new(0),
            deleting: tokio::sync::Mutex::default(),
            last_read: tokio::sync::Mutex::default(),
        }
    }

    /// Whether this origin owns the repository, as long as the guard lives.
    pub(crate) fn taken(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_taken(&self) -> bool {
        *self.taken()
    }

    /// The services that were read again since the last call, with the documents of operators.
    pub(crate) fn take_unapplied(&self) -> BTreeMap<ServiceName, Option<Definition>> {
        std::mem::take(&mut *self.unapplied.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The durable state.
    pub(crate) fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// For its writer alone.
    pub(crate) fn change_known(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn suspension(&self) -> Option<Suspension> {
        self.known().suspension.clone()
    }

    /// Whether the repository is suspended because the store did not answer.
    pub(crate) fn is_unread(&self) -> bool {
        self.known().suspension.as_ref().is_some_and(|suspension| suspension.until == SuspendedUntil::Read)
    }

    /// Whether the catalog may lack definitions of this repository.
    pub(crate) fn may_have_unknown_definitions(&self) -> bool {
        // Read in this order: a reload is counted before its suspension ends.
        let is_suspended = self.known().suspension.is_some();
        is_suspended || self.reloads.load(Ordering::SeqCst) != self.applied_reloads.load(Ordering::SeqCst)
    }
}

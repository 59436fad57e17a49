//! The changes of the catalog, for the event streams of other edges and of agents.
//!
//! They are sent in the order in which they take effect, so a heartbeat comes after all changes that precede it. Agents get
//! only what changes their rows: no heartbeats, and nothing for a snapshot that finds what was there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::broadcast;
use weir_cache::clock::Moment;
use weir_protocol::event::{RevisionSeen, Upstream};
use weir_protocol::name::{RepositoryName, ServiceName};

/// The most changes that a slow stream may be behind. Further ones end it, or make its agent poll.
const MAX_BEHIND: usize = 8192;

/// A change of the catalog.
#[derive(Debug, Clone)]
pub(crate) enum CatalogChange {
    /// The entry of a service was replaced.
    Service(ServiceName),
    /// An origin released a repository. Its heartbeats do not vouch for the services any longer.
    Released(RepositoryName),
    /// An origin announced a revision.
    Revision(Arc<RevisionSeen>),
    /// An origin sent a heartbeat.
    Heartbeat(OldestHeartbeat),
    /// An entry that was current may not be so any longer. Those who were told must ask again.
    Suspect,
}

/// A change of what agents are told.
#[derive(Debug, Clone)]
pub(crate) enum RowChange {
    /// The row of a service.
    Service(ServiceName),
    /// Whether the upstream of a repository can be reached.
    Upstream(RepositoryName, Upstream),
}

/// Of the last heartbeats of all origins, the oldest: they vouch for the whole catalog as of then.
#[derive(Debug, Clone)]
pub(crate) struct OldestHeartbeat {
    /// The name of its origin.
    pub(crate) origin: String,
    pub(crate) at: Moment,
}

/// The senders of changes. Nothing is stored while nobody listens.
#[derive(Debug)]
pub(super) struct Changes {
    all: broadcast::Sender<CatalogChange>,
    rows: broadcast::Sender<RowChange>,
    /// The changes of rows so far.
    rows_version: AtomicU64,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            all: broadcast::Sender::new(MAX_BEHIND),
            rows: broadcast::Sender::new(MAX_BEHIND),
            rows_version: AtomicU64::new(0),
        }
    }
}

impl Changes {
    /// All changes from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<CatalogChange> {
        self.all.subscribe()
    }

    /// The changes of rows from now on.
    pub(super) fn rows(&self) -> broadcast::Receiver<RowChange> {
        self.rows.subscribe()
    }

    /// Grows with each change of a row: rows that were made since the last one are still right.
    pub(super) fn rows_version(&self) -> u64 {
        self.rows_version.load(Ordering::Acquire)
    }

    /// Sends a change to edges.
    pub(super) fn send(&self, change: impl FnOnce() -> Option<CatalogChange>) {
        send(&self.all, change);
    }

    /// Tells agents that a row has changed, after the entry has.
    pub(super) fn send_row(&self, service: &ServiceName) {
        self.rows_version.fetch_add(1, Ordering::Release);
        send(&self.rows, || Some(RowChange::Service(service.clone())));
    }

    pub(super) fn send_upstream(&self, repository: &RepositoryName, upstream: Upstream) {
        send(&self.rows, || Some(RowChange::Upstream(repository.clone(), upstream)));
    }
}

fn send<C>(to: &broadcast::Sender<C>, change: impl FnOnce() -> Option<C>) {
    if to.receiver_count() > 0
        && let Some(change) = change()
    {
        // The last receiver may have left.
        let _ = to.send(change);
    }
}

//! The changes of the catalog, for the event streams of other edges.
//!
//! They are sent in the order in which they take effect, so a heartbeat comes after all changes that precede it.

use std::sync::Arc;

use tokio::sync::broadcast;
use weir_cache::clock::Moment;
use weir_protocol::event::RevisionSeen;
use weir_protocol::name::{RepositoryName, ServiceName};

/// The most changes that a slow stream may be behind. Further ones end it.
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
    /// The entry of this service, which was current, may not be so any longer. `None`: that of any service. Those who were
    /// told must ask again.
    Suspect(Option<ServiceName>),
}

/// Of the last heartbeats of all origins, the oldest: they vouch for the whole catalog as of then.
#[derive(Debug, Clone)]
pub(crate) struct OldestHeartbeat {
    /// The name of its origin.
    pub(crate) origin: String,
    pub(crate) at: Moment,
}

/// The sender of changes. Nothing is stored while nobody listens.
#[derive(Debug)]
pub(super) struct Changes(broadcast::Sender<CatalogChange>);

impl Default for Changes {
    fn default() -> Self {
        Self(broadcast::Sender::new(MAX_BEHIND))
    }
}

impl Changes {
    /// All changes from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<CatalogChange> {
        self.0.subscribe()
    }

    pub(super) fn send(&self, change: impl FnOnce() -> Option<CatalogChange>) {
        if self.0.receiver_count() > 0
            && let Some(change) = change()
        {
            // The last receiver may have left.
            let _ = self.0.send(change);
        }
    }
}

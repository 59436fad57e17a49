//! The changes of the catalog, for the event streams of other edges.
//!
//! They are sent in the order in which they take effect, so a heartbeat comes after all changes that precede it.

use std::sync::Arc;

use tokio::sync::broadcast;
use weir_cache::OriginId;
use weir_cache::clock::Moment;
use weir_protocol::event::RevisionSeen;
use weir_protocol::name::{RepositoryName, ServiceName};

use super::entry::Entry;
use super::store::Catalog;

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
    pub(super) fn send(&self, change: impl FnOnce() -> Option<CatalogChange>) {
        if self.0.receiver_count() > 0
            && let Some(change) = change()
        {
            // The last receiver may have left.
            let _ = self.0.send(change);
        }
    }
}

impl Catalog {
    /// All changes from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<CatalogChange> {
        self.changes.0.subscribe()
    }

    /// An origin's event stream: all its events up to `at` are applied.
    pub(crate) fn heartbeat(&self, origin: OriginId, at: Moment) {
        self.lease(origin).heartbeat(at);
        let missed = self.write_queue().unannounced.heartbeat(origin, at);
        for service in missed {
            self.metrics.pushes_missed.inc();
            let origin = self.origins.name(origin);
            tracing::warn!(%service, origin, "a query found a version that the event stream never announced");
        }
        self.changes.send(|| self.oldest_heartbeat().map(CatalogChange::Heartbeat));
    }

    /// The event stream of an origin ended, or starts over with a snapshot.
    pub(crate) fn lost_sync(&self, origin: OriginId) {
        self.lease(origin).lost_sync();
        self.write_queue().unannounced.stream_ended(origin);
    }

    /// `None`: not all origins' streams are followed and complete.
    pub(crate) fn oldest_heartbeat(&self) -> Option<OldestHeartbeat> {
        let heartbeats = self.origins.followed().into_iter().map(|origin| {
            let lease = self.lease(origin);
            let at = lease.last_heartbeat().filter(|_| lease.is_in_sync())?;
            Some((at, origin))
        });
        let (at, origin) = heartbeats.collect::<Option<Vec<_>>>()?.into_iter().min()?;
        Some(OldestHeartbeat { origin: self.origins.name(origin).unwrap_or_default(), at })
    }

    /// Entries may not be current any longer.
    pub(crate) fn suspected(&self) {
        self.changes.send(|| Some(CatalogChange::Suspect(None)));
    }

    /// An entry may not be current any longer, until the origin answers a query sent after `at`.
    pub(crate) fn suspect(&self, service: &ServiceName, entry: &Entry, at: Moment) {
        let is_news = self.is_covered(entry);
        entry.suspect(at);
        self.changes.send(|| is_news.then(|| CatalogChange::Suspect(Some(service.clone()))));
    }

    /// Whether the freshness lease of its origin covers an entry.
    pub(crate) fn is_covered(&self, entry: &Entry) -> bool {
        entry.origin.is_some_and(|origin| !self.is_uncovered(entry, origin))
    }
}

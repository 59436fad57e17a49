//! What origins vouch for: their heartbeats, and entries about which there are doubts.

use tokio::sync::broadcast;
use weir_cache::OriginId;
use weir_cache::clock::Moment;

use super::changes::{CatalogChange, OldestHeartbeat, RowChange};
use super::entry::Entry;
use super::store::Catalog;

impl Catalog {
    /// All changes from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<CatalogChange> {
        self.changes.subscribe()
    }

    /// The changes of rows from now on.
    pub(crate) fn row_changes(&self) -> broadcast::Receiver<RowChange> {
        self.changes.rows()
    }

    /// Grows with each change of a row.
    pub(crate) fn rows_version(&self) -> u64 {
        self.changes.rows_version()
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
        self.changes.send(|| Some(CatalogChange::Suspect));
    }

    /// An entry may not be current any longer, until the origin answers a query sent after `at`.
    pub(crate) fn suspect(&self, entry: &Entry, at: Moment) {
        let is_news = self.is_covered(entry);
        entry.suspect(at);
        self.changes.send(|| is_news.then_some(CatalogChange::Suspect));
    }

    /// Whether the freshness lease of its origin covers an entry.
    pub(crate) fn is_covered(&self, entry: &Entry) -> bool {
        entry.origin.is_some_and(|origin| !self.is_uncovered(entry, origin))
    }
}

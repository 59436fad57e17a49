//! The task that follows the event stream of one origin.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Deserialize;
use tokio::task::spawn_blocking;
use weir_protocol::descriptor::{Descriptor, DescriptorError, Generation};
use weir_protocol::event::{Cursor, Event, EventKind, RevisionSeen};
use weir_protocol::name::ServiceName;

use super::metrics::Refused;
use super::pause::Pauses;
use super::prefetcher::Prefetcher;
use super::stream::{Batch, End, Stream};
use super::{Following, periodic_revalidation};
use crate::catalog::{Entry, FreshnessLease, Update, UpdateContent, UpdateOutcome, UpdateSource};
use crate::clock::Moment;
use crate::origin_client::{OriginError, OriginId};

pub(super) struct Follower {
    id: OriginId,
    following: Following,
    prefetcher: Prefetcher,
    /// The last applied event.
    cursor: Option<Cursor>,
    /// The reason for a resync when there is no cursor.
    no_cursor: &'static str,
    /// A snapshot has begun, on this connection or on one whose cursor is known.
    begun: bool,
    in_snapshot: bool,
    pauses: Pauses,
}

/// Updates that are applied together.
#[derive(Default)]
struct Gathered {
    updates: Vec<Update>,
    /// Applied after the versions they belong to.
    revisions: Vec<RevisionSeen>,
}

impl Follower {
    pub(super) fn new(id: OriginId, following: Following, prefetcher: Prefetcher) -> Self {
        following.metrics.stream_up(following.origins.all()[id].name(), false);
        Self {
            id,
            following,
            prefetcher,
            cursor: None,
            no_cursor: "start",
            begun: false,
            in_snapshot: false,
            pauses: Pauses::default(),
        }
    }

    /// Follows the stream until the drain begins.
    pub(super) async fn run(mut self) {
        let drain = self.following.drain.clone();
        loop {
            let round = async {
                let end = self.follow().await;
                self.ended(&end);
                let pause = match &end {
                    End::NotServed => Pauses::when_not_served(fastrand::f64()),
                    End::Refused(OriginError::Refused { retry_after, .. }) => {
                        self.pauses.next(*retry_after, fastrand::f64())
                    }
                    _ => self.pauses.next(None, fastrand::f64()),
                };
                tokio::time::sleep(pause).await;
            };
            tokio::select! {
                () = round => {}
                () = drain.begun() => return,
            }
        }
    }

    async fn follow(&mut self) -> End {
        let body = match self.following.origins.all()[self.id].events(self.cursor.as_ref()).await {
            Ok(body) => body,
            Err(error) => return error.into(),
        };
        let mut stream = Stream::of(body, self.following.clock);
        loop {
            let applied = match stream.next().await {
                Ok(batch) => self.apply(batch).await,
                Err(end) => Err(end),
            };
            if let Err(end) = applied {
                return end;
            }
        }
    }

    fn ended(&mut self, end: &End) {
        let was_in_step = self.lease().is_in_sync();
        self.lease().lost_sync();
        self.in_snapshot = false;
        if end.voids_the_cursor() {
            (self.cursor, self.begun, self.no_cursor) = (None, false, "lost");
        }
        let origin = self.name();
        self.following.metrics.stream_up(origin, false);
        self.following.metrics.stream_ended(end.label());
        match end {
            End::Malformed(_) => tracing::warn!(origin, %end, "the events of an origin are lost"),
            _ if was_in_step => tracing::warn!(origin, %end, "the events of an origin are not followed any more"),
            _ => tracing::debug!(origin, %end, "the events of an origin cannot be followed"),
        }
    }

    /// Applies events in order. Consecutive updates are stored together.
    async fn apply(&mut self, Batch { events, at }: Batch) -> Result<(), End> {
        let Some(last) = events.last().map(|event| event.cursor.clone()) else { return Ok(()) };
        let mut gathered = Gathered::default();
        for Event { kind, .. } in events {
            self.following.metrics.event(&kind);
            if !self.begun && !matches!(kind, EventKind::Resync | EventKind::Access(_)) {
                return Err(End::Malformed(format!("it began with `{}`", kind.as_str())));
            }
            match kind {
                EventKind::Descriptor(bytes) => gathered.updates.extend(self.current(&bytes, at)?),
                EventKind::Tombstone { service, generation } => {
                    gathered.updates.push(self.update(UpdateContent::Gone(service, Some(generation)), at));
                }
                EventKind::Revision(seen) => gathered.revisions.push(seen),
                EventKind::Access(access) => self.following.access.heard(self.id, &access),
                // These apply to all events before them.
                EventKind::Resync | EventKind::SnapshotEnd | EventKind::Heartbeat => {
                    self.store(std::mem::take(&mut gathered)).await;
                    match kind {
                        EventKind::Resync => self.begin(at).await,
                        EventKind::SnapshotEnd => self.snapshot_ended().await,
                        _ => self.heartbeat(at),
                    }
                }
            }
        }
        self.store(gathered).await;
        self.cursor = Some(last);
        Ok(())
    }

    /// The update of a descriptor. `None`: this version of the edge cannot read it.
    fn current(&self, bytes: &[u8], at: Moment) -> Result<Option<Update>, End> {
        // Copied: a slice would keep a whole part of the stream in memory.
        match Descriptor::parse(Bytes::copy_from_slice(bytes)) {
            Ok(descriptor) => Ok(Some(self.update(UpdateContent::Current(descriptor.into()), at))),
            Err(error) => {
                self.unreadable(bytes, &error, at)?;
                Ok(None)
            }
        }
    }

    fn update(&self, content: UpdateContent, at: Moment) -> Update {
        Update { origin: Some(self.id), source: UpdateSource::Stream, at, content }
    }

    /// Handles a descriptor that cannot be read, perhaps of a newer origin: the lease no longer covers its service.
    fn unreadable(&self, bytes: &[u8], error: &DescriptorError, at: Moment) -> Result<(), End> {
        #[derive(Deserialize)]
        struct Named {
            publication: Name,
        }
        #[derive(Deserialize)]
        struct Name {
            service: ServiceName,
        }
        let named: Named = serde_json::from_slice(bytes).map_err(|_| End::Malformed(error.to_string()))?;
        let service = named.publication.service;
        tracing::warn!(origin = self.name(), %service, %error, "a descriptor that was pushed cannot be read");
        self.following.metrics.refused(Refused::Unreadable);
        self.suspect(&service, at);
        Ok(())
    }

    /// Stores updates and handles their outcomes.
    async fn store(&self, Gathered { updates, revisions }: Gathered) {
        let about: Vec<_> = updates.iter().map(|update| (update.service().clone(), update.at)).collect();
        let outcomes = self.following.catalog.apply_all(updates).await;
        for ((service, at), outcome) in about.into_iter().zip(outcomes) {
            match outcome {
                UpdateOutcome::Stored(entry) => {
                    self.observe_delay(entry.highest.0);
                    self.taken(service, &entry);
                }
                UpdateOutcome::Revised(entry) => self.taken(service, &entry),
                UpdateOutcome::Unchanged(_) => self.following.lookup.clear_failure(&service),
                UpdateOutcome::Regressed => {
                    self.following.metrics.refused(Refused::Regressed);
                    self.suspect(&service, at);
                }
                UpdateOutcome::OtherOrigin => {
                    self.following.metrics.refused(Refused::OtherOrigin);
                    tracing::warn!(
                        origin = self.name(), %service,
                        "an origin announces a service that is another origin's; it is not taken from there"
                    );
                }
                UpdateOutcome::QueryOthers => self.suspect(&service, at),
                UpdateOutcome::Ignored => {}
            }
        }
        for seen in revisions {
            self.following.catalog.record_revision(self.id, seen);
        }
    }

    fn taken(&self, service: ServiceName, entry: &Entry) {
        self.following.lookup.clear_failure(&service);
        if entry.version.is_some() {
            self.prefetcher.consider(service, entry);
        }
    }

    /// The stored entry may be wrong: suspends its lease and revalidates it.
    fn suspect(&self, service: &ServiceName, at: Moment) {
        if let Some(entry) = self.following.catalog.get(service) {
            entry.suspect(at);
        }
        self.following.lookup.clear_failure(service);
        self.following.lookup.revalidate_in_background(service);
    }

    /// The delay since the publication, by the wall clocks of both machines. Generations are Unix milliseconds; one in
    /// the future is ignored.
    fn observe_delay(&self, generation: Generation) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        if !self.in_snapshot
            && let Some(delay) = now.checked_sub(generation.into())
        {
            self.following.metrics.push_delay.observe(delay as f64 / 1000.0);
        }
    }

    async fn begin(&mut self, at: Moment) {
        let why = if self.cursor.is_some() { "cursor_unknown" } else { self.no_cursor };
        self.following.metrics.resynced(why);
        tracing::info!(origin = self.name(), why, "the events of an origin begin with everything that is current");
        let catalog = self.following.catalog.clone();
        let _ = spawn_blocking(move || catalog.copy_lease_validations()).await;
        self.following.catalog.revisions().snapshot_begun(self.id);
        self.lease().lost_sync();
        self.lease().begin(at);
        (self.begun, self.in_snapshot) = (true, true);
    }

    async fn snapshot_ended(&mut self) {
        self.in_snapshot = false;
        self.following.catalog.revisions().snapshot_ended(self.id);
        self.in_sync();
        // They were removed, or are not published just now: a query decides.
        let (catalog, id) = (self.following.catalog.clone(), self.id);
        let missing = spawn_blocking(move || catalog.missing_from_snapshot(id)).await.unwrap_or_default();
        if !missing.is_empty() {
            let services = missing.len();
            tracing::info!(origin = self.name(), services, "the origin is asked about what its snapshot left out");
            // Earlier errors are out of date.
            missing.iter().for_each(|service| self.following.lookup.clear_failure(service));
            periodic_revalidation::revalidate_soon(&self.following, missing);
        }
    }

    fn heartbeat(&mut self, at: Moment) {
        if self.in_snapshot {
            return;
        }
        self.in_sync();
        self.lease().heartbeat(at);
        self.following.metrics.heartbeat(self.name());
    }

    fn in_sync(&mut self) {
        if !self.lease().is_in_sync() {
            tracing::info!(origin = self.name(), "the events of an origin are followed");
        }
        self.lease().in_sync();
        self.pauses.start_over();
        self.following.metrics.stream_up(self.name(), true);
    }

    fn lease(&self) -> &FreshnessLease {
        self.following.catalog.lease(self.id)
    }

    fn name(&self) -> &str {
        self.following.origins.all()[self.id].name()
    }
}

//! The task that follows the event stream of one origin.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use tokio::task::spawn_blocking;
use weir_cache::clock::Moment;
use weir_cache::{OriginError, OriginId};
use weir_protocol::descriptor::{Descriptor, DescriptorError, Generation};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::event::{Cursor, Event, EventKind, RevisionSeen};
use weir_protocol::name::{RepositoryName, ServiceName};

use super::backoff::Backoff;
use super::metrics::Refused;
use super::prefetcher::Prefetcher;
use super::stream::{EventBatch, Stream, StreamEnd};
use super::{FollowerContext, periodic_revalidation, shards};
use crate::catalog::{Entry, FreshnessLease, Update, UpdateContent, UpdateOutcome, UpdateSource};
use crate::origin_client::Origin;

pub(super) struct Follower {
    id: OriginId,
    origin: Arc<Origin>,
    context: FollowerContext,
    prefetcher: Prefetcher,
    /// The last applied event.
    cursor: Option<Cursor>,
    /// The reason for a resync when there is no cursor.
    resync_reason: &'static str,
    /// A snapshot has begun, on this connection or on one whose cursor is known.
    started: bool,
    in_snapshot: bool,
    backoff: Backoff,
    /// The shards that an access list lacks which has just come.
    lacking: Option<BTreeSet<ObjectDigest>>,
}

/// Updates that are applied together.
#[derive(Default)]
struct UpdateBatch {
    updates: Vec<Update>,
    /// Applied after the versions they belong to.
    revisions: Vec<RevisionSeen>,
}

impl Follower {
    pub(super) fn new(id: OriginId, context: FollowerContext, prefetcher: Prefetcher) -> Self {
        let origin = context.origins.get(id);
        context.metrics.stream_up(origin.name(), false);
        Self {
            id,
            origin,
            context,
            prefetcher,
            cursor: None,
            resync_reason: "start",
            started: false,
            in_snapshot: false,
            backoff: Backoff::default(),
            lacking: None,
        }
    }

    /// Follows the stream until the drain begins, or until it ends and the origin has left its cluster.
    pub(super) async fn run(mut self) {
        let drain = self.context.drain.clone();
        loop {
            let round = async {
                let end = self.follow().await;
                self.handle_end(&end);
                if !self.context.origins.is_to_be_followed(self.id) {
                    return false;
                }
                let backoff = match &end {
                    StreamEnd::NotServed => Backoff::not_served(fastrand::f64()),
                    StreamEnd::Refused(OriginError::Refused { retry_after, .. }) => {
                        self.backoff.next(*retry_after, fastrand::f64())
                    }
                    _ => self.backoff.next(None, fastrand::f64()),
                };
                tokio::time::sleep(backoff).await;
                true
            };
            tokio::select! {
                goes_on = round => if !goes_on { break },
                () = drain.begun() => return,
            }
        }
        tracing::info!(origin = self.name(), "an origin has left its cluster");
        // While its stream still counts, no heartbeat of another origin vouches for its services at other edges.
        let (catalog, id) = (self.context.catalog.clone(), self.id);
        let _ = spawn_blocking(move || catalog.left(id)).await;
        self.context.access.origin_left(self.name());
        self.context.metrics.left(self.name());
        self.origin.left();
        // Last: from now on another origin may have its id.
        self.context.origins.set_followed(self.id, false);
    }

    async fn follow(&mut self) -> StreamEnd {
        let body = match self.origin.events(self.cursor.as_ref()).await {
            Ok(body) => body,
            Err(error) => return error.into(),
        };
        let mut stream = Stream::of(body, self.context.clock);
        let mut shards = None;
        loop {
            let applied = tokio::select! {
                next = stream.next() => match next {
                    Ok(batch) => self.apply(batch).await,
                    Err(end) => Err(end),
                },
                () = fetched(&mut shards) => Ok(()),
            };
            if let Err(end) = applied {
                return end;
            }
            if let Some(lacking) = self.lacking.take() {
                let access = self.context.access.clone();
                shards = Some(shards::fetch(self.origin.clone(), access, lacking).boxed());
            }
        }
    }

    fn handle_end(&mut self, end: &StreamEnd) {
        let was_in_step = self.lease().is_in_sync();
        if was_in_step {
            self.context.members_changed.notify_one();
        }
        self.context.catalog.lost_sync(self.id);
        (self.in_snapshot, self.lacking) = (false, None);
        if end.invalidates_cursor() {
            (self.cursor, self.started, self.resync_reason) = (None, false, "lost");
        }
        let origin = self.name();
        self.context.metrics.stream_up(origin, false);
        self.context.metrics.stream_ended(end.into_str());
        match end {
            StreamEnd::Malformed(_) => {
                tracing::warn!(origin, %end, "the event stream of an origin is malformed; it restarts with a snapshot");
            }
            _ if was_in_step => tracing::warn!(origin, %end, "the event stream of an origin ended; reconnecting"),
            _ => tracing::debug!(origin, %end, "the event stream of an origin cannot be opened"),
        }
    }

    /// Applies events in order. Consecutive updates are stored together.
    async fn apply(&mut self, EventBatch { events, at }: EventBatch) -> Result<(), StreamEnd> {
        let Some(last) = events.last().map(|event| event.cursor.clone()) else { return Ok(()) };
        let mut pending = UpdateBatch::default();
        for Event { kind, .. } in events {
            self.context.metrics.event(&kind);
            if !self.started && !matches!(kind, EventKind::Resync | EventKind::Access(_)) {
                return Err(StreamEnd::Malformed(format!("the first event is `{}`, not `resync`", kind.as_str())));
            }
            match kind {
                EventKind::Descriptor(bytes) => pending.updates.extend(self.current(&bytes, at)?),
                EventKind::Tombstone { service, generation } => {
                    pending.updates.push(self.update(UpdateContent::Gone(service, Some(generation)), at));
                }
                EventKind::Revision(seen) => pending.revisions.push(seen),
                EventKind::Access(list) => {
                    self.lacking = Some(self.context.access.set_origin_list(self.name(), &list));
                }
                // These apply to all events before them.
                EventKind::Resync
                | EventKind::SnapshotEnd
                | EventKind::Heartbeat
                | EventKind::RelayedHeartbeat(_)
                | EventKind::Released(_) => {
                    self.store(std::mem::take(&mut pending)).await;
                    match kind {
                        EventKind::Resync => self.begin_snapshot(at).await,
                        EventKind::SnapshotEnd => self.end_snapshot().await,
                        EventKind::RelayedHeartbeat(relayed) => self.heartbeat(at.before(relayed.age)),
                        EventKind::Released(repository) => self.release(repository).await,
                        _ => self.heartbeat(at),
                    }
                }
            }
        }
        self.store(pending).await;
        self.cursor = Some(last);
        Ok(())
    }

    /// The update of a descriptor. `None`: this version of the edge cannot read it.
    fn current(&self, bytes: &[u8], at: Moment) -> Result<Option<Update>, StreamEnd> {
        // Copied: a slice would keep a whole part of the stream in memory.
        match Descriptor::parse(Bytes::copy_from_slice(bytes)) {
            Ok(descriptor) => Ok(Some(self.update(UpdateContent::Current(descriptor.into()), at))),
            Err(error) => {
                self.handle_unreadable(bytes, &error, at)?;
                Ok(None)
            }
        }
    }

    fn update(&self, content: UpdateContent, at: Moment) -> Update {
        Update { origin: Some(self.id), source: UpdateSource::Stream, at, content }
    }

    /// Handles a descriptor that cannot be read, perhaps of a newer origin: the lease no longer covers its service.
    fn handle_unreadable(&self, bytes: &[u8], error: &DescriptorError, at: Moment) -> Result<(), StreamEnd> {
        #[derive(Deserialize)]
        struct Named {
            publication: Name,
        }
        #[derive(Deserialize)]
        struct Name {
            service: ServiceName,
        }
        let named: Named = serde_json::from_slice(bytes).map_err(|_| StreamEnd::Malformed(error.to_string()))?;
        let service = named.publication.service;
        tracing::warn!(origin = self.name(), %service, %error, "a pushed descriptor cannot be parsed");
        self.context.metrics.refused(Refused::Unreadable);
        self.suspect(&service, at);
        Ok(())
    }

    /// Stores updates and handles their outcomes.
    async fn store(&self, UpdateBatch { updates, revisions }: UpdateBatch) {
        let about: Vec<_> = updates.iter().map(|update| (update.service().clone(), update.at)).collect();
        let outcomes = self.context.catalog.apply_all(updates).await;
        for ((service, at), outcome) in about.into_iter().zip(outcomes) {
            match outcome {
                UpdateOutcome::Stored(entry) => {
                    self.observe_delay(entry.highest.0);
                    self.handle_new_version(service, &entry);
                }
                UpdateOutcome::Revised(entry) => self.handle_new_version(service, &entry),
                UpdateOutcome::Unchanged(_) => self.context.lookup.clear_failure(&service),
                UpdateOutcome::Regressed => {
                    self.context.metrics.refused(Refused::Regressed);
                    self.suspect(&service, at);
                }
                UpdateOutcome::OtherOrigin => {
                    self.context.metrics.refused(Refused::OtherOrigin);
                    tracing::warn!(
                        origin = self.name(), %service,
                        "an origin announced a service that belongs to another origin; it is ignored"
                    );
                }
                UpdateOutcome::QueryOthers => self.suspect(&service, at),
                UpdateOutcome::Ignored => {}
            }
        }
        for seen in revisions {
            self.context.catalog.record_revision(self.id, seen);
        }
    }

    fn handle_new_version(&self, service: ServiceName, entry: &Entry) {
        self.context.lookup.clear_failure(&service);
        if entry.version.is_some() {
            self.prefetcher.enqueue(service, entry);
        }
    }

    /// The stored entry may be wrong: suspends its lease and revalidates it.
    fn suspect(&self, service: &ServiceName, at: Moment) {
        if let Some(entry) = self.context.catalog.get(service) {
            self.context.catalog.suspect(&entry, at);
        }
        self.context.lookup.clear_failure(service);
        self.context.lookup.revalidate_in_background(service);
    }

    /// The delay since the publication, by the wall clocks of both machines. Generations are Unix milliseconds; one in
    /// the future is ignored.
    fn observe_delay(&self, generation: Generation) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        if !self.in_snapshot
            && let Some(delay) = now.checked_sub(generation.into())
        {
            self.context.metrics.push_delay.observe(delay as f64 / 1000.0);
        }
    }

    async fn begin_snapshot(&mut self, at: Moment) {
        let why = if self.cursor.is_some() { "cursor_unknown" } else { self.resync_reason };
        self.context.metrics.resynced(why);
        tracing::info!(origin = self.name(), why, "the event stream of an origin starts with a snapshot");
        let catalog = self.context.catalog.clone();
        let _ = spawn_blocking(move || catalog.copy_lease_validations()).await;
        self.context.catalog.revisions().snapshot_begun(self.id);
        self.context.catalog.lost_sync(self.id);
        self.lease().begin(at);
        self.context.catalog.suspected();
        (self.started, self.in_snapshot) = (true, true);
    }

    async fn end_snapshot(&mut self) {
        self.in_snapshot = false;
        self.context.catalog.revisions().snapshot_ended(self.id);
        self.mark_in_sync();
        // They were removed, or are not published just now: a query decides.
        let (catalog, id) = (self.context.catalog.clone(), self.id);
        let missing = spawn_blocking(move || catalog.missing_from_snapshot(id)).await.unwrap_or_default();
        if !missing.is_empty() {
            let services = missing.len();
            tracing::info!(
                origin = self.name(),
                services,
                "revalidating services that are missing from the snapshot of an origin"
            );
            // Earlier errors are out of date.
            missing.iter().for_each(|service| self.context.lookup.clear_failure(service));
            periodic_revalidation::revalidate_soon(&self.context, missing);
        }
    }

    fn heartbeat(&mut self, at: Moment) {
        if self.in_snapshot {
            return;
        }
        self.mark_in_sync();
        self.context.catalog.heartbeat(self.id, at);
        self.context.metrics.heartbeat(self.name());
    }

    /// The origin does not vouch for a repository any longer. Whoever takes it announces its services.
    async fn release(&self, repository: RepositoryName) {
        tracing::info!(origin = self.name(), %repository, "an origin released a repository");
        let (catalog, id) = (self.context.catalog.clone(), self.id);
        let announced = spawn_blocking(move || catalog.release(id, &repository)).await.unwrap_or_default();
        self.context.catalog.apply_all(announced).await;
        // It may be a new member that takes it.
        self.context.members_changed.notify_one();
    }

    fn mark_in_sync(&mut self) {
        if !self.lease().is_in_sync() {
            tracing::info!(origin = self.name(), "the event stream of an origin is in sync");
        }
        self.lease().in_sync();
        self.backoff.reset();
        self.context.metrics.stream_up(self.name(), true);
    }

    fn lease(&self) -> &FreshnessLease {
        self.context.catalog.lease(self.id)
    }

    fn name(&self) -> &str {
        self.origin.name()
    }
}

async fn fetched(shards: &mut Option<BoxFuture<'static, ()>>) {
    match shards {
        Some(fetch) => fetch.await,
        None => std::future::pending().await,
    }
    *shards = None;
}

//! `GET /v1/events`: what this edge learns from its origins, passed on.
//!
//! A stream begins with a snapshot of all that the origins' streams vouch for, and then follows the
//! [changes](crate::catalog::CatalogChange) of the catalog. There is no log: a reader that reconnects gets a new
//! snapshot, and so does one for which something is no longer vouched for.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::BytesMut;
use http::{Method, Request, Response};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};
use weir_protocol::event::{self, Cursor, Event, EventKind, RelayedHeartbeat};
use weir_protocol::name::ServiceName;
use weir_protocol::problem::Problem;
use weir_runtime::bounds::Bound;
use weir_runtime::serve::{Body, NotTaken, PartWriter, RequestBody, until};
use weir_runtime::shutdown::Drain;

use super::error::{not_following, too_many_streams};
use super::metrics::PeerMetrics;
use crate::access::{Access, FollowedLists};
use crate::catalog::{Catalog, CatalogChange, Entry, OldestHeartbeat};

/// The size of a part of a snapshot, in bytes.
const PART_BYTES: usize = 64 << 10;

/// The event streams to other edges. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Events {
    catalog: Arc<Catalog>,
    pub(super) access: Access,
    /// Of all lines: readers begin again with a snapshot.
    cursor: Cursor,
    streams: Arc<Semaphore>,
    limit: usize,
    metrics: PeerMetrics,
    drain: Drain,
}

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum End {
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
    #[error("the reader fell behind")]
    Behind,
    #[error("a service may have changed unseen")]
    Suspect,
    #[error("the access lists of the origins cannot be merged")]
    AccessLists,
    #[error("the reader's certificate has expired")]
    CredentialEnded,
}

impl Events {
    /// Streams of a catalog, at most `limit` at a time.
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        access: Access,
        limit: usize,
        metrics: PeerMetrics,
        drain: &Drain,
    ) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        let cursor = format!("{:016x}.relayed", fastrand::u64(..)).parse().expect("digits, a dot and a word");
        let (streams, drain) = (Arc::new(Semaphore::new(limit)), drain.clone());
        Self { catalog, access, cursor, streams, limit, metrics, drain }
    }

    pub(super) fn bound(&self) -> Bound {
        ("peer_streams", (self.limit - self.streams.available_permits()) as u64, self.limit as u64)
    }

    /// Starts a stream, with a snapshot. It ends with the reader's certificate.
    pub(super) fn begin(
        &self,
        request: &Request<RequestBody>,
        certificate_ends: Option<SystemTime>,
    ) -> Result<Response<Body>, Problem> {
        // Taken before the entries: what changes meanwhile follows the snapshot.
        let changes = self.catalog.changes();
        let heartbeat = self.catalog.oldest_heartbeat().ok_or_else(not_following)?;
        let mut response = Response::new(Body::Empty);
        if request.method() == Method::GET {
            let permit = self.streams.clone().try_acquire_owned().map_err(|_| too_many_streams())?;
            let knows_shards = event::wants_shards(request.uri().query());
            *response.body_mut() = self.stream(changes, heartbeat, knows_shards, permit, certificate_ends);
        }
        event::set_headers(response.headers_mut());
        Ok(response)
    }

    fn stream(
        &self,
        changes: broadcast::Receiver<CatalogChange>,
        heartbeat: OldestHeartbeat,
        knows_shards: bool,
        permit: OwnedSemaphorePermit,
        certificate_ends: Option<SystemTime>,
    ) -> Body {
        let (parts, body) = PartWriter::new(&self.drain);
        let access = self.access.origin_lists();
        let writer = Writer { events: self.clone(), parts, changes, access, knows_shards };
        let metrics = self.metrics.clone();
        self.drain.spawn(async move {
            let end = writer.write(heartbeat, certificate_ends).await;
            metrics.stream_ended(end.label());
            tracing::debug!(why = %end, "an event stream to an edge ended");
            drop(permit);
        });
        body
    }
}

/// Writes the events of one stream in order.
struct Writer {
    events: Events,
    parts: PartWriter,
    changes: broadcast::Receiver<CatalogChange>,
    access: FollowedLists,
    /// It is sent as digests of shards.
    knows_shards: bool,
}

impl Writer {
    /// Writes until the stream ends. Only a drain is a clean end.
    async fn write(mut self, heartbeat: OldestHeartbeat, certificate_ends: Option<SystemTime>) -> End {
        let end = tokio::select! {
            Err(end) = self.write_events(heartbeat) => end,
            () = until(certificate_ends) => End::CredentialEnded,
        };
        match end {
            End::NotTaken(NotTaken::Disconnected) => {}
            End::NotTaken(NotTaken::Drained) => self.parts.finish(),
            error => self.parts.fail(error),
        }
        end
    }

    async fn write_events(&mut self, heartbeat: OldestHeartbeat) -> Result<Infallible, End> {
        self.snapshot().await?;
        self.send(self.heartbeat(&heartbeat)).await?;
        loop {
            let kind = tokio::select! {
                biased;
                () = self.events.drain.begun() => return Err(NotTaken::Drained.into()),
                () = self.parts.closed() => return Err(NotTaken::Disconnected.into()),
                // Before further changes: a revocation must not wait.
                () = self.access.changed() => self.access_list()?,
                change = self.changes.recv() => match change {
                    Ok(CatalogChange::Service(service)) => self.service(service),
                    Ok(CatalogChange::Released(repository)) => Some(EventKind::Released(repository)),
                    Ok(CatalogChange::Revision(seen)) => Some(EventKind::Revision((*seen).clone())),
                    Ok(CatalogChange::Heartbeat(heartbeat)) => Some(self.heartbeat(&heartbeat)),
                    Ok(CatalogChange::Suspect) => return Err(End::Suspect),
                    Err(RecvError::Lagged(_)) => return Err(End::Behind),
                    Err(RecvError::Closed) => return Err(NotTaken::Drained.into()),
                },
            };
            if let Some(kind) = kind {
                self.send(kind).await?;
            }
        }
    }

    /// Writes all that the origins' streams vouch for.
    async fn snapshot(&mut self) -> Result<(), End> {
        let catalog = self.events.catalog.clone();
        // Taken before the descriptors, which are then at least as new: no revision precedes its content.
        let revisions = catalog.revisions().all();
        let mut part = BytesMut::new();
        self.add(&mut part, EventKind::Resync);
        if let Some(access) = self.access_list()? {
            self.add(&mut part, access);
        }
        let vouched_for = catalog.all().into_iter().filter(|(_, entry)| catalog.is_covered(entry));
        let descriptors = vouched_for.map(|(service, entry)| event(service, &entry));
        for kind in descriptors.chain(revisions.into_iter().map(EventKind::Revision)) {
            self.add(&mut part, kind);
            if part.len() >= PART_BYTES {
                self.parts.send(part.split().freeze()).await?;
            }
        }
        self.add(&mut part, EventKind::SnapshotEnd);
        Ok(self.parts.send(part.freeze()).await?)
    }

    /// The event of a changed entry. `None`: no stream of an origin has announced it yet, and heartbeats come after that.
    /// Or it was evicted; then readers may keep it, because changes are still announced.
    fn service(&self, service: ServiceName) -> Option<EventKind> {
        let entry = self.events.catalog.get(&service).filter(|entry| self.events.catalog.is_covered(entry))?;
        Some(event(service, &entry))
    }

    fn heartbeat(&self, heartbeat: &OldestHeartbeat) -> EventKind {
        let age = self.events.catalog.clock().now().since(heartbeat.at);
        EventKind::RelayedHeartbeat(RelayedHeartbeat { origin: heartbeat.origin.clone(), age })
    }

    /// The access lists of all origins in one, if there are any.
    fn access_list(&mut self) -> Result<Option<EventKind>, End> {
        let joined = self.access.joined().map_err(|error| {
            tracing::error!(%error, "the access lists of the origins cannot be merged; other edges must follow the origins");
            End::AccessLists
        })?;
        let Some(list) = joined else { return Ok(None) };
        let json = match self.knows_shards {
            true => list.sharded_json(),
            false => {
                let (json, left_out) = list.whole_json();
                if !left_out.is_empty() {
                    tracing::warn!(
                        ?left_out,
                        "an edge of an earlier release does not get these: there are too many for it"
                    );
                }
                json
            }
        };
        Ok(Some(EventKind::Access(json.get().to_owned().into())))
    }

    fn add(&self, part: &mut BytesMut, kind: EventKind) {
        match (Event { cursor: self.events.cursor.clone(), kind }).line() {
            Ok(line) => part.extend_from_slice(&line),
            Err(error) => tracing::error!(%error, "an event cannot be written"),
        }
    }

    async fn send(&self, kind: EventKind) -> Result<(), End> {
        let mut part = BytesMut::new();
        self.add(&mut part, kind);
        Ok(self.parts.send(part.freeze()).await?)
    }
}

fn event(service: ServiceName, entry: &Entry) -> EventKind {
    match &entry.version {
        Some(version) => EventKind::Descriptor(version.descriptor().bytes().clone()),
        None => EventKind::Tombstone { service, generation: entry.highest.0 },
    }
}

impl End {
    fn label(self) -> &'static str {
        match self {
            End::NotTaken(why) => why.as_str(),
            End::Behind => "behind",
            End::Suspect => "suspect",
            End::AccessLists => "access_list",
            End::CredentialEnded => "credential_ended",
        }
    }
}

//! `GET /v1/events`: streams changes to edges.
//!
//! Each stream has a task that reads the log at the reader's speed and passes on one part at a time to the response
//! body. A reader that takes nothing for [`PART_TIMEOUT`](weir_runtime::serve::PART_TIMEOUT), or that falls behind the log, is disconnected with an
//! error, never a clean end. It reconnects with its last cursor.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::event::{self, Event, EventKind, HEARTBEAT_SECONDS, RevisionSeen};
use weir_protocol::problem::Problem;
use weir_protocol::query;
use weir_publish::{Retired, Validity};
use weir_runtime::serve::{Body, NotTaken, PartWriter, RequestBody, until};
use weir_runtime::shutdown::Drain;

use super::only_reads;
use super::problems::LATER;
use crate::access::SentList;
use crate::catalog::Catalog;
use crate::event_log::{EventLog, Read, Sequence};
use crate::metrics::Metrics;

/// The size of a part of a snapshot, in bytes.
const PART_BYTES: usize = 64 << 10;

/// The access list for edges.
pub(crate) type Access = watch::Receiver<Arc<SentList>>;

/// The event streams. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Events {
    log: Arc<EventLog>,
    catalog: Arc<Catalog>,
    access: Access,
    permits: Arc<Semaphore>,
    /// Until when this origin may vouch for what it owns.
    validity: Validity,
    metrics: Metrics,
    drain: Drain,
}

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum End {
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
    #[error("the reader fell behind the event log")]
    Behind,
    #[error("the reader's certificate has expired")]
    CredentialEnded,
}

impl Events {
    /// Streams of a log and a catalog, at most `limit` at a time.
    pub(crate) fn new(
        log: Arc<EventLog>,
        catalog: Arc<Catalog>,
        access: Access,
        limit: usize,
        validity: Validity,
        metrics: Metrics,
        drain: &Drain,
    ) -> Self {
        metrics.event_streams_limit.set(i64::try_from(limit).unwrap_or(i64::MAX));
        let permits = Arc::new(Semaphore::new(limit));
        Self { log, catalog, access, permits, validity, metrics, drain: drain.clone() }
    }

    /// The documents of a shard of the access list.
    pub(super) fn shard(&self, digest: &ObjectDigest) -> Option<Bytes> {
        let list = self.access.borrow().clone();
        list.shard(digest)
    }

    fn may_vouch(&self) -> bool {
        self.validity.holds()
    }

    /// Starts a stream after the cursor `since`, or with a snapshot. It ends with the reader's certificate.
    pub(super) fn begin(
        &self,
        request: &Request<RequestBody>,
        certificate_ends: Option<SystemTime>,
    ) -> Result<Response<Body>, Problem> {
        only_reads(request.method())?;
        let body = if request.method() == Method::HEAD {
            Body::Empty
        } else {
            let permit = self.permits.clone().try_acquire_owned().map_err(|_| too_many_streams())?;
            let (query, knows_shards) = (request.uri().query(), event::wants_shards(request.uri().query()));
            self.stream(since(query).as_deref(), knows_shards, permit, certificate_ends)
        };
        let mut response = Response::new(body);
        event::set_headers(response.headers_mut());
        Ok(response)
    }

    fn stream(
        &self,
        since: Option<&str>,
        knows_shards: bool,
        permit: OwnedSemaphorePermit,
        certificate_ends: Option<SystemTime>,
    ) -> Body {
        let begin = since.and_then(|cursor| self.log.offset(cursor));
        if begin.is_none() {
            let why = if since.is_some() { "cursor_unknown" } else { "no_cursor" };
            self.metrics.event_snapshots.with_label_values(&[why]).inc();
        }
        let (parts, body) = PartWriter::new(&self.drain);
        let mut heartbeat = interval(Duration::from_secs(HEARTBEAT_SECONDS));
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (newest, access) = (self.log.follow(), self.access.clone());
        let writer =
            Writer { events: self.clone(), parts, newest, access, access_ended: false, knows_shards, heartbeat };
        let metrics = self.metrics.clone();
        metrics.event_streams.inc();
        let open = OpenStream(metrics.clone());
        self.drain.spawn(async move {
            let _held = (permit, open);
            let end = writer.write(begin, certificate_ends).await;
            metrics.event_streams_ended.with_label_values(&[end.as_str()]).inc();
            tracing::debug!(why = %end, "an event stream ended");
        });
        body
    }
}

/// The value of `since`. What cannot be decoded is an unknown cursor.
fn since(query: Option<&str>) -> Option<Cow<'_, str>> {
    let pairs = query::pairs(query?).ok()?;
    pairs.into_iter().find(|(key, _)| *key == "since").map(|(_, value)| value)
}

/// Writes the events of one stream in order.
struct Writer {
    events: Events,
    parts: PartWriter,
    newest: watch::Receiver<Sequence>,
    access: Access,
    /// The sender of the access list is gone.
    access_ended: bool,
    /// It is sent as digests of shards.
    knows_shards: bool,
    heartbeat: Interval,
}

impl Writer {
    /// Writes until the stream ends. An end that the reader did not cause is an error of the stream.
    async fn write(mut self, begin: Option<Sequence>, certificate_ends: Option<SystemTime>) -> End {
        let end = tokio::select! {
            Err(end) = self.write_events(begin) => end,
            () = until(certificate_ends) => End::CredentialEnded,
        };
        match end {
            End::NotTaken(NotTaken::Disconnected) => {}
            End::NotTaken(NotTaken::Drained) => self.parts.finish(),
            error => self.parts.fail(error),
        }
        end
    }

    async fn write_events(&mut self, begin: Option<Sequence>) -> Result<std::convert::Infallible, End> {
        let log = self.events.log.clone();
        let mut offset = match begin {
            Some(offset) => {
                let access = self.access();
                self.send_event(&Event { cursor: log.cursor(offset), kind: access }).await?;
                offset
            }
            None => self.snapshot().await?,
        };
        loop {
            self.newest.borrow_and_update();
            match log.read(offset) {
                Read::Lines(lines, next) => {
                    for line in lines {
                        self.parts.send(line).await?;
                    }
                    offset = next;
                    continue;
                }
                Read::Expired => return Err(End::Behind),
                Read::UpToDate => {}
            }
            let at_offset = |kind| Event { cursor: log.cursor(offset), kind };
            let event = tokio::select! {
                biased;
                () = self.events.drain.begun() => return Err(NotTaken::Drained.into()),
                () = self.parts.closed() => return Err(NotTaken::Disconnected.into()),
                changed = self.access.changed(), if !self.access_ended => {
                    self.access_ended = changed.is_err();
                    match changed {
                        Ok(()) => at_offset(self.access()),
                        Err(_) => continue,
                    }
                }
                // The log outlives its readers.
                _ = self.newest.changed() => continue,
                _ = self.heartbeat.tick() => match self.events.may_vouch() {
                    true => at_offset(EventKind::Heartbeat),
                    false => continue,
                },
            };
            self.send_event(&event).await?;
        }
    }

    /// Writes a snapshot, and returns the log offset to continue from.
    async fn snapshot(&mut self) -> Result<Sequence, End> {
        // Taken first: changes during the snapshot follow this offset.
        let offset = self.events.log.newest();
        let within = self.events.log.cursor_of_snapshot();
        let catalog = self.events.catalog.clone();
        // Taken before the descriptors, which are then at least as new: no revision precedes its content.
        let revisions: Vec<RevisionSeen> =
            catalog.snapshot().workers.values().flat_map(|worker| worker.revisions()).collect();
        let mut part = BytesMut::new();
        let event = |kind| Event { cursor: within.clone(), kind };
        add(&mut part, &event(EventKind::Resync));
        // A revocation must not wait for all descriptors.
        add(&mut part, &event(self.access()));
        let owned = catalog.snapshot();
        let owned_services = owned.services.values().filter(|service| owned.owns(&service.repository));
        // What is left out here is announced when it is taken again.
        for service in owned_services.filter(|_| self.events.may_vouch()) {
            if let Some(current) = service.current() {
                add(&mut part, &event(EventKind::Descriptor(current.bytes().clone())));
            }
            if part.len() >= PART_BYTES {
                self.parts.send(part.split().freeze()).await?;
            }
        }
        // What this origin may not vouch for now has another owner, or will have.
        let owned = catalog.snapshot();
        for seen in revisions.into_iter().filter(|seen| owned.owns(&seen.repository)) {
            if !self.events.may_vouch() {
                break;
            }
            add(&mut part, &event(EventKind::Revision(seen)));
            if part.len() >= PART_BYTES {
                self.parts.send(part.split().freeze()).await?;
            }
        }
        for Retired { service, generation, .. } in catalog.retired() {
            add(&mut part, &event(EventKind::Tombstone { service, generation }));
        }
        add(&mut part, &Event { cursor: self.events.log.cursor(offset), kind: EventKind::SnapshotEnd });
        self.parts.send(part.freeze()).await?;
        Ok(offset)
    }

    /// The access list as it is.
    fn access(&mut self) -> EventKind {
        let list = self.access.borrow_and_update();
        EventKind::Access(if self.knows_shards { list.sharded() } else { list.whole() })
    }

    async fn send_event(&mut self, event: &Event) -> Result<(), End> {
        let mut part = BytesMut::new();
        add(&mut part, event);
        Ok(self.parts.send(part.freeze()).await?)
    }
}

fn add(part: &mut BytesMut, event: &Event) {
    match event.line() {
        Ok(line) => part.extend_from_slice(&line),
        Err(error) => tracing::error!(%error, "an event cannot be written"),
    }
}

impl End {
    fn as_str(self) -> &'static str {
        match self {
            End::NotTaken(why) => why.as_str(),
            End::Behind => "behind",
            End::CredentialEnded => "credential_ended",
        }
    }
}

/// Counts an open stream until dropped.
struct OpenStream(Metrics);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.event_streams.dec();
    }
}

fn too_many_streams() -> Problem {
    let detail = "The origin has reached its limit of event streams: poll, and retry later.";
    let title = "Too many event streams are open";
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-streams", title, detail).retry_after(LATER)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use weir_source::{Service, ServiceConfig};

    use super::*;
    use crate::event_log::tests::log;
    use http_body_util::BodyExt;

    use crate::catalog::Snapshot;
    use serde_json::json;
    use weir_protocol::descriptor::Descriptor;
    use weir_protocol::digest::TarballDigest;
    use weir_protocol::event::Lines;

    use crate::access::tests::denying;

    struct Reader {
        body: Body,
        lines: Lines,
    }

    impl Reader {
        fn of(events: &Events, query: &str) -> Self {
            let request = Request::get(format!("/v1/events{query}")).body(RequestBody::Empty).unwrap();
            let response = events.begin(&request, None).unwrap_or_else(Problem::into_response);
            assert_eq!(response.status(), 200);
            Self { body: response.into_body(), lines: Lines::default() }
        }

        /// The next event, or why the stream ended.
        async fn next(&mut self) -> Result<Event, String> {
            loop {
                if let Some(line) = self.lines.next_line().unwrap() {
                    return Ok(Event::parse(&line).unwrap().unwrap());
                }
                let frame = self.body.frame().await.ok_or("a clean end")?.map_err(|error| error.to_string())?;
                self.lines.push(&frame.into_data().unwrap());
            }
        }

        async fn kinds(&mut self, number: usize) -> Vec<&'static str> {
            let mut kinds = Vec::new();
            for _ in 0..number {
                kinds.push(self.next().await.unwrap().kind.as_str());
            }
            kinds
        }
    }

    /// Streams of a catalog with one unpublished and one retired service.
    fn events(kept: usize, limit: usize) -> (Events, Arc<Service>, watch::Sender<Arc<SentList>>, Drain) {
        let config = ServiceConfig::new("shop-prod".parse().unwrap(), "shop".parse().unwrap());
        let service = Arc::new(Service::new(&config, |_| None, None).unwrap());
        let services = [(service.name.clone(), service.clone())].into_iter().collect();
        let snapshot = Snapshot { services, ..Snapshot::default() };
        let retired = Retired { repository: "shop".parse().unwrap(), service: "old".parse().unwrap(), generation: 7 };
        let catalog = Arc::new(Catalog::new(snapshot, vec![retired]));
        let (allow, access) = watch::channel(Arc::new(denying("a")));
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let drain = Drain::new();
        let log = Arc::new(log(kept, 1 << 20));
        (Events::new(log, catalog, access, limit, Validity::always(), metrics, &drain), service, allow, drain)
    }

    /// Publishes a commit like a publisher.
    fn publish(events: &Events, service: &Service, commit: char) {
        let commit = commit.to_string().repeat(40);
        let descriptor = json!({
            "publication": {
                "service": service.name, "repository": service.repository,
                "generation": service.generation().map_or(1, |(_, generation)| generation + 1),
                "digest": TarballDigest::of(b"tar"), "sha256": "01".repeat(32), "size": 3,
                "commit": commit, "revision_id": format!("sha1:{commit}"), "selector": null,
                "published_at": "2026-11-20T09:30:00Z", "format": 1, "omitted": [],
            },
            "ref": "main", "revision": 1,
            "representations": [{"encoding": "zstd", "digest": ObjectDigest::of(b"frame"), "size": 5, "frames": 1}],
        });
        let descriptor = Descriptor::parse(descriptor.to_string().into()).unwrap();
        service.show(descriptor, |shown| events.log.append(EventKind::Descriptor(shown.bytes().clone())));
    }

    /// The streams of a member of a cluster whose session ends then, with the services and repositories of before.
    fn of_member(events: Events, owned: &[&str], until: Instant) -> (Events, watch::Sender<Option<Instant>>) {
        let owned = owned.iter().map(|name| (name.parse().unwrap(), ())).collect();
        let snapshot = Snapshot { owned: Some(owned), ..Snapshot::clone(&events.catalog.snapshot()) };
        let (until, session) = watch::channel(Some(until));
        let catalog = Arc::new(Catalog::new(snapshot, Vec::new()));
        (Events { catalog, validity: Validity::of_session(session), ..events }, until)
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_speaks_of_what_it_owns_while_its_session_is_valid() {
        let (events, service, _allow, _drain) = events(100, 10);
        publish(&events, &service, 'a');
        let later = Instant::now() + Duration::from_secs(3600);
        let (elsewhere, _until) = of_member(events.clone(), &["blog"], later);
        assert_eq!(Reader::of(&elsewhere, "").kinds(4).await, ["resync", "access", "snapshot_end", "heartbeat"]);
        let (owner, until) = of_member(events, &["shop"], later);
        let mut reader = Reader::of(&owner, "");
        assert_eq!(reader.kinds(5).await, ["resync", "access", "descriptor", "snapshot_end", "heartbeat"]);
        until.send_replace(None);
        // Only the paused clock advances.
        tokio::time::sleep(3 * Duration::from_secs(HEARTBEAT_SECONDS)).await;
        owner.log.append(EventKind::Released("shop".parse().unwrap()));
        assert_eq!(reader.kinds(1).await, ["released"]);
        assert_eq!(Reader::of(&owner, "").kinds(3).await, ["resync", "access", "snapshot_end"]);
    }

    #[tokio::test]
    async fn a_changed_access_list_is_sent_and_a_cursor_within_a_snapshot_restarts_it() {
        let (events, _service, allow, _drain) = events(100, 10);
        let mut reader = Reader::of(&events, "");
        assert_eq!(reader.kinds(5).await, ["resync", "access", "tombstone", "snapshot_end", "heartbeat"]);
        let list = Arc::new(denying("b"));
        allow.send_replace(list.clone());
        assert_eq!(reader.next().await.unwrap().kind, EventKind::Access(list.whole()));
        let mut reader = Reader::of(&events, "");
        let within = reader.next().await.unwrap().cursor;
        let mut reader = Reader::of(&events, &format!("?since={within}"));
        assert_eq!(reader.kinds(2).await, ["resync", "access"]);
    }

    #[tokio::test]
    async fn a_change_during_a_snapshot_is_sent_after_it() {
        let (events, service, _allow, _drain) = events(100, 10);
        let mut reader = Reader::of(&events, "");
        let event = reader.next().await.unwrap();
        assert_eq!(event.kind, EventKind::Resync);
        publish(&events, &service, 'a');
        assert_eq!(reader.kinds(4).await, ["access", "tombstone", "snapshot_end", "descriptor"]);
    }

    #[tokio::test]
    async fn a_reader_behind_the_event_log_is_disconnected_and_gets_a_snapshot() {
        let (events, service, _allow, _drain) = events(4, 10);
        publish(&events, &service, 'a');
        let mut reader = Reader::of(&events, "");
        assert_eq!(reader.kinds(6).await, ["resync", "access", "descriptor", "tombstone", "snapshot_end", "heartbeat"]);
        let mut last = None;
        for _ in 0..20 {
            for commit in ['b', 'c'] {
                publish(&events, &service, commit);
            }
        }
        let end = loop {
            match reader.next().await {
                Ok(event) => last = Some(event.cursor),
                Err(end) => break end,
            }
        };
        assert_ne!(end, "a clean end");
        let since = last.map(|cursor| format!("?since={cursor}")).unwrap_or_default();
        assert_eq!(Reader::of(&events, &since).next().await.unwrap().kind, EventKind::Resync);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_reader_is_disconnected_and_frees_its_slot() {
        let (events, service, _allow, _drain) = events(100, 1);
        publish(&events, &service, 'a');
        let mut reader = Reader::of(&events, "");
        let request = Request::get("/v1/events").body(RequestBody::Empty).unwrap();
        assert_eq!(events.begin(&request, None).err().unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(events.metrics.event_streams.get(), 1);
        // Only the paused clock advances.
        tokio::time::sleep(3 * weir_runtime::serve::PART_TIMEOUT).await;
        assert_eq!(events.metrics.event_streams.get(), 0);
        let end = loop {
            if let Err(end) = reader.next().await {
                break end;
            }
        };
        assert_ne!(end, "a clean end");
        assert_eq!(events.metrics.event_streams_ended.with_label_values(&["stalled"]).get(), 1);
        assert!(events.begin(&request, None).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeats_come_every_five_seconds_and_a_drain_ends_the_stream_at_once() {
        let (events, _service, _allow, drain) = events(100, 10);
        let mut reader = Reader::of(&events, "");
        assert_eq!(reader.kinds(5).await, ["resync", "access", "tombstone", "snapshot_end", "heartbeat"]);
        let begun = tokio::time::Instant::now();
        assert_eq!(reader.kinds(2).await, ["heartbeat", "heartbeat"]);
        assert_eq!(begun.elapsed().as_secs(), 2 * HEARTBEAT_SECONDS);
        let draining = tokio::spawn(async move { drain.finish(Duration::from_secs(60)).await });
        assert_eq!(reader.next().await, Err("a clean end".to_owned()));
        assert!(draining.await.unwrap());
        assert_eq!(begun.elapsed().as_secs(), 2 * HEARTBEAT_SECONDS);
    }
}

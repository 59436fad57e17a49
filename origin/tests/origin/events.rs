//! The event stream for edges.

use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use weir_protocol::event::{Event, Lines};
use weir_runtime::http_client::Http2Client;

use crate::prelude::*;

#[tokio::test]
async fn a_follower_receives_each_publication_and_resumes_at_its_cursor() {
    let (home, upstream, node, first) = started().await;
    // The revision was sent by then.
    node.poll().await;
    let client = home.client("edge-client");
    let mut reader = Reader::of(&client, &node, "").await;
    assert_eq!(reader.next().await.unwrap().kind, EventKind::Resync);
    // Who may read stands at the beginning of every stream.
    assert!(matches!(reader.next().await.unwrap().kind, EventKind::Access(_)));
    assert_eq!(reader.descriptor().await.0.bytes(), first.bytes());
    let EventKind::Revision(seen) = reader.next().await.unwrap().kind else { panic!("{first:?}") };
    assert_eq!(seen.revision_id, first.publication().revision_id);
    assert_eq!(reader.next().await.unwrap().kind, EventKind::SnapshotEnd);

    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    node.poll().await;
    let (second, cursor) = reader.descriptor().await;
    assert_eq!(commit_of(&second), commit);
    assert_eq!(second.bytes(), node.descriptor().await.bytes());
    let EventKind::Revision(seen) = reader.next().await.unwrap().kind else { panic!("the revision comes after it") };
    assert_eq!((seen.followed_ref.as_str(), seen.revision_id.to_string()), ("main", format!("sha1:{commit}")));
    assert_eq!(second.followed_ref(), seen.followed_ref);
    assert!(seen.upstream.reachable);
    // A commit that changes no content: no event but that.
    let commit = upstream.push("docs/more.md", b"more words\n");
    node.poll().await;
    let EventKind::Revision(seen) = reader.next().await.unwrap().kind else { panic!("nothing else happened") };
    assert_eq!(seen.revision_id.to_string(), format!("sha1:{commit}"));
    // Polls that find nothing are no events; an upstream that goes away and comes back is.
    node.poll().await;
    upstream.take_away();
    node.poll().await;
    upstream.give_back();
    for reachable in [false, true] {
        let EventKind::Revision(seen) = reader.next().await.unwrap().kind else { panic!("{reachable}") };
        assert_eq!((seen.upstream.reachable, seen.revision_id.to_string()), (reachable, format!("sha1:{commit}")));
        node.poll().await;
    }
    drop(reader);

    upstream.push("deploy/app.yaml", b"replicas: 3\n");
    node.poll().await;
    let mut reader = Reader::of(&client, &node, &format!("?since={cursor}")).await;
    assert!(matches!(reader.next().await.unwrap().kind, EventKind::Access(_)));
    let event = reader.until(|kind| matches!(kind, EventKind::Descriptor(_))).await;
    assert_eq!(event, EventKind::Descriptor(node.descriptor().await.bytes().clone()), "what was missed, once");
    assert_eq!(node.metric("weir_origin_event_streams").await, 1.0);
    assert_eq!(node.metric("weir_origin_event_snapshots_total{reason=\"no_cursor\"}").await, 1.0);
    assert_eq!(node.metric("weir_origin_events_total{event=\"descriptor\"}").await, 3.0);
    assert!(matches!(reader.next().await.unwrap().kind, EventKind::Revision(_)), "the revision comes after it");

    // A drain waits for no stream.
    let ended = tokio::spawn(async move { reader.next().await });
    node.stop().await;
    assert_eq!(ended.await.unwrap(), None);
    // Another process does not know this cursor; retired services are sent.
    let mut config = home.config(&upstream.url());
    config.services[0].name = "shop-next".parse().unwrap();
    let node = home.start(config).await;
    let mut reader = Reader::of(&client, &node, &format!("?since={cursor}")).await;
    assert_eq!(reader.next().await.unwrap().kind, EventKind::Resync);
    let tombstone = loop {
        match reader.next().await.unwrap().kind {
            EventKind::Descriptor(_) | EventKind::Access(_) | EventKind::Revision(_) => {}
            kind => break kind,
        }
    };
    assert!(matches!(tombstone, EventKind::Tombstone { service: gone, .. } if gone == service()));
    drop(reader);
    node.stop().await;
}

#[tokio::test]
async fn event_streams_are_limited() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = home.config(&upstream.url());
    config.limits.event_streams = 1;
    let node = home.start(config).await;
    let client = home.client("edge-client");
    let reader = Reader::of(&client, &node, "").await;
    let answer = node.get("/v1/events").await;
    assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (429, "too-many-streams"));
    assert!(!answer.header("retry-after").is_empty());
    assert_eq!(node.request(Method::HEAD, "/v1/events", &[]).await.status, 200);
    let answer = node.request(Method::POST, "/v1/events", &[]).await;
    assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, "GET, HEAD"));
    drop(reader);
    until(async || node.metric("weir_origin_event_streams").await == 0.0).await;
    Reader::of(&client, &node, "").await.next().await.unwrap();
    node.stop().await;
}

/// Longer than anything takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// An event stream that is read.
pub(crate) struct Reader {
    body: Incoming,
    lines: Lines,
}

impl Reader {
    pub(crate) async fn of(client: &Http2Client, node: &Node, since: &str) -> Self {
        let uri = format!("https://{}/v1/events{since}", node.running.address());
        let response = client.request(Request::get(uri).body(Empty::new()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/x-ndjson");
        Self { body: response.into_body(), lines: Lines::default() }
    }

    /// The next event that is no heartbeat; `None` at the end, however it comes.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            while let Some(line) = self.lines.next_line().unwrap() {
                match Event::parse(&line).unwrap().unwrap() {
                    Event { kind: EventKind::Heartbeat, .. } => {}
                    event => return Some(event),
                }
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("the stream hangs");
            self.lines.push(&frame?.ok()?.into_data().ok()?);
        }
    }

    /// Reads on to an event of that kind.
    pub(crate) async fn until(&mut self, is: impl Fn(&EventKind) -> bool) -> EventKind {
        loop {
            let event = self.next().await.expect("the stream goes on");
            if is(&event.kind) {
                return event.kind;
            }
        }
    }

    pub(crate) async fn descriptor(&mut self) -> (Descriptor, String) {
        let event = self.next().await.unwrap();
        let EventKind::Descriptor(bytes) = event.kind else { panic!("{event:?}") };
        (Descriptor::parse(bytes).unwrap(), event.cursor.to_string())
    }
}

//! The event stream as an edge reads it.

use std::time::Duration;

use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::event::{Event, EventKind, Lines};
use weir_runtime::http_client::Http2Client;

use crate::node::Node;

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

//! The event stream from an edge to an agent: one JSON document per line, of the services that the agent is to follow
//! and may read. It says what changed; the batch poll says what is. An unknown kind is ignored.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};

use crate::batch_poll::{BatchRow, RowState};
use crate::descriptor::Generation;
use crate::digest::TarballDigest;
use crate::event::{Cursor, EventError, Upstream};
use crate::name::ServiceName;
use crate::revision_id::RevisionId;

/// The longest line in bytes, without its end.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// The most services of an event `upstream`. An edge sends several for more.
pub const MAX_SERVICES: usize = 256;

/// The interval of heartbeats in seconds.
pub const HEARTBEAT_SECONDS: u64 = 30;

/// One document of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentEvent {
    /// The position after which an agent can resume at this edge.
    pub cursor: Cursor,
    /// What follows from it at all agents that get it is to be spread over this at most. `None`: the edge does not say.
    pub spread: Option<Duration>,
    /// What it says.
    pub kind: AgentEventKind,
}

/// The kind of an event, with its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEventKind {
    /// The row of a service in the batch poll changed.
    Changed(BatchRow),
    /// The agent is to follow another service; its row.
    Assigned(BatchRow),
    /// The agent is no longer to follow a service. Its directory stays.
    Unassigned(ServiceName),
    /// The reachability of an upstream changed.
    Upstream {
        /// The services that are built from it, at most [`MAX_SERVICES`].
        services: Vec<ServiceName>,
        /// Its reachability.
        upstream: Upstream,
    },
    /// All events so far were sent.
    Heartbeat,
    /// Events were lost: poll.
    Resync,
}

/// The fields of a document, by their names on the wire.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    event: Cow<'a, str>,
    cursor: Cursor,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spread_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    service: Option<ServiceName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<RowState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<TarballDigest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generation: Option<Generation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revision_id: Option<RevisionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    services: Option<Vec<ServiceName>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    upstream: Option<Upstream>,
}

impl Line<'_> {
    fn row(self, event: &'static str) -> Result<BatchRow, EventError> {
        let missing = |field| EventError::Missing { event, field };
        let row = BatchRow {
            service: self.service.ok_or(missing("service"))?,
            state: self.state.ok_or(missing("state"))?,
            digest: self.digest,
            generation: self.generation,
            revision_id: self.revision_id,
            etag: self.etag,
        };
        if row.is_complete() { Ok(row) } else { Err(missing("complete row")) }
    }
}

impl AgentEventKind {
    /// The value of `event`, and of a metric's label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Changed(_) => "changed",
            Self::Assigned(_) => "assigned",
            Self::Unassigned(_) => "unassigned",
            Self::Upstream { .. } => "upstream",
            Self::Heartbeat => "heartbeat",
            Self::Resync => "resync",
        }
    }
}

impl AgentEvent {
    /// Parses a line without its end. `None`: an unknown kind, to be ignored.
    ///
    /// # Errors
    /// It is too long, not JSON, or a field is missing or wrong.
    pub fn parse(line: &[u8]) -> Result<Option<Self>, EventError> {
        if line.len() > MAX_LINE_BYTES {
            return Err(EventError::TooLong(MAX_LINE_BYTES));
        }
        let read: Line<'_> = crate::json::from_slice(line)?;
        let missing = |event, field| EventError::Missing { event, field };
        let (cursor, spread) = (read.cursor.clone(), read.spread_ms.map(Duration::from_millis));
        let kind = match &*read.event {
            "changed" => AgentEventKind::Changed(read.row("changed")?),
            "assigned" => AgentEventKind::Assigned(read.row("assigned")?),
            "unassigned" => AgentEventKind::Unassigned(read.service.ok_or(missing("unassigned", "service"))?),
            "upstream" => {
                let services = read.services.ok_or(missing("upstream", "services"))?;
                if services.len() > MAX_SERVICES {
                    return Err(serde_json::Error::custom(format_args!("more than {MAX_SERVICES} services")).into());
                }
                let upstream = read.upstream.ok_or(missing("upstream", "upstream"))?;
                AgentEventKind::Upstream { services, upstream }
            }
            "heartbeat" => AgentEventKind::Heartbeat,
            "resync" => AgentEventKind::Resync,
            _ => return Ok(None),
        };
        Ok(Some(Self { cursor, spread, kind }))
    }

    /// Encodes the event as a line with its end. The caller keeps to [`MAX_SERVICES`].
    pub fn line(&self) -> Bytes {
        let (mut row, mut service, mut upstream) = (None, None, None);
        match &self.kind {
            AgentEventKind::Changed(of) | AgentEventKind::Assigned(of) => row = Some(of.clone()),
            AgentEventKind::Unassigned(of) => service = Some(of.clone()),
            AgentEventKind::Upstream { services, upstream: of } => upstream = Some((services.clone(), *of)),
            AgentEventKind::Heartbeat | AgentEventKind::Resync => {}
        }
        let (services, upstream) = upstream.unzip();
        let mut line = Line {
            event: self.kind.as_str().into(),
            cursor: self.cursor.clone(),
            spread_ms: self.spread.map(|spread| u64::try_from(spread.as_millis()).unwrap_or(u64::MAX)),
            service,
            state: None,
            digest: None,
            generation: None,
            revision_id: None,
            etag: None,
            services,
            upstream,
        };
        if let Some(BatchRow { service, state, digest, generation, revision_id, etag }) = row {
            let (service, state) = (Some(service), Some(state));
            line = Line { service, state, digest, generation, revision_id, etag, ..line };
        }
        let mut json = serde_json::to_vec(&line).expect("plain data");
        json.push(b'\n');
        json.into()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;
    use crate::event::Lines;

    const GOLDEN: &str = include_str!("../golden/agent/events.ndjson");

    fn row(service: &str) -> BatchRow {
        BatchRow {
            service: service.parse().unwrap(),
            state: RowState::Current,
            digest: Some(TarballDigest::of(b"tar")),
            generation: Some(1_795_164_249_650),
            revision_id: Some("sha1:aa".parse().unwrap()),
            etag: Some("\"1795164249650.2\"".to_owned()),
        }
    }

    fn upstream(services: &[&str], reachable: bool, since: u64) -> AgentEventKind {
        let since = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(since);
        let services = services.iter().map(|service| service.parse().unwrap()).collect();
        AgentEventKind::Upstream { services, upstream: Upstream { reachable, since } }
    }

    #[test]
    fn each_kind_has_exactly_these_bytes() {
        let kinds = [
            AgentEventKind::Resync,
            AgentEventKind::Assigned(BatchRow {
                service: "docs".parse().unwrap(),
                state: RowState::NotPublished,
                digest: None,
                generation: None,
                revision_id: None,
                etag: None,
            }),
            AgentEventKind::Changed(row("shop-prod")),
            upstream(&["docs", "shop-prod"], false, 1_795_166_160),
            AgentEventKind::Unassigned("docs".parse().unwrap()),
            AgentEventKind::Heartbeat,
        ];
        let event = |kind| {
            let spread = matches!(kind, AgentEventKind::Changed(_)).then_some(Duration::from_millis(45));
            AgentEvent { cursor: "e1.7".parse().unwrap(), spread, kind }
        };
        let events: Vec<_> = kinds.into_iter().map(event).collect();
        let written: Vec<u8> = events.iter().flat_map(AgentEvent::line).collect();
        assert_eq!(String::from_utf8(written).unwrap(), GOLDEN);
        let read: Vec<_> = GOLDEN.lines().map(|line| AgentEvent::parse(line.as_bytes()).unwrap().unwrap()).collect();
        assert_eq!(read, events);
    }

    #[test]
    fn malformed_events_have_clear_errors() {
        for (line, expected) in [
            (r#"{"event":"heartbeat"}"#, "`cursor`"),
            (r#"{"event":"changed","cursor":"a","state":"current"}"#, "`changed` has no `service`"),
            (r#"{"event":"changed","cursor":"a","service":"a"}"#, "`changed` has no `state`"),
            (r#"{"event":"assigned","cursor":"a","service":"a","state":"current"}"#, "no `complete row`"),
            (r#"{"event":"unassigned","cursor":"a"}"#, "no `service`"),
            (r#"{"event":"upstream","cursor":"a"}"#, "no `services`"),
            (r#"{"event":"upstream","cursor":"a","services":[]}"#, "no `upstream`"),
            (r#"{"event":"unassigned","cursor":"a","service":"a","service":"b"}"#, "twice"),
        ] {
            let error = AgentEvent::parse(line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
        let future = br#"{"event":"of the future","cursor":"a","services":["a"],"n":1}"#;
        assert_eq!(AgentEvent::parse(future).unwrap(), None);
        assert!(matches!(AgentEvent::parse(&vec![b' '; MAX_LINE_BYTES + 1]), Err(EventError::TooLong(MAX_LINE_BYTES))));
        let many = upstream(&vec!["a"; MAX_SERVICES + 1], true, 0);
        let line = AgentEvent { cursor: "a".parse().unwrap(), spread: None, kind: many }.line();
        let error = AgentEvent::parse(&line).unwrap_err().to_string();
        assert!(error.contains("more than 256 services"), "{error}");
        let longest = upstream(&vec!["x".repeat(100).as_str(); MAX_SERVICES], true, 0);
        let line = AgentEvent { cursor: "a".repeat(100).parse().unwrap(), spread: None, kind: longest }.line();
        assert!(AgentEvent::parse(&line).is_ok());
    }

    fn any_event() -> impl Strategy<Value = AgentEvent> {
        let kind = prop_oneof![
            "[a-z0-9]{1,100}".prop_map(|name| AgentEventKind::Changed(row(&name))),
            "[a-z0-9]{1,100}".prop_map(|name| AgentEventKind::Assigned(row(&name))),
            "[a-z0-9]{1,100}".prop_map(|name| AgentEventKind::Unassigned(name.parse().unwrap())),
            ("[a-z0-9]{1,100}", any::<bool>(), 0u64..4_000_000_000).prop_map(|(name, reachable, since)| upstream(
                &[&name],
                reachable,
                since
            )),
            Just(AgentEventKind::Heartbeat),
            Just(AgentEventKind::Resync),
        ];
        ("[A-Za-z0-9._-]{1,100}", proptest::option::of(any::<u64>()), kind).prop_map(|(cursor, spread, kind)| {
            AgentEvent { cursor: cursor.parse().unwrap(), spread: spread.map(Duration::from_millis), kind }
        })
    }

    proptest! {
        #[test]
        fn events_round_trip_in_chunks_of_any_size(
            events in proptest::collection::vec(any_event(), 0..8), cut in 1usize..200,
        ) {
            let whole: Vec<u8> = events.iter().flat_map(AgentEvent::line).collect();
            let (mut lines, mut read) = (Lines::with_limit(MAX_LINE_BYTES), Vec::new());
            for part in whole.chunks(cut) {
                lines.push(part);
                while let Some(line) = lines.next_line().unwrap() {
                    read.push(AgentEvent::parse(&line).unwrap().unwrap());
                }
            }
            prop_assert_eq!(read, events);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = AgentEvent::parse(&bytes);
        }
    }
}

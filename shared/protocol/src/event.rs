//! The event stream from an origin to its edges: one JSON document per line.
//!
//! A document has a kind (`event`) and a *cursor*, its position in the stream. A client that reconnects sends the last
//! cursor it has processed, and receives the events after it. When the cursor is unknown, the origin sends `resync`,
//! then all current descriptors, then `snapshot_end`. Unknown kinds must be ignored, so that kinds can be added.

use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::descriptor::{Generation, MAX_DESCRIPTOR_BYTES, rfc3339};
use crate::name::{RepositoryName, ServiceName};
use crate::revision_id::RevisionId;
use crate::text_type::checked_text;

/// The longest line in bytes, without its end: the largest descriptor with a cursor and field names.
pub const MAX_LINE_BYTES: usize = MAX_DESCRIPTOR_BYTES + 1024;

/// The longest cursor, in bytes.
pub const MAX_CURSOR_BYTES: usize = 100;

/// The media type of the stream.
pub const CONTENT_TYPE: &str = "application/x-ndjson";

/// Sets the headers of every event stream.
pub fn set_headers(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx and similar proxies otherwise hold lines back until a buffer is full.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// What the query of a reader says that knows the shards of access lists.
pub const KNOWS_SHARDS: &str = "lists=shards";

/// Whether a query says so.
pub fn wants_shards(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|member| member == KNOWS_SHARDS))
}

/// The interval of heartbeats in seconds. A heartbeat says that all events so far were sent.
pub const HEARTBEAT_SECONDS: u64 = 5;

checked_text! {
    /// A position in one origin's stream. Opaque to clients; needs no encoding in a URL.
    Cursor, is_cursor, CursorError, |_| CursorError
}

/// The text is not a cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a cursor is 1 to {MAX_CURSOR_BYTES} of `A-Z`, `a-z`, `0-9`, `.`, `_`, `-`")]
pub struct CursorError;

fn is_cursor(text: &str) -> bool {
    let may_stand = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=MAX_CURSOR_BYTES).contains(&text.len()) && text.bytes().all(may_stand)
}

/// One document of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The position after which a client can resume.
    pub cursor: Cursor,
    /// What it says.
    pub kind: EventKind,
}

/// The kind of an event, with its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A service is published: the bytes of its descriptor, as the origin wrote them.
    Descriptor(Bytes),
    /// A service was removed.
    Tombstone {
        /// The service.
        service: ServiceName,
        /// The highest generation it had.
        generation: Generation,
    },
    /// The revision as of which the published content of a ref is current.
    Revision(RevisionSeen),
    /// All events so far were sent.
    Heartbeat,
    /// A shield's heartbeat: all events of its origins were sent as of some time ago.
    RelayedHeartbeat(RelayedHeartbeat),
    /// Earlier events are void: a snapshot follows.
    Resync,
    /// The snapshot is complete.
    SnapshotEnd,
    /// The access list as JSON; see [`crate::access_list`]. The last one applies.
    Access(Bytes),
    /// The origin gave up a repository, and another takes it. Says nothing about the existence of its services.
    Released(RepositoryName),
}

/// What a shield passes on when an origin sends it a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayedHeartbeat {
    /// Of the shield's origins, the one whose last heartbeat is the oldest.
    pub origin: String,
    /// The time since that heartbeat. On the wire in whole seconds, rounded up.
    pub age: Duration,
}

/// The published content of all services that follow a ref is current as of this revision. The owner of the repository
/// sends it when the revision or the reachability changes, and in each snapshot. It is never durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionSeen {
    /// The repository.
    pub repository: RepositoryName,
    /// The ref as configured, and as descriptors name it.
    pub followed_ref: String,
    /// The newest revision of the ref.
    pub revision_id: RevisionId,
    /// When the upstream last reported it.
    pub seen_at: SystemTime,
    /// The reachability of the upstream.
    pub upstream: Upstream,
}

/// The reachability of an upstream. Whole seconds, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstream {
    /// Whether the last poll succeeded.
    pub reachable: bool,
    /// Since when `reachable` has its value.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
}

/// A line is not an event.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    /// A line is longer than this many bytes.
    #[error("a line of the event stream is longer than {0} bytes")]
    TooLong(usize),
    /// Not JSON, or a field is wrong.
    #[error("a line of the event stream cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A required field is missing.
    #[error("an event `{event}` has no `{field}`")]
    Missing {
        /// The kind.
        event: &'static str,
        /// The field.
        field: &'static str,
    },
}

/// The fields of a document, by their names on the wire.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    event: std::borrow::Cow<'a, str>,
    cursor: Cursor,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    descriptor: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    service: Option<ServiceName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generation: Option<Generation>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    access: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    repository: Option<RepositoryName>,
    #[serde(borrow, rename = "ref", default, skip_serializing_if = "Option::is_none")]
    followed_ref: Option<std::borrow::Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revision_id: Option<RevisionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen_at: Option<Seconds>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    upstream: Option<Upstream>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    origin: Option<std::borrow::Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    age: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Seconds(#[serde(with = "rfc3339")] SystemTime);

impl EventKind {
    /// The value of `event`, and of a metric's label.
    pub fn as_str(&self) -> &'static str {
        match self {
            EventKind::Descriptor(_) => "descriptor",
            EventKind::Tombstone { .. } => "tombstone",
            EventKind::Revision(_) => "revision",
            EventKind::Heartbeat | EventKind::RelayedHeartbeat(_) => "heartbeat",
            EventKind::Resync => "resync",
            EventKind::SnapshotEnd => "snapshot_end",
            EventKind::Access(_) => "access",
            EventKind::Released(_) => "released",
        }
    }
}

impl Event {
    /// Parses a line without its end. `None`: an unknown kind, to be ignored.
    ///
    /// The bytes of a descriptor and of `access` are slices of the line.
    ///
    /// # Errors
    /// It is not JSON, or a field is missing or wrong.
    pub fn parse(line: &Bytes) -> Result<Option<Self>, EventError> {
        if line.len() > MAX_LINE_BYTES {
            return Err(EventError::TooLong(MAX_LINE_BYTES));
        }
        let read: Line<'_> = crate::json::from_slice(line)?;
        let missing = |event, field| EventError::Missing { event, field };
        let part = |raw: &RawValue| line.slice_ref(raw.get().as_bytes());
        let kind = match &*read.event {
            "descriptor" => {
                EventKind::Descriptor(part(read.descriptor.ok_or_else(|| missing("descriptor", "descriptor"))?))
            }
            "tombstone" => EventKind::Tombstone {
                service: read.service.ok_or_else(|| missing("tombstone", "service"))?,
                generation: read.generation.ok_or_else(|| missing("tombstone", "generation"))?,
            },
            "heartbeat" => match (read.origin, read.age) {
                (None, None) => EventKind::Heartbeat,
                (None, Some(_)) => return Err(missing("heartbeat", "origin")),
                (Some(_), None) => return Err(missing("heartbeat", "age")),
                (Some(origin), Some(age)) => {
                    let (origin, age) = (origin.into_owned(), Duration::from_secs(age));
                    EventKind::RelayedHeartbeat(RelayedHeartbeat { origin, age })
                }
            },
            "resync" => EventKind::Resync,
            "snapshot_end" => EventKind::SnapshotEnd,
            "access" => EventKind::Access(part(read.access.ok_or_else(|| missing("access", "access"))?)),
            "released" => EventKind::Released(read.repository.ok_or_else(|| missing("released", "repository"))?),
            "revision" => EventKind::Revision(RevisionSeen {
                repository: read.repository.ok_or_else(|| missing("revision", "repository"))?,
                followed_ref: read.followed_ref.ok_or_else(|| missing("revision", "ref"))?.into_owned(),
                revision_id: read.revision_id.ok_or_else(|| missing("revision", "revision_id"))?,
                seen_at: read.seen_at.ok_or_else(|| missing("revision", "seen_at"))?.0,
                upstream: read.upstream.ok_or_else(|| missing("revision", "upstream"))?,
            }),
            _ => return Ok(None),
        };
        Ok(Some(Self { cursor: read.cursor, kind }))
    }

    /// Encodes the event as a line with its end.
    ///
    /// # Errors
    /// The bytes of a descriptor or of `access` are not one JSON value, or contain a line break.
    pub fn line(&self) -> Result<Bytes, EventError> {
        let raw = |bytes: &Bytes| -> Result<Box<RawValue>, serde_json::Error> {
            // JSON may have line breaks only between tokens. Origins write none.
            if bytes.contains(&b'\n') {
                return Err(serde::de::Error::custom("the JSON contains a line break"));
            }
            serde_json::from_slice(bytes)
        };
        let (mut descriptor, mut access, mut tombstone, mut revision) = (None, None, (None, None), None);
        let (mut relayed, mut released) = (None, None);
        match &self.kind {
            EventKind::Descriptor(bytes) => descriptor = Some(raw(bytes)?),
            EventKind::Access(bytes) => access = Some(raw(bytes)?),
            EventKind::Tombstone { service, generation } => tombstone = (Some(service.clone()), Some(*generation)),
            EventKind::Revision(seen) => revision = Some(seen),
            EventKind::RelayedHeartbeat(heartbeat) => relayed = Some(heartbeat),
            EventKind::Released(repository) => released = Some(repository),
            EventKind::Heartbeat | EventKind::Resync | EventKind::SnapshotEnd => {}
        }
        let mut line = serde_json::to_vec(&Line {
            event: self.kind.as_str().into(),
            cursor: self.cursor.clone(),
            descriptor: descriptor.as_deref(),
            service: tombstone.0,
            generation: tombstone.1,
            access: access.as_deref(),
            repository: revision.map(|seen| &seen.repository).or(released).cloned(),
            followed_ref: revision.map(|seen| seen.followed_ref.as_str().into()),
            revision_id: revision.map(|seen| seen.revision_id.clone()),
            seen_at: revision.map(|seen| Seconds(seen.seen_at)),
            upstream: revision.map(|seen| seen.upstream),
            origin: relayed.map(|heartbeat| heartbeat.origin.as_str().into()),
            // Never younger than it is.
            age: relayed.map(|RelayedHeartbeat { age, .. }| age.as_secs() + u64::from(age.subsec_nanos() > 0)),
        })?;
        line.push(b'\n');
        // Many are kept for long.
        line.shrink_to_fit();
        Ok(line.into())
    }
}

/// Splits a body that arrives in parts into lines.
#[derive(Debug)]
pub struct Lines {
    buffer: BytesMut,
    /// There is no end of a line before this position.
    scanned: usize,
    limit: usize,
}

impl Default for Lines {
    fn default() -> Self {
        Self::with_limit(MAX_LINE_BYTES)
    }
}

impl Lines {
    /// Lines of at most `limit` bytes, without their ends.
    pub fn with_limit(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), scanned: 0, limit }
    }

    /// Appends a part of the body. When all lines are taken in between, at most a line and a part are buffered.
    pub fn push(&mut self, part: &[u8]) {
        self.buffer.extend_from_slice(part);
    }

    /// The next complete line without its end. `None`: more data is needed.
    ///
    /// # Errors
    /// [`EventError::TooLong`]; the stream cannot be continued.
    pub fn next_line(&mut self) -> Result<Option<Bytes>, EventError> {
        let Some(at) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') else {
            self.scanned = self.buffer.len();
            return if self.buffer.len() > self.limit { Err(EventError::TooLong(self.limit)) } else { Ok(None) };
        };
        let end = self.scanned + at;
        if end > self.limit {
            return Err(EventError::TooLong(self.limit));
        }
        let mut line = self.buffer.split_to(end + 1);
        line.truncate(end);
        self.scanned = 0;
        Ok(Some(line.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(kind: EventKind) -> Event {
        Event { cursor: "a1b2.7".parse().unwrap(), kind }
    }

    fn read(line: &'static str) -> Result<Option<Event>, EventError> {
        Event::parse(&Bytes::from_static(line.as_bytes()))
    }

    #[test]
    fn the_documented_lines_are_parsed() {
        let line = r#"{"event": "descriptor", "cursor": "a1b2.7", "descriptor": {"b" : 1,  "a":[ ]}}"#;
        let descriptor = Bytes::from_static(br#"{"b" : 1,  "a":[ ]}"#);
        assert_eq!(read(line).unwrap(), Some(event(EventKind::Descriptor(descriptor))), "byte for byte");
        let line = r#"{"generation": 9, "service": "shop", "cursor": "a1b2.7", "event": "tombstone", "later": {}}"#;
        let tombstone = EventKind::Tombstone { service: "shop".parse().unwrap(), generation: 9 };
        assert_eq!(read(line).unwrap(), Some(event(tombstone)));
        let line = r#"{"event": "revision", "cursor": "a1b2.7", "repository": "shop", "ref": "semver:1.x",
            "revision_id": "sha1:aa", "seen_at": "2026-11-20T09:30:00Z",
            "upstream": {"reachable": false, "since": "2026-11-20T09:31:00Z"}}"#;
        let seen_at = humantime::parse_rfc3339("2026-11-20T09:30:00Z").unwrap();
        let upstream = Upstream { reachable: false, since: seen_at + Duration::from_secs(60) };
        let (repository, revision_id) = ("shop".parse().unwrap(), "sha1:aa".parse().unwrap());
        let followed_ref = "semver:1.x".to_owned();
        let seen = RevisionSeen { repository, followed_ref, revision_id, seen_at, upstream };
        assert_eq!(read(line).unwrap(), Some(event(EventKind::Revision(seen))));
        let line = r#"{"event": "released", "cursor": "a1b2.7", "repository": "shop"}"#;
        assert_eq!(read(line).unwrap(), Some(event(EventKind::Released("shop".parse().unwrap()))));
        for (word, kind) in [
            ("heartbeat", EventKind::Heartbeat),
            ("resync", EventKind::Resync),
            ("snapshot_end", EventKind::SnapshotEnd),
        ] {
            let line = format!(r#"{{"event": "{word}", "cursor": "a1b2.7"}}"#);
            assert_eq!(Event::parse(&line.into()).unwrap(), Some(event(kind)));
        }
        let relayed = RelayedHeartbeat { origin: "o:7400".to_owned(), age: Duration::from_secs(3) };
        let line = r#"{"event": "heartbeat", "cursor": "a1b2.7", "origin": "o:7400", "age": 3}"#;
        assert_eq!(read(line).unwrap(), Some(event(EventKind::RelayedHeartbeat(relayed.clone()))));
        let younger = RelayedHeartbeat { age: Duration::from_millis(2001), ..relayed };
        let written = event(EventKind::RelayedHeartbeat(younger)).line().unwrap();
        assert!(written.ends_with(b"\"origin\":\"o:7400\",\"age\":3}\n"), "rounded up: {written:?}");
        assert_eq!(read(r#"{"event": "of the future", "cursor": "x", "service": "a", "n": 1}"#).unwrap(), None);
    }

    #[test]
    fn malformed_events_have_clear_errors() {
        for (line, expected) in [
            ("", "cannot be read"),
            ("{}", "`event`"),
            (r#"{"event": "heartbeat"}"#, "`cursor`"),
            (r#"{"event": "heartbeat", "cursor": "a", "origin": "o"}"#, "no `age`"),
            (r#"{"event": "heartbeat", "cursor": "a", "age": 1}"#, "no `origin`"),
            (r#"{"event": "heartbeat", "cursor": ""}"#, "a cursor is"),
            (r#"{"event": "heartbeat", "cursor": "a b"}"#, "a cursor is"),
            (r#"{"event": "descriptor", "cursor": "a"}"#, "`descriptor` has no `descriptor`"),
            (r#"{"event": "tombstone", "cursor": "a", "generation": 1}"#, "no `service`"),
            (r#"{"event": "tombstone", "cursor": "a", "service": "a"}"#, "no `generation`"),
            (r#"{"event": "tombstone", "cursor": "a", "service": "A", "generation": 1}"#, "is not a service name"),
            (r#"{"event": "access", "cursor": "a"}"#, "`access` has no `access`"),
            (r#"{"event": "revision", "cursor": "a", "repository": "shop"}"#, "no `ref`"),
            (r#"{"event": "released", "cursor": "a"}"#, "no `repository`"),
            (r#"{"event": "released", "cursor": "a", "repository": "A"}"#, "is not a repository name"),
            (r#"{"event": "heartbeat", "cursor": "a"} {}"#, "trailing"),
        ] {
            let error = read(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
        let broken = event(EventKind::Descriptor(Bytes::from_static(b"{\n}")));
        assert!(broken.line().unwrap_err().to_string().contains("line break"));
        assert!(event(EventKind::Access(Bytes::from_static(b"{} {}"))).line().is_err());
    }

    #[test]
    fn lines_are_bounded() {
        let mut lines = Lines::with_limit(4);
        lines.push(b"1234");
        assert!(lines.next_line().unwrap().is_none());
        lines.push(b"\n12345");
        assert_eq!(lines.next_line().unwrap().unwrap(), "1234");
        assert!(matches!(lines.next_line(), Err(EventError::TooLong(_))));
        let mut lines = Lines::with_limit(4);
        lines.push(b"12345\n");
        assert!(matches!(lines.next_line(), Err(EventError::TooLong(_))));
    }

    fn any_json() -> impl Strategy<Value = Bytes> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<String>().prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
        .prop_map(|value| value.to_string().into())
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let kind = prop_oneof![
            any_json().prop_map(EventKind::Descriptor),
            any_json().prop_map(EventKind::Access),
            (".{0,20}", any::<bool>(), 0u64..4_000_000_000).prop_map(|(followed_ref, reachable, at)| {
                let seen_at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(at);
                EventKind::Revision(RevisionSeen {
                    repository: "shop".parse().unwrap(),
                    followed_ref,
                    revision_id: "sha1:aa".parse().unwrap(),
                    seen_at,
                    upstream: Upstream { reachable, since: seen_at },
                })
            }),
            ("[a-z0-9][a-z0-9._-]{0,99}", any::<u64>()).prop_map(|(service, generation)| EventKind::Tombstone {
                service: service.parse().unwrap(),
                generation,
            }),
            "[a-z0-9][a-z0-9._-]{0,99}".prop_map(|repository| EventKind::Released(repository.parse().unwrap())),
            Just(EventKind::Heartbeat),
            Just(EventKind::Resync),
            Just(EventKind::SnapshotEnd),
        ];
        ("[A-Za-z0-9._-]{1,100}", kind).prop_map(|(cursor, kind)| Event { cursor: cursor.parse().unwrap(), kind })
    }

    proptest! {
        #[test]
        fn events_round_trip_in_chunks_of_any_size(
            events in proptest::collection::vec(any_event(), 0..8), cut in 1usize..200,
        ) {
            let whole: Vec<u8> = events.iter().flat_map(|event| event.line().unwrap()).collect();
            let (mut lines, mut read) = (Lines::default(), Vec::new());
            for part in whole.chunks(cut) {
                lines.push(part);
                while let Some(line) = lines.next_line().unwrap() {
                    read.push(Event::parse(&line).unwrap().unwrap());
                }
            }
            prop_assert_eq!(read, events);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Event::parse(&bytes.into());
        }
    }
}

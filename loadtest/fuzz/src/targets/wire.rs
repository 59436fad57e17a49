//! What nodes send each other: descriptors, events, lists of members, polls of agents and what they run, freshness statements.

use weir_protocol::agent_event::AgentEvent;
use weir_protocol::batch_poll::{BatchPoll, MAX_ROWS};
use weir_protocol::descriptor::{Descriptor, MAX_DESCRIPTOR_BYTES};
use weir_protocol::event::{Event, Lines};
use weir_protocol::freshness::{Freshness, HeartbeatAnswer, HeartbeatRequest, MAX_SERVICES};
use weir_protocol::members::{MAX_MEMBERS, Members};
use weir_protocol::observed::{AgentObserved, EdgeObserved, MAX_MESSAGE_BYTES};
use weir_protocol::token::PublicKey;

pub(crate) fn descriptor(bytes: &[u8]) {
    let Ok(read) = Descriptor::parse(bytes.to_vec().into()) else { return };
    assert_eq!(read.bytes(), bytes, "what is forwarded is what came");
    assert!(bytes.len() <= MAX_DESCRIPTOR_BYTES);
    let again = Descriptor::parse(read.bytes().clone()).expect("it was read before");
    assert_eq!((again.version(), again.etag()), (read.version(), read.etag()));
}

/// A stream that comes in parts of a size that the first byte says.
pub(crate) fn event_stream(bytes: &[u8]) {
    const LIMIT: usize = 1000;
    let Some((size, stream)) = bytes.split_first() else { return };
    let mut lines = Lines::with_limit(LIMIT);
    let mut read = Vec::new();
    'stream: for part in stream.chunks(usize::from(*size).max(1)) {
        lines.push(part);
        loop {
            match lines.next_line() {
                Ok(Some(line)) => read.push(line),
                Ok(None) => break,
                Err(_) => break 'stream,
            }
        }
    }
    let whole = stream.split(|byte| *byte == b'\n');
    for (line, whole) in read.iter().zip(whole) {
        assert!(line.len() <= LIMIT && line == whole, "however the stream is cut, its lines are the same");
        let Ok(Some(event)) = Event::parse(line) else { continue };
        let written = event.line().expect("what was read from one line can be written in one");
        assert_eq!(Event::parse(&written.slice(..written.len() - 1)).expect("it was written"), Some(event));
    }
}

pub(crate) fn members(bytes: &[u8]) {
    let Ok(read) = Members::parse(bytes) else { return };
    assert!(read.members.len() <= MAX_MEMBERS);
    assert_eq!(Members::parse(&read.to_json()).expect("it was read before"), read);
}

pub(crate) fn batch_poll(bytes: &[u8]) {
    let Ok(read) = BatchPoll::parse(bytes) else { return };
    assert!(read.services().len() <= MAX_ROWS && read.services().is_sorted_by(|a, b| a.service < b.service));
    assert_eq!(BatchPoll::parse(&read.to_json()).expect("it was read before"), read);
}

pub(crate) fn agent_events(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(Some(event)) = AgentEvent::parse(line) else { continue };
        let written = event.line();
        assert_eq!(AgentEvent::parse(&written).expect("it was written"), Some(event));
    }
}

/// What an agent or an edge says that agents run.
pub(crate) fn observed(bytes: &[u8]) {
    // Fields that a message may leave out are written, so that one of nothing else may be too long then.
    if let Ok(read) = AgentObserved::parse(bytes) {
        let json = serde_json::to_vec(&read).expect("plain data");
        assert!(json.len() > MAX_MESSAGE_BYTES || AgentObserved::parse(&json).expect("it was written") == read);
    }
    let Ok(read) = EdgeObserved::parse(bytes) else { return };
    let json = serde_json::to_vec(&read).expect("plain data");
    assert!(json.len() > MAX_MESSAGE_BYTES || EdgeObserved::parse(&json).expect("it was written") == read);
}

/// A request or an answer, and the statements in it, which no key has signed.
pub(crate) fn heartbeats(bytes: &[u8]) {
    if let Ok(read) = HeartbeatRequest::parse(bytes) {
        assert!(read.services.len() <= MAX_SERVICES);
        assert_eq!(HeartbeatRequest::parse(&read.to_json()).expect("it was read before"), read);
    }
    let Ok(read) = HeartbeatAnswer::parse(bytes) else { return };
    assert!(read.services.len() <= MAX_SERVICES);
    assert_eq!(HeartbeatAnswer::parse(&read.to_json()).expect("it was read before"), read);
    let key = PublicKey::new([7; 32]);
    assert!(read.services.iter().all(|signed| Freshness::signed_by(&signed.envelope, &key).is_none()));
}

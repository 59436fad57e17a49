//! The answer to a request for a blob, and what may go wrong with it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::sync::Semaphore;
use weir_shared::process::serve::{Body, BoxError};

/// What goes wrong with one answer to a request for a blob: with the first that reaches the place where it goes wrong.
#[derive(Clone)]
pub(crate) enum Fault {
    /// The first half of the blob comes, the rest when the gate opens.
    Gate(Arc<Semaphore>),
    /// Nothing of it comes before the gate opens.
    Hold(Arc<Semaphore>),
    /// The first half of the blob comes, and when the gate opens it breaks off.
    GateAndBreak(Arc<Semaphore>),
    /// All of it comes, and its end when the gate opens.
    EndLate(Arc<Semaphore>),
    /// It breaks off after this many bytes of the answer.
    Break(usize),
    /// A bit is wrong.
    Flip,
    /// A bit of this byte of the blob is wrong.
    FlipAt(usize),
    /// There is more than there should be.
    Longer,
    /// A range is answered with everything.
    RangeIgnored,
    /// A range is answered with another one.
    OtherRange,
    /// It is not there.
    Missing,
    /// Not now: after this many seconds.
    Refuse(u64),
}

impl Fault {
    /// Whether an answer with this part of a blob of `length` bytes reaches the place.
    fn is_reached(&self, part: &Range<usize>, length: usize) -> bool {
        match self {
            Fault::Gate(_) | Fault::GateAndBreak(_) => part.contains(&(length / 2)),
            Fault::Break(after) => *after <= part.len(),
            Fault::FlipAt(at) => part.contains(at),
            _ => true,
        }
    }
}

/// The bytes that a request is for, of a blob of `length`.
pub(super) fn requested(range: Option<&str>, length: usize) -> Range<usize> {
    let range = range.map(|range| range["bytes=".len()..].split_once('-').unwrap());
    let first = range.map_or(0, |(first, _)| first.parse().unwrap());
    first..range.and_then(|(_, last)| last.parse::<usize>().ok()).map_or(length, |last| length.min(last + 1))
}

/// What goes wrong with the answer that has this part of a blob of `length` bytes.
pub(super) fn fault(faults: &mut VecDeque<Fault>, part: &Range<usize>, length: usize) -> Option<Fault> {
    faults.pop_front_if(|fault| fault.is_reached(part, length))
}

/// The answer with a part of a blob.
pub(super) fn answer(blob: &Bytes, mut part: Range<usize>, fault: Option<Fault>) -> Response<Body> {
    let length = blob.len();
    match fault {
        Some(Fault::RangeIgnored) => part = 0..length,
        Some(Fault::OtherRange) => part.start += 1,
        _ => {}
    }
    let bytes = blob.slice(part.clone());
    let flipped = |at: usize| {
        let mut wrong = bytes.to_vec();
        wrong[at] ^= 0x10;
        Body::from(wrong)
    };
    let body = match fault {
        Some(Fault::Flip) => flipped(bytes.len() / 3),
        Some(Fault::FlipAt(at)) => flipped(at - part.start),
        Some(Fault::Longer) => Body::from([&bytes[..], b"more"].concat()),
        Some(Fault::Break(after)) => steps(vec![Step::Send(bytes.slice(..after)), Step::Break]),
        Some(Fault::Gate(gate)) => {
            let half = length / 2 - part.start;
            steps(vec![Step::Send(bytes.slice(..half)), Step::Wait(gate), Step::Send(bytes.slice(half..))])
        }
        Some(Fault::GateAndBreak(gate)) => {
            steps(vec![Step::Send(bytes.slice(..length / 2 - part.start)), Step::Wait(gate), Step::Break])
        }
        Some(Fault::EndLate(gate)) => steps(vec![Step::Send(bytes), Step::Wait(gate)]),
        Some(Fault::Hold(gate)) => steps(vec![Step::Wait(gate), Step::Send(bytes)]),
        _ => Body::from(bytes),
    };
    let mut response = Response::new(body);
    if part != (0..length) {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let range = format!("bytes {}-{}/{length}", part.start, part.end - 1);
        response.headers_mut().insert(header::CONTENT_RANGE, range.parse().unwrap());
    }
    response
}

enum Step {
    Send(Bytes),
    Wait(Arc<Semaphore>),
    Break,
}

fn steps(steps: Vec<Step>) -> Body {
    let frames = stream::unfold(VecDeque::from(steps), |mut steps| async move {
        loop {
            match steps.pop_front()? {
                Step::Send(bytes) => return Some((Ok(Frame::data(bytes)), steps)),
                Step::Wait(gate) => gate.acquire().await.unwrap().forget(),
                Step::Break => {
                    // What was sent before is on its way by then: the client gets it, and then the reset.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    return Some((Err(BoxError::from("as the test wants it")), steps));
                }
            }
        }
    });
    Body::stream(StreamBody::new(Box::pin(frames)))
}

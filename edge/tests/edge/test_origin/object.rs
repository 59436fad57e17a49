//! The answer to a request for an object, and what may go wrong with it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::sync::Semaphore;
use weir_runtime::serve::{Body, BoxError};

/// What goes wrong with one answer to a request for an object.
#[derive(Clone)]
pub(crate) enum Fault {
    /// The first half comes, the rest when the gate opens.
    Gate(Arc<Semaphore>),
    /// Nothing comes before the gate opens.
    Hold(Arc<Semaphore>),
    /// The first half comes, and when the gate opens it breaks off.
    GateAndBreak(Arc<Semaphore>),
    /// All of it comes, and its end when the gate opens.
    EndLate(Arc<Semaphore>),
    /// It breaks off after this many bytes.
    Break(usize),
    /// A bit is wrong.
    Flip,
    /// There is more than there should be.
    Longer,
    /// It is not there.
    Missing,
    /// Not now: after this many seconds.
    Refuse(u64),
}

/// The answer with an object.
pub(super) fn answer(object: &Bytes, fault: Option<Fault>) -> Response<Body> {
    let half = object.len() / 2;
    let (first, rest) = (object.slice(..half), object.slice(half..));
    Response::new(match fault {
        Some(Fault::Flip) => {
            let mut wrong = object.to_vec();
            wrong[half] ^= 0x10;
            Body::from(wrong)
        }
        Some(Fault::Longer) => Body::from([&object[..], b"more"].concat()),
        Some(Fault::Break(after)) => steps(vec![Step::Send(object.slice(..after)), Step::Break]),
        Some(Fault::Gate(gate)) => steps(vec![Step::Send(first), Step::Wait(gate), Step::Send(rest)]),
        Some(Fault::GateAndBreak(gate)) => steps(vec![Step::Send(first), Step::Wait(gate), Step::Break]),
        Some(Fault::EndLate(gate)) => steps(vec![Step::Send(object.clone()), Step::Wait(gate)]),
        Some(Fault::Hold(gate)) => steps(vec![Step::Wait(gate), Step::Send(object.clone())]),
        _ => Body::from(object.clone()),
    })
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

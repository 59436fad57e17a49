//! HTTP/2 answers that nobody takes.
//!
//! A client may go on with a connection and allow one of its answers no byte, for as long as it likes. hyper has no
//! limit for that; but it has each answer run by an executor, and when an answer is dropped its stream is reset. So they
//! are run by [`Answers`], which watches the bodies: one that gave a part and is not asked for more waits for the
//! client.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::body::{Body, BoxError};
use super::connection_metrics::Protocol;
use super::metrics::ListenerMetrics;

/// A part of a body up to this many bytes may be left to the connection's buffers when the answer's task ends.
const SMALL_PART: usize = 16 << 10;

tokio::task_local! {
    static PROGRESS: Progress;
}

/// Where the body of an answer stands: how often it was asked for a part, and in the lowest bit whether it gave one.
#[derive(Debug, Clone, Default)]
struct Progress(Arc<AtomicU64>);

impl Progress {
    fn asked(&self, gave: bool) {
        let asked = (self.0.load(Ordering::Relaxed) >> 1) + 1;
        self.0.store(asked << 1 | u64::from(gave), Ordering::Relaxed);
    }

    /// Which part it is that the client has not taken yet.
    fn waits_for_client(&self) -> Option<u64> {
        let state = self.0.load(Ordering::Relaxed);
        (state & 1 == 1).then_some(state)
    }
}

/// Runs the answers of a connection.
pub(super) struct Answers {
    /// How long a client may take nothing of an answer.
    pub(super) stall_timeout: Duration,
    pub(super) metrics: ListenerMetrics,
}

impl Answers {
    /// Runs an answer, until it is done or its client has taken nothing of it for too long.
    pub(super) async fn run(self: Arc<Self>, answer: impl Future) {
        let progress = Progress::default();
        let answer = pin!(PROGRESS.scope(progress.clone(), answer));
        if !is_taken(answer, &progress, self.stall_timeout).await {
            self.metrics.stalled(Protocol::Http2);
        }
    }
}

/// Runs an answer to its end. False: the client has taken nothing of it for too long.
async fn is_taken(mut answer: Pin<&mut impl Future>, progress: &Progress, stall_timeout: Duration) -> bool {
    let mut waiting: Option<(u64, Pin<Box<Sleep>>)> = None;
    poll_fn(|cx| {
        if answer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        let Some(part) = progress.waits_for_client() else {
            waiting = None;
            return Poll::Pending;
        };
        let (waits_for, sleep) = waiting.get_or_insert_with(|| (part, Box::pin(tokio::time::sleep(stall_timeout))));
        if *waits_for != part {
            *waits_for = part;
            sleep.as_mut().reset(Instant::now() + stall_timeout);
        }
        sleep.as_mut().poll(cx).map(|()| false)
    })
    .await
}

/// A body whose progress is seen by [`Answers`], when it is they who run the answer.
pub(super) fn watched(body: Body) -> Body {
    if matches!(body, Body::Empty) {
        return body;
    }
    match PROGRESS.try_with(Progress::clone) {
        Ok(progress) => Body::stream(Watched { body, progress, kept_back: None }),
        Err(_) => body,
    }
}

struct Watched {
    body: Body,
    progress: Progress,
    /// The last byte of all. hyper takes it only once the client has allowed everything before it: until then the
    /// answer's task lives, and can be ended.
    kept_back: Option<Bytes>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = match self.kept_back.take() {
            Some(last) => Poll::Ready(Some(Ok(Frame::data(last)))),
            None => Pin::new(&mut self.body).poll_frame(cx),
        };
        self.progress.asked(matches!(polled, Poll::Ready(Some(Ok(_)))));
        polled.map(|part| {
            part.map(|part| {
                part.map(|frame| match frame.into_data() {
                    Ok(mut data) if data.len() > SMALL_PART && self.body.is_end_stream() => {
                        self.kept_back = Some(data.split_off(data.len() - 1));
                        Frame::data(data)
                    }
                    Ok(data) => Frame::data(data),
                    Err(frame) => frame,
                })
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.kept_back.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kept_back {
            Some(last) => SizeHint::with_exact(last.len() as u64),
            None => self.body.size_hint(),
        }
    }
}

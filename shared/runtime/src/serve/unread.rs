//! The rest of a request's body that nobody reads.
//!
//! A response may be complete before its request; HTTP/2 then resets the stream with `NO_ERROR` (RFC 9113 section 8.1).
//! Some clients, curl 7.88 among them, treat that as a failure and lose the response. So a short rest of the body is read
//! first. Flow control limits how much a client sends at once (RFC 9113 section 6.9.1).

use std::time::Duration;

use h2::RecvStream;
use http::{Method, header, request};
use tokio::sync::oneshot;

/// The rest is read up to this many bytes, and to the end of the frame that exceeds them.
const MAX_BYTES: usize = 512 << 10;

/// How long reading the rest may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Whether the rest of a request is read before its response is sent. GET and HEAD usually have no body, and a client that
/// sent `Expect: 100-continue` waits with it.
pub(super) fn must_be_drained(head: &request::Parts) -> bool {
    !matches!(head.method, Method::GET | Method::HEAD) && !head.headers.contains_key(header::EXPECT)
}

/// The body of a request over HTTP/2. If it is dropped before its end, [`UnreadBody`] receives it.
#[derive(Debug)]
pub struct Http2Body {
    stream: Option<RecvStream>,
    back: Option<oneshot::Sender<RecvStream>>,
}

/// Receives the body that the handler did not read to its end.
#[derive(Debug)]
pub(super) struct UnreadBody(oneshot::Receiver<RecvStream>);

impl Http2Body {
    /// The body, and the receiver of its rest if it has one and must be drained.
    pub(super) fn new(stream: RecvStream, must_be_drained: bool) -> (Self, Option<UnreadBody>) {
        if !must_be_drained || stream.is_end_stream() {
            return (Self { stream: Some(stream), back: None }, None);
        }
        let (back, unread) = oneshot::channel();
        (Self { stream: Some(stream), back: Some(back) }, Some(UnreadBody(unread)))
    }

    pub(super) fn stream(&self) -> &RecvStream {
        self.stream.as_ref().expect("only drop takes it")
    }

    pub(super) fn stream_mut(&mut self) -> &mut RecvStream {
        self.stream.as_mut().expect("only drop takes it")
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take())
            && !stream.is_end_stream()
        {
            // The receiver is gone if the stream was reset.
            let _ = back.send(stream);
        }
    }
}

impl UnreadBody {
    /// Reads the rest, within the limits, and returns the stream: dropping it before its end resets it.
    pub(super) async fn take(mut self) -> Option<RecvStream> {
        // Nothing to do if the handler still holds the body.
        let mut stream = self.0.try_recv().ok()?;
        let taken = async {
            let mut taken = 0;
            while taken <= MAX_BYTES {
                let Some(Ok(part)) = stream.data().await else { return };
                taken += part.len();
                if stream.flow_control().release_capacity(part.len()).is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(TIMEOUT, taken).await;
        Some(stream)
    }
}

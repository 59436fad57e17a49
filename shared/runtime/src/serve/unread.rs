//! The rest of a request's body that nobody reads.
//!
//! An answer may come before its request has ended; HTTP/2 then resets the stream, without an error (RFC 9113 section
//! 8.1). Some clients take that for a failure and lose the answer, curl 7.88 among them. So what is on its way is taken
//! first, if it is little and comes soon. A client sends no more than this end's windows allow, or its connection ends
//! (RFC 9113 section 6.9.1): nothing here has to bound what comes at once.

use std::time::Duration;

use h2::RecvStream;
use http::{Method, header, request};
use tokio::sync::oneshot;

/// So many bytes are taken, and what comes with them.
const MOST_BYTES: usize = 512 << 10;

/// So long it may take.
const LONGEST: Duration = Duration::from_secs(5);

/// Whether the rest of a request is waited for before its answer is sent. GET and HEAD have no body, as a rule, and who
/// expects to be told to go on sends nothing before.
pub(super) fn is_waited_for(head: &request::Parts) -> bool {
    !matches!(head.method, Method::GET | Method::HEAD) && !head.headers.contains_key(header::EXPECT)
}

/// The body of a request over HTTP/2. Dropped before its end, it goes back to whoever answers.
#[derive(Debug)]
pub struct Http2Body {
    /// There until it is dropped.
    stream: Option<RecvStream>,
    back: Option<oneshot::Sender<RecvStream>>,
}

/// Where it goes back to.
#[derive(Debug)]
pub(super) struct Unread(oneshot::Receiver<RecvStream>);

impl Http2Body {
    /// A body that comes; and where it comes back, when it is waited for and there is anything of it.
    pub(super) fn new(stream: RecvStream, is_waited_for: bool) -> (Self, Option<Unread>) {
        if !is_waited_for || stream.is_end_stream() {
            return (Self { stream: Some(stream), back: None }, None);
        }
        let (back, unread) = oneshot::channel();
        (Self { stream: Some(stream), back: Some(back) }, Some(Unread(unread)))
    }

    pub(super) fn stream(&self) -> &RecvStream {
        self.stream.as_ref().expect("it is there until it is dropped")
    }

    pub(super) fn stream_mut(&mut self) -> &mut RecvStream {
        self.stream.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take())
            && !stream.is_end_stream()
        {
            // Nobody waits for one of a stream that was reset.
            let _ = back.send(stream);
        }
    }
}

impl Unread {
    /// Takes the rest, within the bounds. The stream is given back: it is reset when it is dropped before its end.
    pub(super) async fn take(mut self) -> Option<RecvStream> {
        // Whoever goes on reading it after the answer has its own reasons.
        let mut stream = self.0.try_recv().ok()?;
        let taken = async {
            let mut taken = 0;
            while taken <= MOST_BYTES {
                let Some(Ok(part)) = stream.data().await else { return };
                taken += part.len();
                if stream.flow_control().release_capacity(part.len()).is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(LONGEST, taken).await;
        Some(stream)
    }
}

//! A TCP connection that is closed only after the client has taken what was sent.
//!
//! An answer may lie in the system's buffers for long after it was written. When the socket is closed meanwhile and the
//! client then sends anything (over HTTP/2 it does: how much it has taken), the system answers with a reset and throws
//! away what is left. So the closing side says that it is done, and reads on until the client has gone too.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::delegate::delegate;

/// How long a client that was told of the end may say nothing before it is taken for gone.
const QUIET: Duration = Duration::from_secs(5);

/// How long a client is waited for at the most, whatever it says: as long as a thin line needs for what the system
/// holds of an answer.
const LONGEST: Duration = Duration::from_secs(300);

/// What a client may say after it was told of the end, in bytes. To take the rest of an answer needs little: a client
/// that says more does not listen.
const MAX_DISCARDED: usize = 1 << 20;

/// Bytes that are read at a time, and thrown away.
const SCRATCH: usize = 4 << 10;

/// A stream whose shutdown ends when the peer has closed its side too, or says nothing any more.
pub(super) struct Lingering<S> {
    stream: S,
    /// From the moment on when this side is closed.
    closed: Option<Closed>,
}

struct Closed {
    since: Instant,
    quiet: Pin<Box<Sleep>>,
    discarded: usize,
}

impl Closed {
    fn new() -> Self {
        Self { since: Instant::now(), quiet: Box::pin(tokio::time::sleep(QUIET)), discarded: 0 }
    }

    /// The client has said something. False: it is waited for no longer.
    fn heard(&mut self, bytes: usize) -> bool {
        self.discarded += bytes;
        self.quiet.as_mut().reset((Instant::now() + QUIET).min(self.since + LONGEST));
        self.discarded <= MAX_DISCARDED
    }
}

impl<S> Lingering<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, closed: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    delegate!(poll_read);
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    delegate!(writes, is_write_vectored, poll_flush);

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, closed } = &mut *self;
        if closed.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
        }
        let closed = closed.get_or_insert_with(Closed::new);
        loop {
            let mut scratch = [0; SCRATCH];
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() && closed.heard(buffer.filled().len()) => {}
                // However it went, it has gone, or is to.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return closed.quiet.as_mut().poll(cx).map(Ok),
            }
        }
    }
}

//! Lingering close: a TCP connection is closed only after the client has received everything.
//!
//! A response may stay in the kernel's buffers long after it was written. If the socket is closed meanwhile and the client
//! then sends anything (an HTTP/2 client sends WINDOW_UPDATE), the kernel resets the connection and discards the rest. So
//! this side shuts down its sending half, and reads until the client has closed too.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::delegate::delegate;

/// How long a client may send nothing after the shutdown before it counts as gone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest wait for a client that keeps sending: as long as a slow line needs for the kernel's buffer.
const MAX_LINGER: Duration = Duration::from_secs(300);

/// Bytes that a client may send after the shutdown. A client that sends more ignores the shutdown.
const MAX_DISCARDED: usize = 1 << 20;

/// Bytes that are read and discarded at a time.
const SCRATCH: usize = 4 << 10;

/// A stream whose shutdown ends when the peer has closed its side too, or has gone.
pub(super) struct Lingering<S> {
    stream: S,
    /// Set once this side is shut down.
    closed: Option<Closed>,
}

struct Closed {
    since: Instant,
    idle: Pin<Box<Sleep>>,
    discarded: usize,
}

impl Closed {
    fn new() -> Self {
        Self { since: Instant::now(), idle: Box::pin(tokio::time::sleep(IDLE_TIMEOUT)), discarded: 0 }
    }

    /// Counts bytes from the client. False: it sent too many.
    fn received(&mut self, bytes: usize) -> bool {
        self.discarded += bytes;
        self.idle.as_mut().reset((Instant::now() + IDLE_TIMEOUT).min(self.since + MAX_LINGER));
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
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() && closed.received(buffer.filled().len()) => {}
                // The client closed, failed, or sent too much: the socket can be closed.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return closed.idle.as_mut().poll(cx).map(Ok),
            }
        }
    }
}

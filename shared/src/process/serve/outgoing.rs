//! What leaves over a TCP connection: gathered into large writes while the connection's task works, and given up when the
//! client takes nothing of it.
//!
//! It lies beneath TLS. What TLS could not write it keeps, and writes together with what comes after: so "not now" is all
//! that gathering needs, and nothing is copied for it.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What is written although more is to come, in bytes: TLS keeps no more than 64 KiB.
const ENOUGH: usize = 48 << 10;

/// What the connection's task and its stream tell each other.
#[derive(Debug, Clone, Default)]
pub(super) struct Outbox(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_gathering: AtomicBool,
    is_stalled: AtomicBool,
}

impl Outbox {
    /// From now on writes may wait for more, until [`Outbox::close`]. Who opens it closes it before it waits: nobody
    /// is woken for what is gathered.
    pub(super) fn open(&self) {
        self.0.is_gathering.store(true, Ordering::Relaxed);
    }

    /// What was gathered can be written: by a flush.
    pub(super) fn close(&self) {
        self.0.is_gathering.store(false, Ordering::Relaxed);
    }

    /// Whether the connection was given up because its client took nothing.
    pub(super) fn is_stalled(&self) -> bool {
        self.0.is_stalled.load(Ordering::Relaxed)
    }

    fn is_gathering(&self) -> bool {
        self.0.is_gathering.load(Ordering::Relaxed)
    }
}

/// A TCP stream, beneath TLS. Its writes fail once the system has taken nothing for a while: its buffers are full, and the
/// client does not empty them.
pub(super) struct Outgoing<S> {
    stream: S,
    outbox: Outbox,
    stall_timeout: Duration,
    /// From the moment on when the system takes no more.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Outgoing<S> {
    pub(super) fn new(stream: S, outbox: Outbox, stall_timeout: Duration) -> Self {
        Self { stream, outbox, stall_timeout, waiting: None }
    }

    /// What a write gives, unless it has been waited for too long.
    fn in_time<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.stall_timeout)));
        ready!(waiting.as_mut().poll(cx));
        self.outbox.0.is_stalled.store(true, Ordering::Relaxed);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of what it is sent")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Outgoing<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Outgoing<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.len() < ENOUGH && self.outbox.is_gathering() {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.in_time(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.outbox.is_gathering() && bytes.iter().map(|part| part.len()).sum::<usize>() < ENOUGH {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.in_time(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The stream above TLS: while its outbox gathers, a flush is for later.
pub(super) struct Gathered<S> {
    stream: S,
    outbox: Outbox,
}

impl<S> Gathered<S> {
    pub(super) fn new(stream: S, outbox: Outbox) -> Self {
        Self { stream, outbox }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outbox.is_gathering() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

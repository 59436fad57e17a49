//! A TCP connection that is cut when its client takes nothing of what it is sent.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connection_metrics::Protocol;
use super::metrics::ListenerMetrics;

/// A stream whose writes fail once the system has taken nothing for a while: its buffers are full, and the client does
/// not empty them.
pub(super) struct Impatient<S> {
    stream: S,
    stall_timeout: Duration,
    /// From the moment on when the system takes no more.
    waiting: Option<Pin<Box<Sleep>>>,
    protocol: Protocol,
    metrics: ListenerMetrics,
}

impl<S> Impatient<S> {
    pub(super) fn new(stream: S, stall_timeout: Duration, protocol: Protocol, metrics: ListenerMetrics) -> Self {
        Self { stream, stall_timeout, waiting: None, protocol, metrics }
    }

    /// What a write gives, unless it has been waited for too long.
    fn in_time<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.stall_timeout)));
        waiting.as_mut().poll(cx).map(|()| {
            self.metrics.stalled(self.protocol);
            Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of what it is sent"))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.in_time(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.in_time(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.in_time(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut_down = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.in_time(shut_down, cx)
    }
}

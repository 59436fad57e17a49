//! The sending side of a TCP connection: small writes are coalesced while the connection's task handles requests, and writes
//! fail when the client accepts nothing.
//!
//! It is below TLS, which keeps what it could not write and sends it with later data. So coalescing needs no buffer: a write
//! returns `Pending`.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::minimum_rate::MIN_BYTES;
use crate::delegate::delegate;

/// Writes of this many bytes are not held back: TLS buffers no more than 64 KiB.
const MAX_COALESCED: usize = 48 << 10;

/// Shared by a connection's task and its socket: the task decides when writes are held back.
#[derive(Debug, Clone, Default)]
pub(super) struct WriteCoalescer(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_coalescing: AtomicBool,
    is_stalled: AtomicBool,
}

impl WriteCoalescer {
    /// Holds writes back until [`WriteCoalescer::end`]. The task must call that before it waits: a write that is held back
    /// registers no waker.
    pub(super) fn begin(&self) {
        self.0.is_coalescing.store(true, Ordering::Relaxed);
    }

    /// Lets the next flush write the bytes that were held back.
    pub(super) fn end(&self) {
        self.0.is_coalescing.store(false, Ordering::Relaxed);
    }

    /// Whether a write failed because the client accepted nothing.
    pub(super) fn is_stalled(&self) -> bool {
        self.0.is_stalled.load(Ordering::Relaxed)
    }

    fn is_coalescing(&self) -> bool {
        self.0.is_coalescing.load(Ordering::Relaxed)
    }
}

/// A TCP stream below TLS. Its writes fail when the kernel's buffer has been full for the stall timeout.
pub(super) struct ClientSocket {
    stream: TcpStream,
    coalescer: WriteCoalescer,
    stall_timeout: Duration,
    /// Runs while the kernel's buffer is full.
    stall_timer: Option<Pin<Box<Sleep>>>,
}

impl ClientSocket {
    pub(super) fn new(stream: TcpStream, coalescer: WriteCoalescer, stall_timeout: Duration) -> Self {
        Self { stream, coalescer, stall_timeout, stall_timer: None }
    }

    /// The result of a write, or an error after the stall timeout. `bytes`: what is to be written next.
    fn within_stall_timeout(
        &mut self,
        written: Poll<io::Result<usize>>,
        bytes: &[u8],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stall_timer = None;
            return written;
        }
        let stall_timer = self.stall_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.stall_timeout)));
        ready!(stall_timer.as_mut().poll(cx));
        self.stall_timer = None;
        let sent = self.try_send(bytes);
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.coalescer.0.is_stalled.store(true, Ordering::Relaxed);
            let error = io::Error::new(io::ErrorKind::TimedOut, "the client accepts no data");
            return Poll::Ready(Err(error));
        }
        Poll::Ready(sent)
    }

    /// Sends up to [`MIN_BYTES`] without waiting for writability: the kernel reports a socket as writable only when about half
    /// of its buffer is free, which takes minutes with a slow client.
    fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        SockRef::from(&self.stream).send(&bytes[..bytes.len().min(MIN_BYTES)])
    }
}

impl AsyncRead for ClientSocket {
    delegate!(poll_read);
}

impl AsyncWrite for ClientSocket {
    delegate!(is_write_vectored, poll_flush, poll_shutdown);

    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.len() < MAX_COALESCED && self.coalescer.is_coalescing() {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.within_stall_timeout(written, bytes, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.coalescer.is_coalescing() && bytes.iter().map(|part| part.len()).sum::<usize>() < MAX_COALESCED {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        let first = bytes.iter().find(|part| !part.is_empty());
        self.within_stall_timeout(written, first.map_or(&[], |part| part), cx)
    }
}

/// The stream above TLS: a flush does nothing while writes are coalesced.
pub(super) struct CoalescedFlush<S> {
    stream: S,
    coalescer: WriteCoalescer,
}

impl<S> CoalescedFlush<S> {
    pub(super) fn new(stream: S, coalescer: WriteCoalescer) -> Self {
        Self { stream, coalescer }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CoalescedFlush<S> {
    delegate!(poll_read);
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CoalescedFlush<S> {
    delegate!(writes, is_write_vectored, poll_shutdown);

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.coalescer.is_coalescing() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket};

    use super::super::tcp::MAX_UNSENT;
    use super::*;

    const STALL_TIMEOUT: Duration = Duration::from_secs(2);

    /// A socket as servers use it, and a client with a small receive buffer.
    async fn pair() -> (ClientSocket, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let client = TcpSocket::new_v4().unwrap();
        client.set_recv_buffer_size(8 << 10).unwrap();
        let client = client.connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        SockRef::from(&server).set_tcp_notsent_lowat(MAX_UNSENT).unwrap();
        (ClientSocket::new(server, WriteCoalescer::default(), STALL_TIMEOUT), client)
    }

    #[tokio::test]
    async fn a_slow_client_is_not_disconnected() {
        let (mut server, mut client) = pair().await;
        let writing = async {
            loop {
                server.write_all(&[7; 16 << 10]).await.unwrap();
            }
        };
        // Much less in each period than the kernel frees before it reports the socket as writable.
        let reading = async {
            let mut chunk = [0; 4 << 10];
            for _ in 0..64 {
                tokio::time::sleep(STALL_TIMEOUT / 16).await;
                client.read_exact(&mut chunk).await.unwrap();
                assert_eq!(chunk, [7; 4 << 10]);
            }
        };
        tokio::select! { () = writing => {} () = reading => {} }
    }
}

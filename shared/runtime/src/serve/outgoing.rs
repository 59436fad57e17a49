//! The sending side of a TCP connection: small writes are coalesced while the connection's task works, and the connection is
//! closed when the client takes nothing.
//!
//! It is beneath TLS, which keeps what it could not write and sends it with what comes next. So coalescing needs no buffer:
//! it is enough to say "not now".

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

/// Bytes that are written although more is to come: TLS buffers no more than 64 KiB.
const ENOUGH: usize = 48 << 10;

/// Shared by a connection's task and its stream: the task says when writes may wait for more.
#[derive(Debug, Clone, Default)]
pub(super) struct WriteCoalescer(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_coalescing: AtomicBool,
    is_stalled: AtomicBool,
}

impl WriteCoalescer {
    /// Lets writes wait for more until [`WriteCoalescer::end`]. The task ends it before it waits itself: nothing wakes it for
    /// what was held back.
    pub(super) fn begin(&self) {
        self.0.is_coalescing.store(true, Ordering::Relaxed);
    }

    /// Lets the next flush write what was held back.
    pub(super) fn end(&self) {
        self.0.is_coalescing.store(false, Ordering::Relaxed);
    }

    /// Whether the connection failed because its client took nothing.
    pub(super) fn is_stalled(&self) -> bool {
        self.0.is_stalled.load(Ordering::Relaxed)
    }

    fn is_coalescing(&self) -> bool {
        self.0.is_coalescing.load(Ordering::Relaxed)
    }
}

/// A TCP stream, beneath TLS. Its writes fail once the kernel has taken nothing for the stall timeout: its buffers are full,
/// and the client does not empty them.
pub(super) struct Outgoing {
    stream: TcpStream,
    coalescer: WriteCoalescer,
    stall_timeout: Duration,
    /// From the moment on when the system takes no more.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Outgoing {
    pub(super) fn new(stream: TcpStream, coalescer: WriteCoalescer, stall_timeout: Duration) -> Self {
        Self { stream, coalescer, stall_timeout, waiting: None }
    }

    /// What a write gives, unless it has been waited for too long; `bytes`: what comes next.
    fn in_time(
        &mut self,
        written: Poll<io::Result<usize>>,
        bytes: &[u8],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.stall_timeout)));
        ready!(waiting.as_mut().poll(cx));
        self.waiting = None;
        let tried = self.try_now(bytes);
        if tried.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.coalescer.0.is_stalled.store(true, Ordering::Relaxed);
            let error = io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of what it is sent");
            return Poll::Ready(Err(error));
        }
        Poll::Ready(tried)
    }

    /// Writes a little, without asking first whether there is room: the system says so only when about half of what it
    /// holds has gone, which at a slow client's takes minutes. No more than the client is to take until the next time.
    fn try_now(&self, bytes: &[u8]) -> io::Result<usize> {
        SockRef::from(&self.stream).send(&bytes[..bytes.len().min(MIN_BYTES)])
    }
}

impl AsyncRead for Outgoing {
    delegate!(poll_read);
}

impl AsyncWrite for Outgoing {
    delegate!(is_write_vectored, poll_flush, poll_shutdown);

    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.len() < ENOUGH && self.coalescer.is_coalescing() {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.in_time(written, bytes, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.coalescer.is_coalescing() && bytes.iter().map(|part| part.len()).sum::<usize>() < ENOUGH {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        let first = bytes.iter().find(|part| !part.is_empty());
        self.in_time(written, first.map_or(&[], |part| part), cx)
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

    /// A stream as servers have it, and a client that holds next to nothing.
    async fn pair() -> (Outgoing, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let client = TcpSocket::new_v4().unwrap();
        client.set_recv_buffer_size(8 << 10).unwrap();
        let client = client.connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        SockRef::from(&server).set_tcp_notsent_lowat(MAX_UNSENT).unwrap();
        (Outgoing::new(server, WriteCoalescer::default(), STALL_TIMEOUT), client)
    }

    #[tokio::test]
    async fn a_client_that_takes_its_bytes_slowly_is_not_cut() {
        let (mut server, mut client) = pair().await;
        let writing = async {
            loop {
                server.write_all(&[7; 16 << 10]).await.unwrap();
            }
        };
        // Much less in each time than the system lets go before it says that there is room.
        let reading = async {
            let mut some = [0; 4 << 10];
            for _ in 0..64 {
                tokio::time::sleep(STALL_TIMEOUT / 16).await;
                client.read_exact(&mut some).await.unwrap();
                assert_eq!(some, [7; 4 << 10]);
            }
        };
        tokio::select! { () = writing => {} () = reading => {} }
    }
}

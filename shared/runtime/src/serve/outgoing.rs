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

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::patience::LEAST;
use crate::passed_on::passed_on;

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
pub(super) struct Outgoing {
    stream: TcpStream,
    outbox: Outbox,
    stall_timeout: Duration,
    /// From the moment on when the system takes no more.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Outgoing {
    pub(super) fn new(stream: TcpStream, outbox: Outbox, stall_timeout: Duration) -> Self {
        Self { stream, outbox, stall_timeout, waiting: None }
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
            self.outbox.0.is_stalled.store(true, Ordering::Relaxed);
            let error = io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of what it is sent");
            return Poll::Ready(Err(error));
        }
        Poll::Ready(tried)
    }

    /// Writes a little, without asking first whether there is room: the system says so only when about half of what it
    /// holds has gone, which at a slow client's takes minutes. No more than the client is to take until the next time.
    fn try_now(&self, bytes: &[u8]) -> io::Result<usize> {
        SockRef::from(&self.stream).send(&bytes[..bytes.len().min(LEAST)])
    }
}

impl AsyncRead for Outgoing {
    passed_on!(poll_read);
}

impl AsyncWrite for Outgoing {
    passed_on!(is_write_vectored, poll_flush, poll_shutdown);

    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.len() < ENOUGH && self.outbox.is_gathering() {
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
        if self.outbox.is_gathering() && bytes.iter().map(|part| part.len()).sum::<usize>() < ENOUGH {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        let first = bytes.iter().find(|part| !part.is_empty());
        self.in_time(written, first.map_or(&[], |part| part), cx)
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
    passed_on!(poll_read);
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    passed_on!(writes, is_write_vectored, poll_shutdown);

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outbox.is_gathering() {
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
        (Outgoing::new(server, Outbox::default(), STALL_TIMEOUT), client)
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

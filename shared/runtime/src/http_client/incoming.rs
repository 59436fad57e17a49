//! What comes over a connection, beneath TLS: read in large parts, and in turns with those who take it.
//!
//! rustls asks for 4 KiB at a time, which would be four calls of the system for each record. And a connection from which
//! there is always more to read would keep its thread: those for whom it brings bytes would wait, and the bytes be gone
//! from the processor's cache, or lie in fresh memory, when they take them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::delegate::delegate;

/// Bytes that are read at a time.
const PART: usize = 64 << 10;

/// Bytes after which others have their turn.
const TURN: usize = 128 << 10;

/// A stream whose reads are gathered, and interrupted now and then.
#[derive(Debug)]
pub struct Incoming<S> {
    stream: S,
    part: Box<[u8]>,
    /// What of it was read and not taken yet.
    untaken: std::ops::Range<usize>,
    /// Bytes that were read without a pause.
    in_turn: usize,
}

impl<S> Incoming<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, part: vec![0; PART].into(), untaken: 0..0, in_turn: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Incoming<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, wanted: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let incoming = self.get_mut();
        if incoming.untaken.is_empty() {
            if incoming.in_turn >= TURN {
                incoming.in_turn = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut part = ReadBuf::new(&mut incoming.part);
            let read = Pin::new(&mut incoming.stream).poll_read(cx, &mut part);
            incoming.untaken = 0..part.filled().len();
            incoming.in_turn = if read.is_pending() { 0 } else { incoming.in_turn + incoming.untaken.len() };
            ready!(read)?;
        }
        let taken = incoming.untaken.len().min(wanted.remaining());
        let start = incoming.untaken.start;
        wanted.put_slice(&incoming.part[start..start + taken]);
        incoming.untaken.start += taken;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Incoming<S> {
    delegate!(writes, is_write_vectored, poll_flush, poll_shutdown);
}

impl<S: Connection> Connection for Incoming<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt;

    use super::*;

    /// A stream that always has more, and counts how often it is asked.
    struct Endless {
        next: u8,
        asked: usize,
    }

    impl AsyncRead for Endless {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, wanted: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.asked += 1;
            while wanted.remaining() > 0 {
                wanted.put_slice(&[self.next]);
                self.next = (self.next + 1) % 251;
            }
            Poll::Ready(Ok(()))
        }
    }

    fn endless() -> Incoming<Endless> {
        Incoming::new(Endless { next: 0, asked: 0 })
    }

    #[tokio::test]
    async fn all_comes_in_order_whatever_is_taken_at_a_time_and_in_few_reads() {
        let mut incoming = endless();
        let mut bytes = Vec::new();
        for at_a_time in [1, 4096, 5, 300_000, 4096, 100_000].repeat(3) {
            let mut taken = vec![0; at_a_time];
            incoming.read_exact(&mut taken).await.unwrap();
            bytes.extend(taken);
        }
        assert!(bytes.iter().zip(0_usize..).all(|(byte, place)| usize::from(*byte) == place % 251));
        assert_eq!(incoming.stream.asked, bytes.len().div_ceil(PART));
    }

    #[test]
    fn others_have_their_turn_while_there_is_always_more() {
        let mut incoming = endless();
        let mut cx = Context::from_waker(Waker::noop());
        let mut in_turn = || {
            let mut read = 0;
            loop {
                let mut chunk = [0; 4096];
                let mut wanted = ReadBuf::new(&mut chunk);
                match Pin::new(&mut incoming).poll_read(&mut cx, &mut wanted) {
                    Poll::Ready(read_one) => read_one.unwrap(),
                    Poll::Pending => return read,
                }
                read += wanted.filled().len();
            }
        };
        assert_eq!([in_turn(), in_turn(), in_turn()], [TURN; 3]);
    }

    #[tokio::test]
    async fn an_end_is_an_end() {
        let mut incoming = Incoming::new(&b"abc"[..]);
        let mut bytes = Vec::new();
        incoming.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes, b"abc");
    }
}

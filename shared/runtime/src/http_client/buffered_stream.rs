//! The receiving side of a TCP connection, below TLS: buffered, and with a budget for reads without a pause.
//!
//! rustls reads 4 KiB at a time, which would be four system calls for each record. And a connection that always has data
//! would never yield its thread: the tasks that consume the data would wait, and find it evicted from the processor's cache.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::delegate::delegate;

/// Bytes that are read at a time.
const BUFFER_SIZE: usize = 64 << 10;

/// Bytes after which a read yields to other tasks.
const READ_BUDGET: usize = 128 << 10;

/// A stream with a read buffer and a read budget.
#[derive(Debug)]
pub struct BufferedStream<S> {
    stream: S,
    buffer: Box<[u8]>,
    /// The part of the buffer that is filled and not consumed.
    unread: std::ops::Range<usize>,
    /// Bytes that were read since the last pause.
    read_since_yield: usize,
}

impl<S> BufferedStream<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, buffer: vec![0; BUFFER_SIZE].into(), unread: 0..0, read_since_yield: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BufferedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, wanted: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.unread.is_empty() {
            if this.read_since_yield >= READ_BUDGET {
                this.read_since_yield = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut buffer = ReadBuf::new(&mut this.buffer);
            let read = Pin::new(&mut this.stream).poll_read(cx, &mut buffer);
            this.unread = 0..buffer.filled().len();
            this.read_since_yield = if read.is_pending() { 0 } else { this.read_since_yield + this.unread.len() };
            ready!(read)?;
        }
        let taken = this.unread.len().min(wanted.remaining());
        let start = this.unread.start;
        wanted.put_slice(&this.buffer[start..start + taken]);
        this.unread.start += taken;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BufferedStream<S> {
    delegate!(writes, is_write_vectored, poll_flush, poll_shutdown);
}

impl<S: Connection> Connection for BufferedStream<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt;

    use super::*;

    /// A stream that always has data, and counts its reads.
    struct Endless {
        next: u8,
        reads: usize,
    }

    impl AsyncRead for Endless {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, wanted: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.reads += 1;
            while wanted.remaining() > 0 {
                wanted.put_slice(&[self.next]);
                self.next = (self.next + 1) % 251;
            }
            Poll::Ready(Ok(()))
        }
    }

    fn endless() -> BufferedStream<Endless> {
        BufferedStream::new(Endless { next: 0, reads: 0 })
    }

    #[tokio::test]
    async fn reads_of_any_size_get_all_bytes_in_order_with_few_system_calls() {
        let mut stream = endless();
        let mut bytes = Vec::new();
        for at_a_time in [1, 4096, 5, 300_000, 4096, 100_000].repeat(3) {
            let mut taken = vec![0; at_a_time];
            stream.read_exact(&mut taken).await.unwrap();
            bytes.extend(taken);
        }
        assert!(bytes.iter().zip(0_usize..).all(|(byte, offset)| usize::from(*byte) == offset % 251));
        assert_eq!(stream.stream.reads, bytes.len().div_ceil(BUFFER_SIZE));
    }

    #[test]
    fn a_read_yields_after_its_budget() {
        let mut stream = endless();
        let mut cx = Context::from_waker(Waker::noop());
        let mut read_since_yield = || {
            let mut read = 0;
            loop {
                let mut chunk = [0; 4096];
                let mut wanted = ReadBuf::new(&mut chunk);
                match Pin::new(&mut stream).poll_read(&mut cx, &mut wanted) {
                    Poll::Ready(read_one) => read_one.unwrap(),
                    Poll::Pending => return read,
                }
                read += wanted.filled().len();
            }
        };
        assert_eq!([read_since_yield(), read_since_yield(), read_since_yield()], [READ_BUDGET; 3]);
    }

    #[tokio::test]
    async fn the_end_of_the_stream_is_passed_on() {
        let mut stream = BufferedStream::new(&b"abc"[..]);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes, b"abc");
    }
}

//! The streams that h3 speaks over, from quinn.
//!
//! h3-quinn provides all but the streams of requests. Those are ours, for two things that h3-quinn's cannot do: tell
//! when the peer has all of an answer (quinn takes megabytes of it long before), and leave a request alone while it
//! is still being read.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use quinn::{ConnectionError, ReadError, VarInt, WriteError};
use tokio_util::task::TaskTracker;

use crate::process::shutdown::Drain;

/// Bytes of a request that are read at a time.
const READ_CHUNK: usize = 4 << 10;

/// An answer up to this long travels in a packet or two, and nobody waits for their acknowledgement. In bytes.
const UNWATCHED: u64 = 2 << 10;

type Accepting = Pin<Box<dyn Future<Output = Result<(quinn::SendStream, quinn::RecvStream), ConnectionError>> + Send>>;

/// A connection as h3 wants it.
pub(super) struct Connection {
    others: h3_quinn::Connection,
    connection: quinn::Connection,
    accepting: Option<Accepting>,
    unacknowledged: Unacknowledged,
}

/// The answers that were written and that the peer does not have in full yet.
#[derive(Clone)]
pub(super) struct Unacknowledged {
    pub(super) answers: TaskTracker,
    pub(super) drain: Drain,
}

/// The stream of a request, both ways.
pub(super) struct RequestStream {
    sender: SendStream,
    receiver: RecvStream,
}

/// Its half that answers.
pub(super) struct SendStream {
    stream: quinn::SendStream,
    writing: Option<WriteBuf<Bytes>>,
    written: u64,
    unacknowledged: Unacknowledged,
}

/// Its half that asks.
pub(super) struct RecvStream {
    stream: quinn::RecvStream,
}

impl Connection {
    pub(super) fn new(connection: quinn::Connection, unacknowledged: Unacknowledged) -> Self {
        Self { others: h3_quinn::Connection::new(connection.clone()), connection, accepting: None, unacknowledged }
    }
}

impl quic::Connection<Bytes> for Connection {
    type RecvStream = h3_quinn::RecvStream;
    type OpenStreams = Self;

    fn poll_accept_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Self::RecvStream, ConnectionErrorIncoming>> {
        quic::Connection::<Bytes>::poll_accept_recv(&mut self.others, cx)
    }

    fn poll_accept_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<RequestStream, ConnectionErrorIncoming>> {
        let connection = &self.connection;
        let accepting = self.accepting.get_or_insert_with(|| {
            let connection = connection.clone();
            Box::pin(async move { connection.accept_bi().await })
        });
        let accepted = ready!(accepting.as_mut().poll(cx));
        self.accepting = None;
        let (sender, receiver) = accepted.map_err(connection_error)?;
        let unacknowledged = self.unacknowledged.clone();
        Poll::Ready(Ok(RequestStream {
            sender: SendStream { stream: sender, writing: None, written: 0, unacknowledged },
            receiver: RecvStream { stream: receiver },
        }))
    }

    fn opener(&self) -> Self {
        Self::new(self.connection.clone(), self.unacknowledged.clone())
    }
}

impl quic::OpenStreams<Bytes> for Connection {
    type BidiStream = RequestStream;
    type SendStream = h3_quinn::SendStream<Bytes>;

    fn poll_open_bidi(&mut self, _: &mut Context<'_>) -> Poll<Result<RequestStream, StreamErrorIncoming>> {
        Poll::Ready(Err(StreamErrorIncoming::Unknown("a server asks nothing of its clients".into())))
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        quic::OpenStreams::<Bytes>::poll_open_send(&mut self.others, cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        quic::OpenStreams::<Bytes>::close(&mut self.others, code, reason);
    }
}

impl quic::SendStream<Bytes> for SendStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        if let Some(data) = &mut self.writing {
            while data.has_remaining() {
                let stream = Pin::new(&mut self.stream);
                let written = ready!(stream.poll_write(cx, data.chunk())).map_err(write_error)?;
                data.advance(written);
                self.written += written as u64;
            }
        }
        self.writing = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        if self.writing.is_some() {
            return Err(StreamErrorIncoming::Unknown("what was sent before is not written yet".into()));
        }
        self.writing = Some(data.into());
        Ok(())
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        ready!(self.poll_ready(cx))?;
        self.stream.finish().map_err(|error| StreamErrorIncoming::Unknown(error.into()))?;
        let Unacknowledged { answers, drain } = &self.unacknowledged;
        if self.written > UNWATCHED || drain.has_begun() {
            let (acknowledged, unacknowledged) = (self.stream.stopped(), answers.token());
            drain.spawn(async move {
                let _ = acknowledged.await;
                drop(unacknowledged);
            });
        }
        Poll::Ready(Ok(()))
    }

    fn reset(&mut self, reset_code: u64) {
        let _ = self.stream.reset(VarInt::from_u64(reset_code).unwrap_or(VarInt::MAX));
    }

    fn send_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

impl quic::RecvStream for RecvStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        let mut chunk = vec![0; READ_CHUNK];
        let read = ready!(self.stream.poll_read(cx, &mut chunk)).map_err(read_error)?;
        chunk.truncate(read);
        Poll::Ready(Ok((read > 0).then(|| chunk.into())))
    }

    fn stop_sending(&mut self, error_code: u64) {
        let _ = self.stream.stop(VarInt::from_u64(error_code).unwrap_or(VarInt::MAX));
    }

    fn recv_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

impl quic::SendStream<Bytes> for RequestStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.sender.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.sender.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.sender.poll_finish(cx)
    }

    fn reset(&mut self, reset_code: u64) {
        self.sender.reset(reset_code);
    }

    fn send_id(&self) -> StreamId {
        self.sender.send_id()
    }
}

impl quic::RecvStream for RequestStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.receiver.poll_data(cx)
    }

    fn stop_sending(&mut self, error_code: u64) {
        self.receiver.stop_sending(error_code);
    }

    fn recv_id(&self) -> StreamId {
        self.receiver.recv_id()
    }
}

impl quic::BidiStream<Bytes> for RequestStream {
    type SendStream = SendStream;
    type RecvStream = RecvStream;

    fn split(self) -> (SendStream, RecvStream) {
        (self.sender, self.receiver)
    }
}

fn stream_id(id: quinn::StreamId) -> StreamId {
    u64::from(VarInt::from(id)).try_into().expect("both count streams as QUIC does")
}

fn connection_error(error: ConnectionError) -> ConnectionErrorIncoming {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose { error_code: close.error_code.into() }
        }
        ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        error => ConnectionErrorIncoming::Undefined(Arc::new(error)),
    }
}

fn lost(error: ConnectionError) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error: connection_error(error) }
}

fn write_error(error: WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() },
        WriteError::ConnectionLost(error) => lost(error),
        error => StreamErrorIncoming::Unknown(error.into()),
    }
}

fn read_error(error: ReadError) -> StreamErrorIncoming {
    match error {
        ReadError::Reset(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() },
        ReadError::ConnectionLost(error) => lost(error),
        error => StreamErrorIncoming::Unknown(error.into()),
    }
}

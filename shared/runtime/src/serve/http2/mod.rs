//! HTTP/2, by the h2 crate, which is also what hyper serves it with.
//!
//! hyper makes a task of each request. For a poll that costs as much as its answer does, and the connection writes before
//! the other requests that came with it are answered. Here the requests that came together are gathered; those that
//! need not wait are answered in the connection's own task, and leave in one write
//! ([why](../../../../../docs/decisions/0007-answer-polls-in-the-connection-task.md)).

mod answer;
mod keep_alive;

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, server};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};

use self::answer::Answer;
use self::keep_alive::KeepAlive;
use super::outgoing::WriteCoalescer;
use super::tcp::Shared;
use super::{Handler, MAX_HEADER_BYTES};

/// Requests that one connection may have under way.
const MAX_STREAMS: u32 = 128;

/// Streams of a connection that its client has reset before they were looked at. One more, and it is closed: that is how
/// "rapid reset" begins (CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 20;

/// Streams of a connection that this end has reset for what its client did wrong. One more, and it is closed.
const MAX_ERROR_RESETS: usize = 128;

/// What is held of an answer on its way, in bytes.
const MAX_SEND_BUFFER: usize = 128 << 10;

/// A connection.
pub(super) struct Connection<S, H> {
    connection: server::Connection<S, Bytes>,
    coalescer: WriteCoalescer,
    keep_alive: Option<KeepAlive>,
    shared: Arc<Shared<H>>,
    /// What was asked and is not looked at yet. The client bounds it: it may have only so many streams open.
    asked: Vec<Asked>,
}

type Asked = (Request<RecvStream>, SendResponse<Bytes>);

impl<S: AsyncRead + AsyncWrite + Unpin, H: Handler> Connection<S, H> {
    /// Waits for the client's first words.
    ///
    /// # Errors
    /// It speaks something else, or has gone.
    pub(super) async fn begin(stream: S, coalescer: WriteCoalescer, shared: Arc<Shared<H>>) -> Result<Self, h2::Error> {
        let mut connection = server::Builder::new()
            .max_header_list_size(MAX_HEADER_BYTES as u32)
            .max_concurrent_streams(MAX_STREAMS)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(Some(MAX_ERROR_RESETS))
            .initial_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .max_frame_size(64 << 10)
            .max_send_buffer_size(MAX_SEND_BUFFER)
            .handshake(stream)
            .await?;
        let keep_alive = connection.ping_pong().map(KeepAlive::new);
        Ok(Self { connection, coalescer, keep_alive, shared, asked: Vec::new() })
    }

    /// Tells the client to go elsewhere; what it has asked is answered.
    pub(super) fn go_away(&mut self) {
        self.connection.graceful_shutdown();
    }

    /// Answers until there is nothing more to answer. What has to wait is answered by tasks of its own.
    ///
    /// # Errors
    /// The connection broke, or its client broke a rule.
    pub(super) async fn drive(&mut self) -> Result<(), h2::Error> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        self.coalescer.begin();
        let polled = self.poll_gathering(cx);
        self.coalescer.end();
        // What was gathered is written now.
        if polled.is_pending() { self.poll_gathering(cx) } else { polled }
    }

    fn poll_gathering(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            let is_idle = !self.connection.has_streams();
            if self.keep_alive.as_mut().is_some_and(|keep_alive| keep_alive.has_gone(cx, is_idle)) {
                self.connection.abrupt_shutdown(Reason::NO_ERROR);
            }
            let accepted = pin!(self.connection.accept()).poll(cx);
            match accepted {
                Poll::Ready(Some(asked)) => self.asked.push(asked?),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending if self.asked.is_empty() => return Poll::Pending,
                // Afterwards once more: there are answers to write.
                Poll::Pending => self.answer_all(),
            }
        }
    }

    fn answer_all(&mut self) {
        self.shared.was_asked.store(true, Ordering::Relaxed);
        let mut now = Instant::now();
        for (request, respond) in self.asked.drain(..) {
            let answer = Answer::new(self.shared.clone(), request.method().clone(), respond);
            // A panic has been told already; it is this stream's alone, which is reset when the answer is dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| answer.begin(request, &mut now)));
        }
    }
}

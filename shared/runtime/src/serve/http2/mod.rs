//! HTTP/2, by the h2 crate, which is also what hyper serves it with.
//!
//! hyper spawns a task for each request. For a poll that costs as much as the response does, and the connection writes
//! before it has handled the other requests of the same read. Here the requests of one read are handled together in the
//! connection's own task, unless they have to wait, and their responses leave in one write
//! ([why](../../../../../docs/decisions/0007-answer-polls-in-the-connection-task.md)).

mod keep_alive;
mod response;

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, server};
use http::{Request, Version};
use tokio::io::{AsyncRead, AsyncWrite};

use self::keep_alive::KeepAlive;
use self::response::PendingResponse;
use super::client_socket::WriteCoalescer;
use super::exchange::Exchange;
use super::tcp_context::Shared;
use super::{Handler, MAX_HEADER_BYTES};

/// Concurrent requests of one connection.
const MAX_STREAMS: u32 = 128;

/// Streams of a connection that its client may reset before the server has accepted them. One more closes the connection:
/// this is how "rapid reset" begins (CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 20;

/// Streams of a connection that the server may reset for protocol errors. One more closes the connection.
const MAX_ERROR_RESETS: usize = 128;

/// Bytes of a response that are buffered.
const MAX_SEND_BUFFER: usize = 128 << 10;

/// A connection.
pub(super) struct Connection<S, H> {
    connection: server::Connection<S, Bytes>,
    coalescer: WriteCoalescer,
    keep_alive: Option<KeepAlive>,
    shared: Arc<Shared<H>>,
    /// Requests that were received and not handled yet: at most [`MAX_STREAMS`].
    received: Vec<ReceivedRequest>,
}

type ReceivedRequest = (Request<RecvStream>, SendResponse<Bytes>);

impl<S: AsyncRead + AsyncWrite + Unpin, H: Handler> Connection<S, H> {
    /// Performs the HTTP/2 handshake.
    ///
    /// # Errors
    /// The client does not speak HTTP/2, or has gone.
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
        Ok(Self { connection, coalescer, keep_alive, shared, received: Vec::new() })
    }

    /// Sends GOAWAY; the requests in flight still get their responses.
    pub(super) fn go_away(&mut self) {
        self.connection.graceful_shutdown();
    }

    /// Closes the connection once the requests in flight have their responses, whether or not the client answers the GOAWAY.
    ///
    /// # Errors
    /// The connection broke, or its client violated the protocol.
    pub(super) async fn finish(&mut self) -> Result<(), h2::Error> {
        poll_fn(|cx| {
            let polled = self.poll(cx);
            if polled.is_pending() && !self.connection.has_streams() {
                self.connection.abrupt_shutdown(Reason::NO_ERROR);
                return self.poll(cx);
            }
            polled
        })
        .await
    }

    /// Serves requests until the connection ends.
    ///
    /// # Errors
    /// The connection broke, or its client violated the protocol.
    pub(super) async fn drive(&mut self) -> Result<(), h2::Error> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        self.coalescer.begin();
        let polled = self.poll_coalesced(cx);
        self.coalescer.end();
        // Writes the responses that were held back.
        if polled.is_pending() { self.poll_coalesced(cx) } else { polled }
    }

    fn poll_coalesced(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            let is_idle = !self.connection.has_streams();
            if self.keep_alive.as_mut().is_some_and(|keep_alive| keep_alive.is_dead(cx, is_idle)) {
                self.connection.abrupt_shutdown(Reason::NO_ERROR);
            }
            let accepted = pin!(self.connection.accept()).poll(cx);
            match accepted {
                Poll::Ready(Some(request)) => self.received.push(request?),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending if self.received.is_empty() => return Poll::Pending,
                // The loop then polls once more, which queues the responses.
                Poll::Pending => self.respond_all(),
            }
        }
    }

    fn respond_all(&mut self) {
        let mut now = Instant::now();
        for (mut request, respond) in self.received.drain(..) {
            let response = {
                let exchange = Exchange::begin(Version::HTTP_2, &mut request, now);
                PendingResponse::new(self.shared.clone(), exchange, respond)
            };
            // The panic hook has logged a panic. It resets this stream alone, by dropping the response.
            let _ = catch_unwind(AssertUnwindSafe(|| response.begin(request, &mut now)));
        }
    }
}

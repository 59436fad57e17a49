//! What requests over TCP share: the properties of their listener, and what they know of their connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Response;

use super::access_log::Record;
use super::connection_metrics::{Bound, Transport};
use super::exchange::Exchange;
use super::metrics::ListenerMetrics;
use super::{Body, HEAD_TIMEOUT, MAX_CONNECTIONS, Peer, SOURCE_SHARE, STALL_TIMEOUT, accepts, timeout_unless};
use crate::shutdown::Drain;

/// How long an idle HTTP/1.1 connection stays open: longer than the poll interval of agents.
const MAX_IDLE: Duration = Duration::from_secs(75);

/// The properties of a TCP listener.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// Concurrent connections; further clients wait in the kernel's backlog.
    pub max_connections: usize,
    /// Concurrent connections of one source address; further ones are closed.
    pub max_per_source: usize,
    /// How long a TLS handshake may take, and then the time to the first accepted request.
    pub head_timeout: Duration,
    /// How long an HTTP/1.1 connection may take from a response to the end of the next request's headers. Idle HTTP/2
    /// clients get a ping instead.
    pub max_idle: Duration,
    /// How long a client may accept no byte of a response.
    pub stall_timeout: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            max_connections: MAX_CONNECTIONS,
            max_per_source: MAX_CONNECTIONS / SOURCE_SHARE,
            head_timeout: HEAD_TIMEOUT,
            max_idle: MAX_IDLE,
            stall_timeout: STALL_TIMEOUT,
        }
    }
}

/// What all requests of a connection share.
pub(super) struct Shared<H> {
    pub(super) handler: H,
    pub(super) metrics: ListenerMetrics,
    pub(super) peer: Arc<Peer>,
    pub(super) options: TcpOptions,
    pub(super) drain: Drain,
    pub(super) has_requested: AtomicBool,
    /// Whether one of its requests was accepted.
    pub(super) is_accepted: AtomicBool,
}

impl<H> Shared<H> {
    /// Resolves when the client has had no accepted request in time.
    pub(super) async fn first_accepted_timeout(&self) {
        timeout_unless(&self.is_accepted, self.options.head_timeout).await;
        self.metrics.limited(Transport::Tcp, Bound::FirstRequest);
    }

    /// Counts the response to a request, as [`ListenerMetrics::responded`] does.
    pub(super) fn responded(
        &self,
        exchange: &Exchange,
        begun: Option<Box<Record>>,
        response: &mut Response<Body>,
        took: Duration,
    ) -> Option<Box<Record>> {
        if accepts(response.status()) && !self.is_accepted.load(Ordering::Relaxed) {
            self.is_accepted.store(true, Ordering::Relaxed);
        }
        self.metrics.responded(exchange, begun, &self.peer, response, took)
    }
}

//! HTTP/3 (RFC 9114) over QUIC by quinn, for `GET` and `HEAD`.
//!
//! The framing is our own, for two reasons that were measured. A poll's answer is a few hundred bytes of header: in
//! the usual wiring its coding, and handing it from task to task, cost several times what QUIC does. And an answer must
//! be whole or reset, and under way until the client has all of it, which needs the streams themselves. What is not
//! needed is not here: no dynamic table, no push, no request bodies, no `CONNECT`.
//!
//! The handshake is awaited before the first stream is looked at: taking streams earlier hung some clients.

mod admission;
mod connection;
mod control;
mod control_frames;
mod error;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod head;
mod head_reader;
mod qpack;
mod request;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use quinn::{Endpoint, Incoming};
use rustls::pki_types::CertificateDer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::admission::Admission;
use self::control::Outgoing;
use self::error::Code;
use self::request::{Context, Turns};
use super::connection_metrics::{Bound, HandshakeFailure, Protocol, Transport};
use super::metrics::ListenerMetrics;
use super::quic_metrics::Observed;
use super::{
    HEAD_TIMEOUT, Handler, MAX_CONNECTIONS, Peer, STALL_TIMEOUT, ServerTls, handshake_limit_in_drain, silence,
};
use crate::identity::Identity;
use crate::shutdown::Drain;

/// How much of a stream that nobody reads is kept, in bytes: the head of a request fits, and a body is not wanted.
const STREAM_WINDOW: u32 = 32 << 10;

/// What is held of answers on their way, for each connection, in bytes: whatever line or reader is slow, it costs this
/// much memory. In flight at once it is 160 Mbit/s to a client 100 ms away.
const SEND_WINDOW: u64 = 2 << 20;

/// How long the last connections of a drain may take to close when all that they were asked has arrived.
const CLOSING: Duration = Duration::from_secs(1);

/// The properties of a QUIC listener.
#[derive(Debug, Clone)]
pub struct QuicOptions {
    /// How long a silent connection is kept. Longer than the interval of polls, or every poll pays a handshake.
    pub max_idle: Duration,
    /// Requests that one connection may have under way.
    pub max_concurrent_streams: u32,
    /// How long a request may take from the opening of its stream to the end of its head.
    pub head_timeout: Duration,
    /// How long a client may take nothing of an answer.
    pub stall_timeout: Duration,
    /// Connections at a time; clients beyond it are refused.
    pub max_connections: usize,
    /// Handshakes that may be under way before clients have to prove their address first.
    pub max_unvalidated_handshakes: usize,
    /// Handshakes that may be under way at all.
    pub max_handshakes: usize,
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self {
            max_idle: Duration::from_secs(120),
            max_concurrent_streams: 100,
            head_timeout: HEAD_TIMEOUT,
            stall_timeout: STALL_TIMEOUT,
            max_connections: MAX_CONNECTIONS,
            max_unvalidated_handshakes: 512,
            max_handshakes: 4096,
        }
    }
}

/// Binds a UDP address and serves a handler over HTTP/3 until the drain ends.
///
/// The keys of address tokens and of stateless resets are made anew by each process: after a restart a client that
/// was connected finds out by its idle timeout or by asking, and one that holds a token has to prove its address again.
///
/// # Errors
/// The address cannot be bound.
pub fn quic<H: Handler>(
    listen: SocketAddr,
    tls: impl Into<ServerTls>,
    options: &QuicOptions,
    handler: H,
    metrics: ListenerMetrics,
    drain: &Drain,
) -> anyhow::Result<SocketAddr> {
    let tls = tls.into();
    let mut config = quinn::ServerConfig::with_crypto(tls.quic());
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_idle_timeout(Some(options.max_idle.try_into()?))
        .max_concurrent_bidi_streams(options.max_concurrent_streams.into())
        .max_concurrent_uni_streams(16u32.into())
        .stream_receive_window(STREAM_WINDOW.into())
        // Nobody would read them.
        .datagram_receive_buffer_size(None)
        .send_window(SEND_WINDOW);
    config.transport_config(Arc::new(transport));
    let endpoint = Endpoint::server(config.clone(), listen)
        .map_err(|error| anyhow::anyhow!("cannot listen on UDP {listen}: {error}"))?;
    let address = endpoint.local_addr()?;
    let bounds = Bounds::new(options.clone(), metrics.clone());
    let server = Server { tls, config, options: options.clone(), handler, metrics, drain: drain.clone() };
    drain.spawn(async move {
        loop {
            let incoming = tokio::select! {
                () = server.drain.begun() => break,
                incoming = endpoint.accept() => match incoming {
                    Some(incoming) => incoming,
                    None => break,
                },
            };
            if let Some((incoming, places)) = bounds.admit(incoming) {
                server.drain.spawn(server.clone().connection(incoming, places));
            }
        }
        // The endpoint drives all connections: it lives until the last one has gone. Who comes now is told at once.
        let closed = async {
            // Each has its place until its last answer has arrived; then its client hears of the end, or has gone.
            let _ = bounds
                .connections
                .acquire_many(u32::try_from(bounds.options.max_connections).unwrap_or(u32::MAX))
                .await;
            let _ = tokio::time::timeout(CLOSING, endpoint.wait_idle()).await;
        };
        let no_more = async {
            while let Some(incoming) = endpoint.accept().await {
                incoming.refuse();
            }
        };
        tokio::select! {
            () = closed => {}
            () = no_more => {}
        }
    });
    Ok(address)
}

/// How many connections there are, and how many are about to be.
struct Bounds {
    options: QuicOptions,
    connections: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    metrics: ListenerMetrics,
}

/// The places that a new connection takes.
struct Places {
    handshake: OwnedSemaphorePermit,
    _connection: OwnedSemaphorePermit,
}

impl Bounds {
    fn new(options: QuicOptions, metrics: ListenerMetrics) -> Self {
        metrics.limits(Transport::Quic, options.max_connections, options.max_handshakes);
        let of = |places: usize| Arc::new(Semaphore::new(places));
        Self { connections: of(options.max_connections), handshakes: of(options.max_handshakes), options, metrics }
    }

    /// Gives a client its places, or tells it what it is to do instead.
    fn admit(&self, incoming: Incoming) -> Option<(Incoming, Places)> {
        let limited = |bound: Bound| self.metrics.limited(Transport::Quic, bound);
        let under_way = self.options.max_handshakes - self.handshakes.available_permits();
        match admission::decide(&self.options, under_way, incoming.remote_address_validated()) {
            Admission::Accepted => {}
            Admission::Validated => {
                limited(Bound::UnvalidatedHandshakes);
                // Without a token it may be sent one.
                let _ = incoming.retry();
                return None;
            }
            Admission::Refused => {
                limited(Bound::Handshakes);
                incoming.refuse();
                return None;
            }
            Admission::Ignored => {
                limited(Bound::Handshakes);
                incoming.ignore();
                return None;
            }
        }
        let place = |of: &Arc<Semaphore>| of.clone().try_acquire_owned().ok();
        let (Some(handshake), Some(connection)) = (place(&self.handshakes), place(&self.connections)) else {
            limited(Bound::Connections);
            incoming.refuse();
            return None;
        };
        Some((incoming, Places { handshake, _connection: connection }))
    }
}

#[derive(Clone)]
struct Server<H> {
    tls: ServerTls,
    config: quinn::ServerConfig,
    handler: H,
    options: QuicOptions,
    metrics: ListenerMetrics,
    drain: Drain,
}

impl<H: Handler> Server<H> {
    /// What a handshake that begins now goes by: the certificate may have been replaced.
    fn current_config(&self) -> Arc<quinn::ServerConfig> {
        let mut config = self.config.clone();
        config.crypto = self.tls.quic();
        Arc::new(config)
    }

    async fn connection(self, incoming: Incoming, places: Places) {
        let Places { handshake: handshake_place, _connection } = places;
        let under_way = self.metrics.handshake(Transport::Quic);
        let handshake = tokio::time::timeout(HEAD_TIMEOUT, async {
            let connection = incoming.accept_with(self.current_config())?.await?;
            // A client has to allow that.
            let control = connection.open_uni().await?;
            Ok::<_, quinn::ConnectionError>((connection, control))
        });
        let handshake = tokio::select! {
            () = handshake_limit_in_drain(&self.drain) => return,
            done = handshake => done,
        };
        drop(handshake_place);
        let (connection, control) = match handshake {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a QUIC handshake failed");
                return under_way.failed(HandshakeFailure::of_quic(&error));
            }
            Err(_) => return under_way.failed(HandshakeFailure::TimedOut),
        };
        under_way.succeeded();
        let _open = self.metrics.open(Protocol::Http3);
        let mut observed = Observed::new(connection.clone(), self.metrics.clone());
        let mut closing = Closing { connection, code: Code::NO_ERROR };
        let peer = Peer { address: closing.connection.remote_address(), identity: identity(&closing.connection) };
        let Self { handler, metrics, options, drain, .. } = self;
        let QuicOptions { head_timeout, stall_timeout, .. } = options;
        let peer = Arc::new(peer);
        let context = Arc::new(Context {
            handler,
            metrics,
            peer,
            connection: closing.connection.clone(),
            head_timeout,
            stall_timeout,
            drain,
            was_asked: AtomicBool::new(false),
            turns: Turns::default(),
        });
        closing.code = tokio::select! {
            code = connection::serve(&closing.connection, Outgoing::new(control), context.clone()) => code,
            // As long as the head of a first request may take, and once more for the client to begin it.
            () = silence(&context.was_asked, 2 * head_timeout) => Code::NO_ERROR,
            () = observed.now_and_then() => unreachable!("it has no end"),
        };
        if closing.code != Code::NO_ERROR {
            tracing::debug!(address = %closing.connection.remote_address(), code = ?closing.code, "an HTTP/3 client broke the protocol");
        }
    }
}

/// A connection that is closed when this is dropped: also when the drain is cut, or whoever serves it panics.
struct Closing {
    connection: quinn::Connection,
    code: Code,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.connection.close(self.code.into(), b"");
    }
}

fn identity(connection: &quinn::Connection) -> Option<Identity> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    Identity::of_certificate(chain.first()?)
}

//! HTTP/3 over QUIC by quinn, for `GET`, `HEAD`, and requests with small bodies. The framing is in `weir_http3`.
//!
//! Streams are accepted only after the handshake is complete: accepting them earlier hung some clients.

mod admission;
mod connection;
mod request;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use quinn::{Endpoint, Incoming};
use rustls::pki_types::CertificateDer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_http3::{Code, ControlSender, endpoint_config, transport_config};

use self::admission::Admission;
use self::request::Context;
use super::connection_metrics::{Bound, HandshakeFailure, Protocol, Transport};
use super::metrics::ListenerMetrics;
use super::quic_metrics::SampledConnection;
use super::{
    HEAD_TIMEOUT, Handler, MAX_CONNECTIONS, MAX_HEADER_BYTES, SOURCE_SHARE, STALL_TIMEOUT, ServerTls, SourceLimit,
    SourcePermit, drain_handshake_timeout,
};
use crate::shutdown::Drain;
use crate::udp;

/// How long connections may take to close at the end of a drain, after all responses were acknowledged.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The properties of a QUIC listener.
#[derive(Debug, Clone)]
pub struct QuicOptions {
    /// How long an idle connection stays open. Should exceed the poll interval, or every poll costs a handshake.
    pub max_idle: Duration,
    /// Concurrent requests of one connection.
    pub max_concurrent_streams: u32,
    /// How long a request may take from the opening of its stream to the end of its headers, and a connection until its first
    /// accepted request.
    pub head_timeout: Duration,
    /// How long a client may accept no byte of a response.
    pub stall_timeout: Duration,
    /// Concurrent connections; further clients are refused.
    pub max_connections: usize,
    /// Concurrent connections of one source address; further clients are refused.
    pub max_per_source: usize,
    /// Concurrent handshakes above which clients must validate their address first.
    pub max_unvalidated_handshakes: usize,
    /// Concurrent handshakes.
    pub max_handshakes: usize,
    /// The key of stateless resets (RFC 9000, section 10.3), which tell a client that the server it was connected to has
    /// forgotten it. It has to outlive the process, and no other server may have it. `None`: a random one.
    pub reset_key: Option<[u8; 32]>,
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self {
            max_idle: Duration::from_secs(120),
            max_concurrent_streams: 100,
            head_timeout: HEAD_TIMEOUT,
            stall_timeout: STALL_TIMEOUT,
            max_connections: MAX_CONNECTIONS,
            max_per_source: MAX_CONNECTIONS / SOURCE_SHARE,
            max_unvalidated_handshakes: 512,
            max_handshakes: 4096,
            reset_key: None,
        }
    }
}

/// Binds a UDP address and serves a handler over HTTP/3 until the drain ends.
///
/// Each process generates a new key for address tokens, so a client with a token must validate its address again after a
/// restart. A connected client notices a restart with the next packet that it sends, if the key of stateless resets is the
/// same; otherwise by its idle timeout.
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
    config.transport_config(Arc::new(transport_config(options.max_idle, options.max_concurrent_streams)?));
    let socket = udp::bind(listen).map_err(|error| anyhow::anyhow!("cannot listen on UDP {listen}: {error}"))?;
    let endpoint = endpoint_config(options.reset_key.as_ref());
    let endpoint = Endpoint::new(endpoint, Some(config.clone()), socket, Arc::new(quinn::TokioRuntime))?;
    let address = endpoint.local_addr()?;
    let limits = ConnectionLimits::new(options.clone(), metrics.clone());
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
            if let Some((incoming, permits)) = limits.admit(incoming) {
                server.drain.spawn(server.clone().connection(incoming, permits));
            }
        }
        // The endpoint drives all connections, so it must outlive them. New clients are refused meanwhile.
        let closed = async {
            // Each connection holds its permit until its last response was acknowledged.
            let _ = limits
                .connections
                .acquire_many(u32::try_from(limits.options.max_connections).unwrap_or(u32::MAX))
                .await;
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, endpoint.wait_idle()).await;
        };
        let refuse_new = async {
            while let Some(incoming) = endpoint.accept().await {
                incoming.refuse();
            }
        };
        tokio::select! {
            () = closed => {}
            () = refuse_new => {}
        }
    });
    Ok(address)
}

/// Limits concurrent connections and handshakes.
struct ConnectionLimits {
    options: QuicOptions,
    connections: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    source_connections: SourceLimit,
    source_handshakes: SourceLimit,
    metrics: ListenerMetrics,
}

/// The permits of a new connection.
struct Permits {
    handshake: (OwnedSemaphorePermit, SourcePermit),
    _connection: (OwnedSemaphorePermit, SourcePermit),
}

impl ConnectionLimits {
    fn new(options: QuicOptions, metrics: ListenerMetrics) -> Self {
        metrics.limits(Transport::Quic, options.max_connections, options.max_handshakes);
        let permits = |count: usize| Arc::new(Semaphore::new(count));
        Self {
            connections: permits(options.max_connections),
            handshakes: permits(options.max_handshakes),
            source_connections: SourceLimit::new(options.max_per_source),
            source_handshakes: SourceLimit::new((options.max_handshakes / SOURCE_SHARE).max(1)),
            options,
            metrics,
        }
    }

    /// Gives a client its permits; or refuses, ignores or validates it.
    fn admit(&self, incoming: Incoming) -> Option<(Incoming, Permits)> {
        let limited = |bound: Bound| self.metrics.limited(Transport::Quic, bound);
        let in_progress = self.options.max_handshakes - self.handshakes.available_permits();
        match admission::decide(&self.options, in_progress, incoming.remote_address_validated()) {
            Admission::Accept => {}
            Admission::Retry => {
                limited(Bound::UnvalidatedHandshakes);
                // It only fails for a client that is validated already.
                let _ = incoming.retry();
                return None;
            }
            Admission::Refuse => {
                limited(Bound::Handshakes);
                incoming.refuse();
                return None;
            }
            Admission::Ignore => {
                limited(Bound::Handshakes);
                incoming.ignore();
                return None;
            }
        }
        let address = incoming.remote_address();
        let of_source = (self.source_handshakes.admit(address), self.source_connections.admit(address));
        let (Some(source_handshake), Some(source_connection)) = of_source else {
            limited(Bound::Source);
            incoming.refuse();
            return None;
        };
        let permit = |of: &Arc<Semaphore>| of.clone().try_acquire_owned().ok();
        let (Some(handshake), Some(connection)) = (permit(&self.handshakes), permit(&self.connections)) else {
            limited(Bound::Connections);
            incoming.refuse();
            return None;
        };
        let permits =
            Permits { handshake: (handshake, source_handshake), _connection: (connection, source_connection) };
        Some((incoming, permits))
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
    /// The configuration for a new handshake: the certificate may have been replaced.
    fn current_config(&self) -> Arc<quinn::ServerConfig> {
        let mut config = self.config.clone();
        config.crypto = self.tls.quic();
        Arc::new(config)
    }

    async fn connection(self, incoming: Incoming, permits: Permits) {
        let Permits { handshake: handshake_permit, _connection } = permits;
        let in_progress = self.metrics.handshake(Transport::Quic);
        let handshake = tokio::time::timeout(HEAD_TIMEOUT, async {
            let connection = incoming.accept_with(self.current_config())?.await?;
            // The client must allow this stream.
            let control = connection.open_uni().await?;
            Ok::<_, quinn::ConnectionError>((connection, control))
        });
        let handshake = tokio::select! {
            () = drain_handshake_timeout(&self.drain) => return,
            done = handshake => done,
        };
        drop(handshake_permit);
        let (connection, control) = match handshake {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a QUIC handshake failed");
                return in_progress.failed(HandshakeFailure::of_quic(&error));
            }
            Err(_) => return in_progress.failed(HandshakeFailure::TimedOut),
        };
        in_progress.succeeded();
        let _open = self.metrics.open(Protocol::Http3);
        let mut sampled =
            SampledConnection::new(connection.clone(), self.metrics.quic().clone(), self.metrics.listener());
        let mut closing = CloseOnDrop { connection, code: Code::NO_ERROR };
        let chain =
            closing.connection.peer_identity().and_then(|it| it.downcast::<Vec<CertificateDer<'static>>>().ok());
        let peer = self.tls.peer(closing.connection.remote_address(), chain.as_deref().map(Vec::as_slice));
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
            is_accepted: AtomicBool::new(false),
            body_writer: Semaphore::new(1),
        });
        closing.code = tokio::select! {
            code = connection::serve(&closing.connection, ControlSender::new(control, MAX_HEADER_BYTES), context.clone()) => code,
            never = sampled.sample_periodically() => match never {},
        };
        if closing.code != Code::NO_ERROR {
            tracing::debug!(address = %closing.connection.remote_address(), code = ?closing.code, "an HTTP/3 client violated the protocol");
        }
    }
}

/// Closes the connection on drop: also when the drain's deadline passes, or its task panics.
struct CloseOnDrop {
    connection: quinn::Connection,
    code: Code,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.connection.close(self.code.into(), b"");
    }
}

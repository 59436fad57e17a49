//! HTTP/3 (RFC 9114) over QUIC by quinn, for `GET` and `HEAD`.
//!
//! The framing is our own, for two reasons that were measured. A poll's answer is a few hundred bytes of header: in
//! the usual wiring its coding, and handing it from task to task, cost several times what QUIC does. And an answer must
//! be whole or reset, and under way until the client has all of it, which needs the streams themselves. What is not
//! needed is not here: no dynamic table, no push, no request bodies, no `CONNECT`.
//!
//! The handshake is awaited before the first stream is looked at: taking streams earlier hung some clients.

mod connection;
mod control;
mod control_frames;
mod date;
mod error;
mod frame;
#[cfg(fuzzing)]
pub mod fuzzing;
mod head;
mod qpack;
mod request;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, Incoming};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::control::Outgoing;
use self::error::Code;
use self::request::Context;
use super::metrics::ListenerMetrics;
use super::{Handler, MAX_CONNECTIONS, Peer};
use crate::process::identity::Identity;
use crate::process::shutdown::Drain;

/// How long a handshake may take, with the opening of this end's control stream: a client has to allow that.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How much of a stream that nobody reads is kept, in bytes: the head of a request fits, and a body is not wanted.
const STREAM_WINDOW: u32 = 32 << 10;

/// The properties of a QUIC listener.
#[derive(Debug, Clone)]
pub struct QuicOptions {
    /// How long a silent connection is kept. Longer than the interval of polls, or every poll pays a handshake.
    pub max_idle: Duration,
    /// Requests that one connection may have under way.
    pub max_concurrent_streams: u32,
    /// How long a request may take from the opening of its stream to the end of its head.
    pub head_timeout: Duration,
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self {
            max_idle: Duration::from_secs(120),
            max_concurrent_streams: 100,
            // As long as over TCP.
            head_timeout: Duration::from_secs(10),
        }
    }
}

/// Binds a UDP address and serves a handler over HTTP/3 until the drain ends. `tls` without ALPN.
///
/// # Errors
/// The address cannot be bound, or the TLS configuration lacks what QUIC needs.
pub fn quic<H: Handler>(
    listen: SocketAddr,
    mut tls: ServerConfig,
    options: &QuicOptions,
    handler: H,
    metrics: ListenerMetrics,
    drain: &Drain,
) -> anyhow::Result<SocketAddr> {
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_idle_timeout(Some(options.max_idle.try_into()?))
        .max_concurrent_bidi_streams(options.max_concurrent_streams.into())
        .max_concurrent_uni_streams(16u32.into())
        .stream_receive_window(STREAM_WINDOW.into())
        // Nobody would read them.
        .datagram_receive_buffer_size(None)
        .send_window(16 << 20);
    config.transport_config(Arc::new(transport));
    let endpoint =
        Endpoint::server(config, listen).map_err(|error| anyhow::anyhow!("cannot listen on UDP {listen}: {error}"))?;
    let address = endpoint.local_addr()?;
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let server = Server { handler, metrics, head_timeout: options.head_timeout, drain: drain.clone() };
    drain.spawn(async move {
        loop {
            let incoming = tokio::select! {
                () = server.drain.begun() => break,
                incoming = endpoint.accept() => match incoming {
                    Some(incoming) => incoming,
                    None => break,
                },
            };
            let Ok(permit) = connections.clone().try_acquire_owned() else {
                incoming.refuse();
                continue;
            };
            server.drain.spawn(server.clone().connection(incoming, permit));
        }
        // The endpoint drives all connections: it lives until the last one has gone. Who comes now is told at once.
        let no_more = async {
            while let Some(incoming) = endpoint.accept().await {
                incoming.refuse();
            }
        };
        tokio::select! {
            () = endpoint.wait_idle() => {}
            () = no_more => {}
        }
    });
    Ok(address)
}

#[derive(Clone)]
struct Server<H> {
    handler: H,
    metrics: ListenerMetrics,
    head_timeout: Duration,
    drain: Drain,
}

impl<H: Handler> Server<H> {
    async fn connection(self, incoming: Incoming, _permit: OwnedSemaphorePermit) {
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, async {
            let connection = incoming.accept()?.await?;
            let control = connection.open_uni().await?;
            Ok::<_, quinn::ConnectionError>((connection, control))
        });
        let handshake = tokio::select! {
            () = self.drain.begun() => return,
            done = handshake => done,
        };
        let (connection, control) = match handshake {
            Ok(Ok(opened)) => opened,
            failed => {
                tracing::debug!(error = ?failed.err(), "a QUIC handshake failed");
                self.metrics.handshake_failed("quic");
                return;
            }
        };
        let _open = self.metrics.connection("quic");
        let mut closing = Closing { connection, code: Code::NO_ERROR };
        let peer = Peer { address: closing.connection.remote_address(), identity: identity(&closing.connection) };
        let Self { handler, metrics, head_timeout, drain } = self;
        let context = Arc::new(Context { handler, metrics, peer: Arc::new(peer), head_timeout, drain });
        closing.code = connection::serve(&closing.connection, Outgoing::new(control), context).await;
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

//! HTTP/3 over QUIC, by quinn and h3.
//!
//! What is not obvious here was measured: the handshake is awaited before h3 sees the connection (handing it over
//! earlier hung some clients), the end of a request's stream is read before it is answered (else every request ends in
//! a STOP_SENDING), and a drain counts its own requests (h3's accept returns `None` only after the *peer* went away).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use h3::error::Code;
use h3::server::{Connection, RequestResolver, RequestStream};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, Incoming, VarInt};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::metrics::ListenerMetrics;
use super::{BoxError, Handler, MAX_CONNECTIONS, MAX_HEADER_BYTES, Peer, RequestBody};
use crate::process::identity::Identity;
use crate::process::shutdown::Drain;

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a drained connection is kept after its last response, so that the response's last packets arrive.
const LINGER: Duration = Duration::from_millis(100);

/// The properties of a QUIC listener.
#[derive(Debug, Clone)]
pub struct QuicOptions {
    /// How long a silent connection is kept. Longer than the interval of polls, or every poll pays a handshake.
    pub max_idle: Duration,
    /// Requests that one connection may have under way.
    pub max_concurrent_streams: u32,
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self { max_idle: Duration::from_secs(120), max_concurrent_streams: 100 }
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
        .send_window(16 << 20);
    config.transport_config(Arc::new(transport));
    let endpoint =
        Endpoint::server(config, listen).map_err(|error| anyhow::anyhow!("cannot listen on UDP {listen}: {error}"))?;
    let address = endpoint.local_addr()?;
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let server = Server { handler, metrics, drain: drain.clone() };
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
        // The endpoint drives all connections: it lives until the last one has gone.
        server.drain.spawn(async move { endpoint.wait_idle().await });
    });
    Ok(address)
}

#[derive(Clone)]
struct Server<H> {
    handler: H,
    metrics: ListenerMetrics,
    drain: Drain,
}

impl<H: Handler> Server<H> {
    async fn connection(self, incoming: Incoming, _permit: OwnedSemaphorePermit) {
        let handshake = async { incoming.accept()?.await };
        let connection = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(connection)) => connection,
            failed => {
                tracing::debug!(error = ?failed.err(), "a QUIC handshake failed");
                self.metrics.handshake_failed("quic");
                return;
            }
        };
        let _open = self.metrics.connection("quic");
        let peer = Arc::new(Peer { address: connection.remote_address(), identity: identity(&connection) });
        let framed = h3::server::builder()
            .send_grease(false)
            .max_field_section_size(MAX_HEADER_BYTES as u64)
            .build(h3_quinn::Connection::new(connection.clone()))
            .await;
        match framed {
            Ok(framed) => self.requests(framed, &peer).await,
            Err(error) => tracing::debug!(%error, "an HTTP/3 connection failed"),
        }
        connection.close(VarInt::from_u32(0x100), b""); // H3_NO_ERROR
    }

    async fn requests(&self, mut connection: Connection<h3_quinn::Connection, Bytes>, peer: &Arc<Peer>) {
        let requests = TaskTracker::new();
        let mut draining = false;
        loop {
            let accepted = tokio::select! {
                accepted = connection.accept() => accepted,
                () = self.drain.begun(), if !draining => {
                    draining = true;
                    requests.close();
                    if connection.shutdown(0).await.is_err() {
                        return;
                    }
                    continue;
                }
                () = async { requests.wait().await; tokio::time::sleep(LINGER).await }, if draining => return,
            };
            match accepted {
                Ok(Some(resolver)) => {
                    requests.spawn(self.clone().request(resolver, peer.clone()));
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, address = %peer.address, "an HTTP/3 connection ended");
                    return;
                }
            }
        }
        requests.close();
        requests.wait().await;
        tokio::time::sleep(LINGER).await;
    }

    async fn request(self, resolver: RequestResolver<h3_quinn::Connection, Bytes>, peer: Arc<Peer>) {
        if let Err(error) = self.answer(resolver, peer).await {
            tracing::debug!(%error, "an HTTP/3 request ended with an error");
        }
    }

    async fn answer(
        &self,
        resolver: RequestResolver<h3_quinn::Connection, Bytes>,
        peer: Arc<Peer>,
    ) -> Result<(), BoxError> {
        let (request, stream) = resolver.resolve_request().await?;
        let begun = Instant::now();
        let (mut sender, mut receiver): (RequestStream<h3_quinn::SendStream<Bytes>, Bytes>, _) = stream.split();
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            let _ = receiver.recv_data().now_or_never();
        }
        let method = request.method().clone();
        let response = self.handler.handle(without_body(request), peer).await;
        self.metrics.answered(http::Version::HTTP_3, &method, response.status(), begun.elapsed());
        let (head, mut body) = response.into_parts();
        sender.send_response(Response::from_parts(head, ())).await?;
        if method != Method::HEAD {
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => {
                        if let Ok(data) = frame.into_data() {
                            sender.send_data(data).await?;
                        }
                    }
                    Err(error) => {
                        // Never a clean end for a body that is not whole.
                        sender.stop_stream(Code::H3_INTERNAL_ERROR);
                        return Err(error);
                    }
                }
            }
        }
        sender.finish().await?;
        Ok(())
    }
}

fn without_body(request: Request<()>) -> Request<RequestBody> {
    request.map(|()| RequestBody::Empty)
}

fn identity(connection: &quinn::Connection) -> Option<Identity> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    Identity::of_certificate(chain.first()?)
}

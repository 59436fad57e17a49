//! HTTP/3 over QUIC, by quinn and h3.
//!
//! What is not obvious here was measured: the handshake is awaited before h3 sees the connection (handing it over
//! earlier hung some clients), the end of a request's stream is read before it is answered (else every request ends in
//! a STOP_SENDING), and a drain counts its own requests (h3's accept returns `None` only after the *peer* went away) until
//! the client has acknowledged all of their answers (quinn takes megabytes ahead of a slow reader).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::FutureExt;
use h3::error::Code;
use h3::server::{Connection, RequestResolver, RequestStream};
use http::{HeaderValue, Method, Request, Response, header, response};
use http_body_util::BodyExt;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, Incoming, VarInt};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::body::add_length;
use super::metrics::ListenerMetrics;
use super::quic_streams::{self, Unacknowledged};
use super::{Body, BoxError, Handler, MAX_CONNECTIONS, MAX_HEADER_BYTES, Peer, RequestBody};
use crate::process::identity::Identity;
use crate::process::shutdown::Drain;

type Resolver = RequestResolver<quic_streams::Connection, Bytes>;

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a drained connection is kept after its last answer arrived, so that the client can be the one who closes.
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
        // The endpoint drives all connections: it lives until the last one has gone. Who comes now is told at once.
        let no_more = async {
            while let Some(incoming) = endpoint.accept().await {
                incoming.refuse()
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
    drain: Drain,
}

impl<H: Handler> Server<H> {
    async fn connection(self, incoming: Incoming, _permit: OwnedSemaphorePermit) {
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, async { incoming.accept()?.await });
        let handshake = tokio::select! {
            () = self.drain.begun() => return,
            done = handshake => done,
        };
        let connection = match handshake {
            Ok(Ok(connection)) => connection,
            failed => {
                tracing::debug!(error = ?failed.err(), "a QUIC handshake failed");
                self.metrics.handshake_failed("quic");
                return;
            }
        };
        let _open = self.metrics.connection("quic");
        let connection = Closing(connection);
        let peer = Arc::new(Peer { address: connection.0.remote_address(), identity: identity(&connection.0) });
        let answers = TaskTracker::new();
        let unacknowledged = Unacknowledged { answers: answers.clone(), drain: self.drain.clone() };
        let framed = h3::server::builder()
            .send_grease(false)
            .max_field_section_size(MAX_HEADER_BYTES as u64)
            .build(quic_streams::Connection::new(connection.0.clone(), unacknowledged))
            .await;
        match framed {
            Ok(framed) => self.requests(framed, &answers, &peer).await,
            Err(error) => tracing::debug!(%error, "an HTTP/3 connection failed"),
        }
    }

    /// `answers`: those that are being made, and those that the client does not have in full yet.
    async fn requests(
        &self,
        mut connection: Connection<quic_streams::Connection, Bytes>,
        answers: &TaskTracker,
        peer: &Arc<Peer>,
    ) {
        let mut draining = false;
        loop {
            let accepted = tokio::select! {
                accepted = connection.accept() => accepted,
                () = self.drain.begun(), if !draining => {
                    draining = true;
                    answers.close();
                    if connection.shutdown(0).await.is_err() {
                        return;
                    }
                    continue;
                }
                () = async { answers.wait().await; tokio::time::sleep(LINGER).await }, if draining => return,
            };
            match accepted {
                Ok(Some(resolver)) => {
                    let (request, unfinished) = (self.clone().request(resolver, peer.clone()), answers.token());
                    self.drain.spawn(async move {
                        request.await;
                        drop(unfinished);
                    });
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, address = %peer.address, "an HTTP/3 connection ended");
                    return;
                }
            }
        }
        answers.close();
        answers.wait().await;
        tokio::time::sleep(LINGER).await;
    }

    async fn request(self, resolver: Resolver, peer: Arc<Peer>) {
        if let Err(error) = self.answer(resolver, peer).await {
            tracing::debug!(%error, "an HTTP/3 request ended with an error");
        }
    }

    async fn answer(&self, resolver: Resolver, peer: Arc<Peer>) -> Result<(), BoxError> {
        let (request, stream) = resolver.resolve_request().await?;
        let begun = Instant::now();
        let (sender, mut receiver) = stream.split();
        let mut answer = Unfinished(Some(sender));
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            let _ = receiver.recv_data().now_or_never();
        }
        let method = request.method().clone();
        let response = self.handler.handle(without_body(request), peer).await;
        self.metrics.answered(http::Version::HTTP_3, &method, response.status(), begun.elapsed());
        let (mut head, mut body) = response.into_parts();
        complete(&mut head, &body, SystemTime::now());
        let sender = answer.sender();
        sender.send_response(Response::from_parts(head, ())).await?;
        if method != Method::HEAD {
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame?.into_data() {
                    sender.send_data(data).await?;
                }
            }
        }
        sender.finish().await?;
        answer.0 = None;
        Ok(())
    }
}

/// A connection that is closed when this is dropped: also when the drain is cut, or whoever serves it panics.
struct Closing(quinn::Connection);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close(VarInt::from_u32(0x100), b""); // H3_NO_ERROR
    }
}

/// An answer that is reset when this is dropped before it is whole. quinn by itself would end it cleanly.
struct Unfinished(Option<RequestStream<quic_streams::SendStream, Bytes>>);

impl Unfinished {
    fn sender(&mut self) -> &mut RequestStream<quic_streams::SendStream, Bytes> {
        self.0.as_mut().expect("it is taken away at the very end")
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(sender) = &mut self.0 {
            sender.stop_stream(Code::H3_INTERNAL_ERROR);
        }
    }
}

/// Adds what hyper writes by itself over the other versions of HTTP: the date, and a length that is known.
fn complete(head: &mut response::Parts, body: &Body, now: SystemTime) {
    head.headers
        .entry(header::DATE)
        .or_insert_with(|| HeaderValue::try_from(httpdate::fmt_http_date(now)).expect("a date is visible ASCII"));
    add_length(head, body);
}

fn without_body(request: Request<()>) -> Request<RequestBody> {
    request.map(|()| RequestBody::Empty)
}

fn identity(connection: &quinn::Connection) -> Option<Identity> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    Identity::of_certificate(chain.first()?)
}

//! HTTP/1.1 and HTTP/2 over TCP, by hyper.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::{Method, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::body::add_length;
use super::connection_metrics::{Bound, HandshakeFailure, Protocol, Transport};
use super::impatient::Impatient;
use super::lingering::Lingering;
use super::metrics::ListenerMetrics;
use super::stalled::{self, Answers};
use super::streams::Streams;
use super::{
    Body, HEAD_TIMEOUT, Handler, MAX_CONNECTIONS, MAX_HEADER_BYTES, Peer, RequestBody, STALL_TIMEOUT, ServerTls,
    too_long,
};
use crate::problem::Problem;
use crate::process::identity::Identity;
use crate::process::shutdown::Drain;

/// Bytes that the system takes for a client beyond what is on its way to it. Without this bound it takes megabytes for
/// each client that reads slowly, and a thousand of them leave no memory for the connections of all others.
const MAX_UNSENT: u32 = 256 << 10;

/// How long the listener pauses when the system has no file descriptor left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Requests that one HTTP/2 connection may have under way.
const MAX_STREAMS: u32 = 256;

/// Streams of an HTTP/2 connection that its client has reset before they were looked at. One more, and it is closed:
/// that is how "rapid reset" begins (CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 20;

/// Streams of an HTTP/2 connection that this end has reset for what its client did wrong. One more, and it is closed.
const MAX_ERROR_RESETS: usize = 128;

/// What is held of an HTTP/2 answer on its way, in bytes.
const MAX_SEND_BUFFER: usize = 256 << 10;

/// The properties of a TCP listener.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// Connections at a time; clients beyond it wait in the kernel's backlog.
    pub max_connections: usize,
    /// How long a TLS handshake may take, then the first request of a connection, and any head over HTTP/1.1.
    pub head_timeout: Duration,
    /// How long a client may take nothing of an answer.
    pub stall_timeout: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self { max_connections: MAX_CONNECTIONS, head_timeout: HEAD_TIMEOUT, stall_timeout: STALL_TIMEOUT }
    }
}

/// [`tcp_with`] the properties that all roles use.
pub fn tcp<H: Handler>(
    listener: TcpListener,
    tls: Option<impl Into<ServerTls>>,
    handler: H,
    metrics: ListenerMetrics,
    drain: &Drain,
) {
    tcp_with(listener, tls, &TcpOptions::default(), handler, metrics, drain);
}

/// Serves a handler over TCP until the drain ends. `None` instead of TLS is plain HTTP, for the admin listener.
pub fn tcp_with<H: Handler>(
    listener: TcpListener,
    tls: Option<impl Into<ServerTls>>,
    options: &TcpOptions,
    handler: H,
    metrics: ListenerMetrics,
    drain: &Drain,
) {
    metrics.limits(Transport::Tcp, options.max_connections, options.max_connections);
    let connections = Arc::new(Semaphore::new(options.max_connections));
    let server = Server { tls: tls.map(Into::into), options: options.clone(), handler, metrics, drain: drain.clone() };
    let accept_loop = async move {
        loop {
            if connections.available_permits() == 0 {
                server.metrics.limited(Transport::Tcp, Bound::Connections);
            }
            let Ok(permit) = connections.clone().acquire_owned().await else { return };
            let (stream, address) = tokio::select! {
                () = server.drain.begun() => return,
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            let server = server.clone();
            let drain = server.drain.clone();
            drain.spawn(async move {
                server.connection(stream, address).await;
                drop(permit);
            });
        }
    };
    drain.spawn(accept_loop);
}

#[derive(Clone)]
struct Server<H> {
    tls: Option<ServerTls>,
    options: TcpOptions,
    handler: H,
    metrics: ListenerMetrics,
    drain: Drain,
}

impl<H: Handler> Server<H> {
    async fn connection(self, stream: TcpStream, address: SocketAddr) {
        let _ = stream.set_nodelay(true);
        // Not everywhere; without it the system's own bounds hold.
        let _ = SockRef::from(&stream).set_tcp_notsent_lowat(MAX_UNSENT);
        let Some(tls) = &self.tls else {
            return self.http(stream, Peer { address, identity: None }, Protocol::Http1).await;
        };
        let under_way = self.metrics.handshake(Transport::Tcp);
        let handshake = tokio::time::timeout(self.options.head_timeout, TlsAcceptor::from(tls.tcp()).accept(stream));
        let handshake = tokio::select! {
            () = self.drain.begun() => return,
            done = handshake => done,
        };
        match handshake {
            Ok(Ok(stream)) => {
                under_way.succeeded();
                let session = stream.get_ref().1;
                let certificates = session.peer_certificates();
                let identity = certificates.and_then(|chain| chain.first()).and_then(Identity::of_certificate);
                let protocol = if session.alpn_protocol() == Some(b"h2") { Protocol::Http2 } else { Protocol::Http1 };
                self.http(stream, Peer { address, identity }, protocol).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(%address, %error, "a TLS handshake failed");
                under_way.failed(HandshakeFailure::of_tls(&error));
            }
            Err(_) => under_way.failed(HandshakeFailure::TimedOut),
        }
    }

    async fn http(self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, peer: Peer, protocol: Protocol) {
        let _open = self.metrics.open(protocol);
        let TcpOptions { head_timeout, stall_timeout, .. } = self.options;
        let streams = Streams::default();
        let answers = Answers { stall_timeout, metrics: self.metrics.clone() };
        let mut builder = auto::Builder::new(streams.executor(answers));
        builder.http1().timer(TokioTimer::new()).header_read_timeout(head_timeout).max_buf_size(64 << 10);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEADER_BYTES as u32)
            .max_concurrent_streams(MAX_STREAMS)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_ERROR_RESETS)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .max_frame_size(64 << 10)
            .max_send_buf_size(MAX_SEND_BUFFER)
            // An idle client that went away without a word is noticed; one that lives answers at no cost to its polls.
            .keep_alive_interval(Duration::from_secs(60))
            .keep_alive_timeout(Duration::from_secs(20));
        let stream = Impatient::new(stream, stall_timeout, protocol, self.metrics.clone());
        let shared = Arc::new(Shared {
            handler: self.handler,
            metrics: self.metrics,
            peer: Arc::new(peer),
            was_asked: AtomicBool::new(false),
        });
        let service = service_fn(|request| shared.clone().answer(request));
        let mut connection = pin!(builder.serve_connection(TokioIo::new(Lingering::new(stream)), service));
        // Ends a while after it was first awaited, unless the client has asked for something by then.
        let silence = async || {
            tokio::time::sleep(head_timeout).await;
            if shared.was_asked.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        let result = tokio::select! {
            result = streams.drive(connection.as_mut()) => result,
            () = self.drain.begun() => {
                connection.as_mut().graceful_shutdown();
                streams.drive(connection).await
            }
            () = silence() => {
                connection.as_mut().graceful_shutdown();
                // What it begins to ask now is still answered; a head of HTTP/2 that never ends is not waited for.
                tokio::select! { result = streams.drive(connection) => result, () = silence() => return }
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, address = %shared.peer.address, "a connection ended with an error");
        }
    }
}

/// What all requests of a connection share.
struct Shared<H> {
    handler: H,
    metrics: ListenerMetrics,
    peer: Arc<Peer>,
    was_asked: AtomicBool,
}

impl<H: Handler> Shared<H> {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        self.was_asked.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        let (version, method) = (request.version(), request.method().clone());
        let response = match refusal(&request) {
            None => self.handler.handle(request.map(RequestBody::Incoming), self.peer.clone()).await,
            Some(problem) => problem.into_response(),
        };
        self.metrics.answered(version, &method, response.status(), begun.elapsed());
        let response = if method == Method::HEAD { without_body(response) } else { response };
        Ok(response.map(stalled::watched))
    }
}

/// What hyper lets pass: a URL beyond the bound, and over HTTP/1 what the later versions of HTTP refuse by themselves.
fn refusal<B>(request: &Request<B>) -> Option<Problem> {
    let too_long = too_long(request);
    if too_long.is_some() || request.version() > Version::HTTP_11 {
        return too_long;
    }
    let bytes: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > MAX_HEADER_BYTES {
        return Some(Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "headers-too-large",
            "The headers are too large",
            format!("The headers of a request may have {MAX_HEADER_BYTES} bytes; these have {bytes}."),
        ));
    }
    // RFC 9112 section 3.2.
    let hosts = request.headers().get_all(header::HOST).iter().count();
    (hosts != 1 && request.version() == Version::HTTP_11)
        .then(|| Problem::malformed("A request over HTTP/1.1 has exactly one `Host`."))
}

/// An answer to HEAD. hyper drops the body over HTTP/1.1 alone; over HTTP/2 a client takes it for a broken stream.
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    add_length(&mut head, &body);
    Response::from_parts(head, Body::Empty)
}

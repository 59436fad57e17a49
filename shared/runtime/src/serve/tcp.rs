//! HTTP/1.1, by hyper, and HTTP/2 over TCP. With TLS the client's ALPN says which; without TLS it is HTTP/1.1.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::connection_metrics::{Bound, HandshakeFailure, Protocol, Transport};
use super::lingering::Lingering;
use super::listener::Listener;
use super::metrics::ListenerMetrics;
use super::outgoing::{CoalescedFlush, Outgoing, WriteCoalescer};
use super::{
    Body, BoxError, HEAD_TIMEOUT, Handler, MAX_CONNECTIONS, MAX_HEADER_BYTES, NEW_CLIENT_IN_DRAIN, Peer, RequestBody,
    STALL_TIMEOUT, ServerTls, handshake_limit_in_drain, http2, silence, too_long,
};
use crate::identity::Identity;
use crate::open_files;
use crate::shutdown::Drain;
use weir_protocol::problem::Problem;

/// Bytes that the system takes for a client beyond what is on its way to it. Without this bound it takes megabytes for
/// each client that reads slowly, and a thousand of them leave no memory for the connections of all others.
pub(super) const MAX_UNSENT: u32 = 256 << 10;

/// How long an HTTP/1.1 connection is kept between two requests: longer than agents take from one poll to the next.
const MAX_IDLE: Duration = Duration::from_secs(75);

/// How long the listener pauses when the system has no file descriptor left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The properties of a TCP listener.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// Connections at a time; clients beyond it wait in the kernel's backlog.
    pub max_connections: usize,
    /// How long a TLS handshake may take, and then the first request of a connection.
    pub head_timeout: Duration,
    /// How long an HTTP/1.1 connection may be silent between two requests; and any head but the first, which the end of
    /// this silence is. Over HTTP/2 an idle client is asked whether it lives.
    pub max_idle: Duration,
    /// How long a client may take nothing of an answer.
    pub stall_timeout: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            max_connections: MAX_CONNECTIONS,
            head_timeout: HEAD_TIMEOUT,
            max_idle: MAX_IDLE,
            stall_timeout: STALL_TIMEOUT,
        }
    }
}

/// [`tcp_with`] the properties that all roles use, and as many connections as the system gives descriptors for.
pub fn tcp<H: Handler>(
    listener: TcpListener,
    tls: Option<impl Into<ServerTls>>,
    handler: H,
    metrics: ListenerMetrics,
    drain: &Drain,
) {
    let max_connections = open_files::for_connections(open_files::raise_limit(), MAX_CONNECTIONS);
    let options = TcpOptions { max_connections, ..TcpOptions::default() };
    tcp_with(listener, tls, &options, handler, metrics, drain);
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
        let mut listener = Listener::new(listener, server.drain.clone());
        while let Some(accepted) = listener.next().await {
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) {
                        server.metrics.limited(Transport::Tcp, Bound::OpenFiles);
                    }
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if connections.available_permits() == 0 {
                server.metrics.limited(Transport::Tcp, Bound::Connections);
            }
            // It waits here, and those behind it in the kernel's backlog.
            let Ok(permit) = connections.clone().acquire_owned().await else { return };
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
        let coalescer = WriteCoalescer::default();
        let stream = Outgoing::new(stream, coalescer.clone(), self.options.stall_timeout);
        let Some(tls) = &self.tls else {
            return self.http(stream, coalescer, Peer { address, identity: None }, Protocol::Http1).await;
        };
        let under_way = self.metrics.handshake(Transport::Tcp);
        let handshake = tokio::time::timeout(self.options.head_timeout, TlsAcceptor::from(tls.tcp()).accept(stream));
        let handshake = tokio::select! {
            () = handshake_limit_in_drain(&self.drain) => return,
            done = handshake => done,
        };
        match handshake {
            Ok(Ok(stream)) => {
                under_way.succeeded();
                let session = stream.get_ref().1;
                let certificates = session.peer_certificates();
                let identity = certificates.and_then(|chain| chain.first()).and_then(Identity::of_certificate);
                let protocol = if session.alpn_protocol() == Some(b"h2") { Protocol::Http2 } else { Protocol::Http1 };
                self.http(stream, coalescer, Peer { address, identity }, protocol).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(%address, %error, "a TLS handshake failed");
                under_way.failed(HandshakeFailure::of_tls(&error));
            }
            Err(_) => under_way.failed(HandshakeFailure::TimedOut),
        }
    }

    async fn http(
        self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        coalescer: WriteCoalescer,
        peer: Peer,
        protocol: Protocol,
    ) {
        let _open = self.metrics.open(protocol);
        let (metrics, address) = (self.metrics.clone(), peer.address);
        let shared = Arc::new(Shared {
            handler: self.handler,
            metrics: self.metrics,
            peer: Arc::new(peer),
            options: self.options,
            drain: self.drain.clone(),
            was_asked: AtomicBool::new(false),
        });
        let ended = match protocol {
            Protocol::Http2 => {
                let stream = Lingering::new(CoalescedFlush::new(stream, coalescer.clone()));
                http2(stream, coalescer.clone(), shared, &self.drain).await
            }
            _ => http1(Lingering::new(stream), shared, &self.drain).await,
        };
        if coalescer.is_stalled() {
            metrics.stalled(protocol);
        }
        if let Err(error) = ended {
            tracing::debug!(%error, %address, "a connection ended with an error");
        }
    }
}

async fn http1<H: Handler>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    shared: Arc<Shared<H>>,
    drain: &Drain,
) -> Result<(), BoxError> {
    let service = service_fn(|request| shared.clone().answer(request));
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(shared.options.max_idle)
            .max_buf_size(64 << 10)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        ended = connection.as_mut() => ended?,
        () = drain.begun() => {
            // hyper would close one that has asked for nothing yet: its first request is answered, as its last.
            if shared.was_asked.load(Ordering::Relaxed) {
                connection.as_mut().graceful_shutdown();
            }
            tokio::select! {
                ended = connection => ended?,
                () = silence(&shared.was_asked, NEW_CLIENT_IN_DRAIN) => {}
            }
        }
        () = shared.silence() => {}
    }
    Ok(())
}

async fn http2<H: Handler>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    coalescer: WriteCoalescer,
    shared: Arc<Shared<H>>,
    drain: &Drain,
) -> Result<(), BoxError> {
    let mut connection = tokio::select! {
        begun = http2::Connection::begin(stream, coalescer, shared.clone()) => begun?,
        () = shared.silence() => return Ok(()),
    };
    tokio::select! {
        ended = connection.drive() => ended?,
        () = drain.begun() => {
            connection.go_away();
            connection.drive().await?;
        }
        () = shared.silence() => {
            connection.go_away();
            // What it begins to ask now is still answered; a head that never ends is not waited for.
            tokio::select! { ended = connection.drive() => ended?, () = shared.silence() => {} }
        }
    }
    Ok(())
}

/// What all requests of a connection share.
pub(super) struct Shared<H> {
    pub(super) handler: H,
    pub(super) metrics: ListenerMetrics,
    pub(super) peer: Arc<Peer>,
    pub(super) options: TcpOptions,
    drain: Drain,
    pub(super) was_asked: AtomicBool,
}

impl<H: Handler> Shared<H> {
    async fn silence(&self) {
        silence(&self.was_asked, self.options.head_timeout).await;
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        self.was_asked.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        let method = request.method().clone();
        let request = request.map(RequestBody::Http1);
        let mut response = match refusal(&request) {
            Some(problem) => problem.into_response(),
            None => match self.handler.fast_path(&request, &self.peer) {
                Some(response) => response,
                None => self.handler.handle(request, self.peer.clone()).await,
            },
        };
        if self.drain.has_begun() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        self.metrics.answered(Version::HTTP_11, &method, response.status(), begun.elapsed());
        Ok(response)
    }
}

/// What hyper lets pass over HTTP/1, and the later versions of HTTP refuse by themselves; and a URL beyond the bound.
fn refusal<B>(request: &Request<B>) -> Option<Problem> {
    let too_long = too_long(request);
    if too_long.is_some() {
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

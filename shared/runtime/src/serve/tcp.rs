//! HTTP/1.1 by hyper, and HTTP/2, over TCP. ALPN chooses between them; without TLS it is HTTP/1.1.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::Body as _;
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

use super::client_socket::{ClientSocket, CoalescedFlush, WriteCoalescer};
use super::connection_metrics::{Bound, HandshakeFailure, Protocol, Transport};
use super::exchange::Exchange;
use super::lingering::Lingering;
use super::listener::Listener;
use super::metrics::ListenerMetrics;
use super::recorded_body::RecordedBody;
use super::tcp_context::{Shared, TcpOptions};
use super::{
    BoxError, DRAIN_GRACE, Handler, MAX_CONNECTIONS, MAX_HEADER_BYTES, Peer, RequestBody, SOURCE_SHARE, ServerTls,
    SourceLimit, drain_handshake_timeout, http2, timeout_unless, url_too_long,
};
use crate::open_files;
use crate::shutdown::Drain;
use weir_protocol::problem::Problem;

/// Bytes that the kernel buffers for a client beyond those in flight (`TCP_NOTSENT_LOWAT`). Without this limit it buffers
/// megabytes for each slow client, and a thousand of them leave no memory for all other connections.
pub(super) const MAX_UNSENT: u32 = 256 << 10;

/// How long the listener pauses after an `accept` that failed, most often because no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// [`tcp_with`] the options of all roles, and with as many connections as the limit of file descriptors allows.
pub fn tcp<H: Handler>(
    listener: TcpListener,
    tls: Option<impl Into<ServerTls>>,
    handler: H,
    metrics: ListenerMetrics,
    drain: &Drain,
) {
    let max_connections = open_files::for_connections(open_files::raise_limit(), MAX_CONNECTIONS);
    let max_per_source = (max_connections / SOURCE_SHARE).max(1);
    let options = TcpOptions { max_connections, max_per_source, ..TcpOptions::default() };
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
    let sources = SourceLimit::new(options.max_per_source);
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
            let Some(source) = sources.admit(address) else {
                server.metrics.limited(Transport::Tcp, Bound::Source);
                continue;
            };
            if connections.available_permits() == 0 {
                server.metrics.limited(Transport::Tcp, Bound::Connections);
            }
            // Further clients wait in the kernel's backlog meanwhile.
            let Ok(permit) = connections.clone().acquire_owned().await else { return };
            let server = server.clone();
            let drain = server.drain.clone();
            drain.spawn(async move {
                server.connection(stream, address).await;
                drop((permit, source));
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
        // Not every system has this option; the kernel's own limits hold without it.
        let _ = SockRef::from(&stream).set_tcp_notsent_lowat(MAX_UNSENT);
        let coalescer = WriteCoalescer::default();
        let stream = ClientSocket::new(stream, coalescer.clone(), self.options.stall_timeout);
        let Some(tls) = &self.tls else {
            return self
                .http(stream, coalescer, Peer { address, identity: None, certificate_ends: None }, Protocol::Http1)
                .await;
        };
        let in_progress = self.metrics.handshake(Transport::Tcp);
        // What a phase needs is freed after it: a connection lasts for days, and there are tens of thousands of them.
        let handshake = Box::pin(TlsAcceptor::from(tls.tcp()).accept(stream));
        let handshake = tokio::time::timeout(self.options.head_timeout, handshake);
        let handshake = tokio::select! {
            () = drain_handshake_timeout(&self.drain) => return,
            done = handshake => done,
        };
        match handshake {
            Ok(Ok(stream)) => {
                in_progress.succeeded();
                let session = stream.get_ref().1;
                let peer = tls.peer(address, session.peer_certificates());
                let protocol = if session.alpn_protocol() == Some(b"h2") { Protocol::Http2 } else { Protocol::Http1 };
                self.http(stream, coalescer, peer, protocol).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(%address, %error, "a TLS handshake failed");
                in_progress.failed(HandshakeFailure::of_tls(&error));
            }
            Err(_) => in_progress.failed(HandshakeFailure::TimedOut),
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
            has_requested: AtomicBool::new(false),
            is_accepted: AtomicBool::new(false),
        });
        let ended = match protocol {
            Protocol::Http2 => {
                let stream = Lingering::new(CoalescedFlush::new(stream, coalescer.clone()));
                Box::pin(http2(stream, coalescer.clone(), shared, &self.drain)).await
            }
            _ => Box::pin(http1(Lingering::new(stream), shared, &self.drain)).await,
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
    let service = service_fn(|request| shared.clone().respond(request));
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
            // hyper would close a connection without a request: its first request still gets a response.
            if shared.has_requested.load(Ordering::Relaxed) {
                connection.as_mut().graceful_shutdown();
            }
            tokio::select! {
                ended = connection => ended?,
                () = timeout_unless(&shared.has_requested, DRAIN_GRACE) => {}
            }
        }
        () = shared.first_accepted_timeout() => {
            // A request in flight still gets its response.
            if shared.has_requested.load(Ordering::Relaxed) {
                connection.as_mut().graceful_shutdown();
                connection.await?;
            }
        }
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
        begun = Box::pin(http2::Connection::begin(stream, coalescer, shared.clone())) => begun?,
        () = shared.first_accepted_timeout() => return Ok(()),
    };
    tokio::select! {
        ended = connection.drive() => ended?,
        () = drain.begun() => {
            connection.go_away();
            connection.drive().await?;
        }
        () = shared.first_accepted_timeout() => {
            connection.go_away();
            connection.finish().await?;
        }
    }
    Ok(())
}

impl<H: Handler> Shared<H> {
    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<RecordedBody>, Infallible> {
        self.has_requested.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        let mut request = request.map(RequestBody::Http1);
        let exchange = Exchange::begin(Version::HTTP_11, &mut request, begun);
        let early = match refusal(&request) {
            Some(problem) => Some(problem.into_response()),
            None => self.handler.fast_path(&request, &self.peer),
        };
        let (record, mut response) = match early {
            Some(response) => (None, response),
            None => {
                let record = self.metrics.request_begun(&exchange, &self.peer, request.uri());
                (record, self.handler.handle(request, self.peer.clone()).await)
            }
        };
        if self.drain.has_begun() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let mut record = self.responded(&exchange, record, &mut response, begun.elapsed());
        if exchange.method == Method::HEAD || response.body().is_end_stream() {
            // hyper does not ask for the body.
            record.iter_mut().for_each(|record| record.complete());
        }
        Ok(response.map(|body| RecordedBody { body, record }))
    }
}

/// Checks what hyper accepts over HTTP/1.1 and refuses over HTTP/2, and the length of the URL.
fn refusal<B>(request: &Request<B>) -> Option<Problem> {
    let url_too_long = url_too_long(request);
    if url_too_long.is_some() {
        return url_too_long;
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

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
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::body::add_length;
use super::lingering::Lingering;
use super::metrics::ListenerMetrics;
use super::{Body, Handler, MAX_CONNECTIONS, MAX_HEADER_BYTES, Peer, RequestBody};
use crate::problem::Problem;
use crate::process::identity::Identity;
use crate::process::shutdown::Drain;

/// How long a TLS handshake, then the first request of a connection, and any head over HTTP/1.1, may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that the system takes for a client beyond what is on its way to it. Without this bound it takes megabytes for
/// each client that reads slowly, and a thousand of them leave no memory for the connections of all others.
const MAX_UNSENT: u32 = 256 << 10;

/// How long the listener pauses when the system has no file descriptor left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves a handler over TCP until the drain ends. `tls` without ALPN; `None` is plain HTTP, for the admin listener.
pub fn tcp<H: Handler>(
    listener: TcpListener,
    tls: Option<ServerConfig>,
    handler: H,
    metrics: ListenerMetrics,
    drain: &Drain,
) {
    let acceptor = tls.map(|mut tls| {
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(tls))
    });
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let server = Server { acceptor, handler, metrics, drain: drain.clone() };
    let accept_loop = async move {
        loop {
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
    acceptor: Option<TlsAcceptor>,
    handler: H,
    metrics: ListenerMetrics,
    drain: Drain,
}

impl<H: Handler> Server<H> {
    async fn connection(self, stream: TcpStream, address: SocketAddr) {
        let _ = stream.set_nodelay(true);
        // Not everywhere; without it the system's own bounds hold.
        let _ = SockRef::from(&stream).set_tcp_notsent_lowat(MAX_UNSENT);
        let Some(acceptor) = &self.acceptor else {
            return self.http(stream, Peer { address, identity: None }).await;
        };
        let handshake = tokio::time::timeout(HEAD_TIMEOUT, acceptor.accept(stream));
        let handshake = tokio::select! {
            () = self.drain.begun() => return,
            done = handshake => done,
        };
        match handshake {
            Ok(Ok(stream)) => {
                let certificates = stream.get_ref().1.peer_certificates();
                let identity = certificates.and_then(|chain| chain.first()).and_then(Identity::of_certificate);
                self.http(stream, Peer { address, identity }).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(%address, %error, "a TLS handshake failed");
                self.metrics.handshake_failed("tcp");
            }
            Err(_) => self.metrics.handshake_failed("tcp"),
        }
    }

    async fn http(self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, peer: Peer) {
        let _open = self.metrics.connection("tcp");
        let peer = Arc::new(peer);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(64 << 10);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEADER_BYTES as u32)
            .max_concurrent_streams(256)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .max_frame_size(64 << 10)
            .max_send_buf_size(256 << 10)
            // An idle client that went away without a word is noticed; one that lives answers at no cost to its polls.
            .keep_alive_interval(Duration::from_secs(60))
            .keep_alive_timeout(Duration::from_secs(20));
        let asked = AtomicBool::new(false);
        let service = service_fn(|request: Request<Incoming>| {
            asked.store(true, Ordering::Relaxed);
            let (handler, metrics, peer) = (self.handler.clone(), self.metrics.clone(), peer.clone());
            async move {
                let begun = Instant::now();
                let (version, method) = (request.version(), request.method().clone());
                let response = match refusal(&request) {
                    None => handler.handle(request.map(RequestBody::Incoming), peer).await,
                    Some(problem) => problem.into_response(),
                };
                metrics.answered(version, &method, response.status(), begun.elapsed());
                Ok::<_, Infallible>(if method == Method::HEAD { without_body(response) } else { response })
            }
        });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(Lingering::new(stream)), service));
        let silent = async {
            tokio::time::sleep(HEAD_TIMEOUT).await;
            if asked.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = async { tokio::select! { () = self.drain.begun() => {}, () = silent => {} } } => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, address = %peer.address, "a connection ended with an error");
        }
    }
}

/// What hyper lets pass over HTTP/1 and the later versions of HTTP refuse by themselves.
fn refusal<B>(request: &Request<B>) -> Option<Problem> {
    if request.version() > Version::HTTP_11 {
        return None;
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

//! Serving HTTP/1.1, HTTP/2 and HTTP/3 from one handler.
//!
//! A role writes a [`Handler`]; [`tcp`] serves it over TCP (HTTP/1.1 and 2, with TLS or, for the admin listener,
//! without) and [`quic`] over QUIC (HTTP/3). Both take part in a [`Drain`]: at its beginning
//! clients are told to go away and what is in flight is finished.

mod answer_counts;
mod body;
mod connection_metrics;
mod date;
mod http2;
mod http3;
mod lingering;
mod listener;
mod metrics;
mod minimum_rate;
mod outgoing;
mod quic_metrics;
mod server_tls;
mod tcp;
mod unread;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};

pub use body::{Body, BoxError, RequestBody, RequestBodyError};
#[cfg(feature = "fuzzing")]
pub use http3::fuzzing;
pub use http3::{QuicOptions, quic};
pub use metrics::{HttpMetrics, ListenerMetrics};
pub use server_tls::ServerTls;
pub use tcp::{TcpOptions, tcp, tcp_with};

use super::identity::Identity;
use super::shutdown::Drain;
use weir_protocol::problem::Problem;

/// Connections that one listener holds at a time. When it is reached, TCP clients wait in the kernel's backlog and QUIC
/// clients are refused; `weir_http_connections` beside `weir_http_connections_limit` shows it coming, and
/// `weir_http_connections_limited_total` that it came.
pub const MAX_CONNECTIONS: usize = 50_000;

/// The largest header section of a request, in bytes.
pub const MAX_HEADER_BYTES: usize = 16 << 10;

/// The longest path of a request with its query, in bytes; a longer one is answered `414`.
pub const MAX_URL_BYTES: usize = 8 << 10;

/// How long a client may take nothing of an answer before the stream, or the TCP connection, is reset. Over HTTP/2 and 3 it
/// is the time in all for every 16 KiB, which makes a minimum rate. A TCP connection goes on while the kernel finds room for
/// a little more at the end of each such time: 64 KiB may have to go for the first, and then 16 KiB.
/// `weir_http_stalled_total` counts the resets.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a handshake may take, and the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a handshake may go on when the drain has begun, and then how long a client that has connected may take for its
/// first request: it is answered.
const NEW_CLIENT_IN_DRAIN: Duration = Duration::from_secs(2);

/// Ends when the drain has gone on for longer than a handshake may.
async fn handshake_limit_in_drain(drain: &Drain) {
    drain.begun().await;
    tokio::time::sleep(NEW_CLIENT_IN_DRAIN).await;
}

/// What a request is refused for before a handler sees it, over any version of HTTP.
fn too_long<B>(request: &Request<B>) -> Option<Problem> {
    let length = request.uri().path_and_query().map_or(0, |url| url.as_str().len());
    (length > MAX_URL_BYTES).then(|| {
        Problem::new(
            StatusCode::URI_TOO_LONG,
            "url-too-long",
            "The URL is too long",
            format!("A path with its query may have {MAX_URL_BYTES} bytes; this one has {length}."),
        )
    })
}

/// Ends after a time, unless the client of a connection has sent a request by then: an idle connection holds no permit.
async fn silence(was_asked: &AtomicBool, after: Duration) {
    tokio::time::sleep(after).await;
    if was_asked.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

/// Answers requests, whatever version of HTTP they came by.
///
/// The response's headers hold no hop-by-hop fields. `Date`, and `Content-Length` where the body knows its length, are
/// added by whoever serves. For HEAD the body is dropped; a handler that sends none for it sets the length itself.
pub trait Handler: Clone + Send + Sync + 'static {
    /// Answers a request from memory, in the connection's own task. Must not block. `None`: [`Handler::handle`] answers it.
    fn fast_path(&self, _request: &Request<RequestBody>, _peer: &Peer) -> Option<Response<Body>> {
        None
    }

    /// Answers one request. May be dropped at any await when the client goes away.
    fn handle(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> impl Future<Output = Response<Body>> + Send;
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Where it connects from.
    pub address: SocketAddr,
    /// What its verified client certificate says, when it showed one.
    pub identity: Option<Identity>,
}

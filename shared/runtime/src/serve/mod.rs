//! Serving HTTP/1.1, HTTP/2 and HTTP/3 from one handler.
//!
//! A role writes a [`Handler`]; [`tcp()`] serves it over TCP (HTTP/1.1 and 2, with TLS or, for the admin listener,
//! without) and [`quic`] over QUIC (HTTP/3). Both take part in a [`Drain`]: when it begins, clients get a GOAWAY (HTTP/1.1:
//! `Connection: close`), and requests in flight are finished.

mod access_log;
mod body;
mod client_socket;
mod connection_families;
mod connection_metrics;
mod date;
mod exchange;
mod http2;
mod http3;
mod lingering;
mod listener;
mod metrics;
mod minimum_rate;
mod part_writer;
mod quic_metrics;
mod recorded_body;
mod request_counters;
mod server_tls;
mod source_limit;
mod tcp;
mod tcp_context;
mod unread;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use http::{Request, Response, StatusCode};

pub use access_log::{AccessLog, AccessMode, LogConfig, RequestFacts};
pub use body::{Body, BoxError, RequestBody, RequestBodyError};
pub use http3::{QuicOptions, quic};
pub use metrics::{HttpMetrics, ListenerMetrics};
pub use part_writer::{NotTaken, PART_TIMEOUT, PartWriter};
pub use server_tls::ServerTls;
pub use source_limit::{SourceAddress, SourceLimit, SourcePermit};
pub use tcp::{tcp, tcp_with};
pub use tcp_context::TcpOptions;

use super::identity::Identity;
use super::shutdown::Drain;
use weir_protocol::problem::Problem;

/// Concurrent connections of one listener. Beyond it TCP clients wait in the kernel's backlog and QUIC clients are refused.
/// `weir_http_connections` divided by `weir_http_connections_limit` shows how near the limit is, and
/// `weir_http_connections_limited_total` how often it was reached.
pub const MAX_CONNECTIONS: usize = 50_000;

/// The share of a listener's connections, and of its QUIC handshakes, that one [`SourceAddress`] may hold: one in this many.
/// `weir_http_connections_limited_total{bound="source"}` counts connections beyond it, which are closed.
pub const SOURCE_SHARE: usize = 4;

/// The largest header section of a request, in bytes.
pub const MAX_HEADER_BYTES: usize = 16 << 10;

/// The longest path of a request with its query, in bytes; a longer one is answered `414`.
pub const MAX_URL_BYTES: usize = 8 << 10;

/// How long a client may accept no byte of a response before the stream, or the TCP connection, is reset. Over HTTP/2 and 3
/// a client must accept 16 KiB in this time, which makes a minimum rate. A TCP connection stays open as long as the kernel has
/// room for more bytes at the end of each such period: the client must accept up to 64 KiB in the first, then 16 KiB.
/// `weir_http_stalled_total` counts the resets.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a handshake may take, and then the time to the first accepted request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a handshake may go on after the drain has begun, and how long a connected client may then take for its first
/// request, which still gets a response.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// Resolves [`DRAIN_GRACE`] after the drain has begun.
async fn drain_handshake_timeout(drain: &Drain) {
    drain.begun().await;
    tokio::time::sleep(DRAIN_GRACE).await;
}

/// The problem of a request whose URL exceeds [`MAX_URL_BYTES`], over any version of HTTP.
fn url_too_long<B>(request: &Request<B>) -> Option<Problem> {
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

/// Resolves after a time, unless the flag was set by then.
async fn timeout_unless(flag: &AtomicBool, after: Duration) {
    tokio::time::sleep(after).await;
    if flag.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

/// Whether a response accepts its request. A client without any must not hold one of the connections of the listener: it
/// sends no request, has no valid credentials, or asks for what does not exist.
fn accepts(status: StatusCode) -> bool {
    !status.is_client_error()
}

/// Responds to requests of any version of HTTP.
///
/// The response's headers hold no hop-by-hop fields. The server adds `Date`, and `Content-Length` if the body knows its
/// length. For HEAD the server drops the body; a handler that builds none for it sets the length itself.
pub trait Handler: Clone + Send + Sync + 'static {
    /// Responds from memory, in the connection's own task. Must not block. `None`: [`Handler::handle`] is called.
    fn fast_path(&self, _request: &Request<RequestBody>, _peer: &Peer) -> Option<Response<Body>> {
        None
    }

    /// Responds to one request. The future may be dropped at any await when the client goes away.
    fn handle(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> impl Future<Output = Response<Body>> + Send;
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The remote address.
    pub address: SocketAddr,
    /// The identity in its verified client certificate, if it presented one.
    pub identity: Option<Identity>,
    /// When that certificate ends.
    pub certificate_ends: Option<SystemTime>,
}

impl Peer {
    /// Whether the client certificate has expired since the connection was opened.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.certificate_ends.is_some_and(|ends| ends < now)
    }
}

/// Waits until the clock shows a time, also when it is set meanwhile. `None`: forever.
pub async fn until(time: Option<SystemTime>) {
    let Some(time) = time else { return std::future::pending().await };
    while let Ok(left) = time.duration_since(SystemTime::now()) {
        tokio::time::sleep(left.clamp(MIN_CLOCK_WAIT, MAX_CLOCK_WAIT)).await;
    }
}

/// How long a wait for a time sleeps at least, so that it ends after the time.
const MIN_CLOCK_WAIT: Duration = Duration::from_millis(1);

/// How long a wait for a time sleeps at most, because the clock may be set.
const MAX_CLOCK_WAIT: Duration = Duration::from_secs(60);

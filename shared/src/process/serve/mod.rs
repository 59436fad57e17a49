//! Serving HTTP/1.1, HTTP/2 and HTTP/3 from one handler.
//!
//! A role writes a [`Handler`]; [`tcp`] serves it over TCP (HTTP/1.1 and 2, with TLS or, for the admin listener,
//! without) and [`quic`] over QUIC (HTTP/3). Both take part in a [`Drain`](super::shutdown::Drain): at its beginning
//! clients are told to go away and what is in flight is finished.

mod body;
mod http3;
mod lingering;
mod metrics;
mod tcp;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{Request, Response};

pub use body::{Body, BoxError, RequestBody};
#[cfg(fuzzing)]
pub use http3::fuzzing;
pub use http3::{QuicOptions, quic};
pub use metrics::{HttpMetrics, ListenerMetrics};
pub use tcp::tcp;

use super::identity::Identity;

/// Connections that one listener holds at a time. When it is reached, TCP clients wait in the kernel's backlog and QUIC
/// clients are refused; `weir_http_connections` beside `weir_http_connections_limit` shows it coming.
pub const MAX_CONNECTIONS: usize = 50_000;

/// The largest header section of a request, in bytes.
pub const MAX_HEADER_BYTES: usize = 16 << 10;

/// Answers requests, whatever version of HTTP they came by.
///
/// The response's headers hold no hop-by-hop fields. `Date`, and `Content-Length` where the body knows its length, are
/// added by whoever serves. For HEAD the body is dropped; a handler that sends none for it sets the length itself.
pub trait Handler: Clone + Send + Sync + 'static {
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

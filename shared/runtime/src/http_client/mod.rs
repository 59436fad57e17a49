//! The HTTP/2 client for the next node: edges call origins, agents call edges, origins call each other. And one for
//! webhooks.

mod buffered_stream;
mod connector;
mod name_lookup;
mod plain_words;
mod proxy;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

use self::connector::Connector;
pub use self::name_lookup::NameLookup;
pub use self::plain_words::{is_not_tls, plain_words, root_cause};
pub use self::proxy::{ProxyUrl, ProxyUrlError};

/// How long opening a connection may take: TCP, and the TLS handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A pooling client, by default for requests without bodies.
pub type Http2Client<B = Empty<Bytes>> = Client<Connector, B>;

/// How a client reaches its servers.
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    /// Finds the addresses of names.
    pub lookup: NameLookup,
    /// Requests go through a tunnel that this proxy opens. It looks the names of servers up.
    pub proxy: Option<ProxyUrl>,
}

/// A client for HTTP/2 over TLS. `tls` has no ALPN protocols.
///
/// A peer that accepts a connection and does not answer is given up after [`CONNECT_TIMEOUT`]. A connection whose peer does not
/// respond to pings is closed after 10 s, so that no request waits on a dead connection. Of a host with several addresses each
/// is tried until one accepts. The caller sets the deadlines of requests.
pub fn http2_client<B>(tls: ClientConfig) -> Http2Client<B>
where
    B: HttpBody<Data: Send> + Send,
{
    http2_client_with(tls, ClientOptions::default())
}

/// As [`http2_client`], with options.
pub fn http2_client_with<B>(tls: ClientConfig, options: ClientOptions) -> Http2Client<B>
where
    B: HttpBody<Data: Send> + Send,
{
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_only(true)
        .http2_initial_stream_window_size(4 << 20)
        .http2_initial_connection_window_size(16 << 20)
        .http2_keep_alive_interval(Duration::from_secs(5))
        .http2_keep_alive_timeout(Duration::from_secs(5))
        .build(Connector::new(tls, options))
}

/// A client for one request over HTTP/1.1 to a server outside Weir, with TLS where the URL says so. `tls` has no ALPN
/// protocols. The caller sets the deadline.
pub fn webhook_client<B>(tls: ClientConfig) -> Client<Connector, B>
where
    B: HttpBody<Data: Send> + Send,
{
    Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(Connector::of_webhooks(tls))
}

/// A client for HTTP/1.1 and 2 over TLS, for servers that are not Weir's. `tls` has no ALPN protocols. Redirects are not
/// followed. The caller sets the deadlines of requests.
pub fn https_client(tls: ClientConfig) -> Http2Client {
    Client::builder(TokioExecutor::new()).build(Connector::of_https(tls))
}

/// Why a body could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It is longer than the limit, in bytes.
    #[error("the body is longer than the limit of {0} bytes")]
    TooLong(usize),
    /// No data arrived for this long.
    #[error("the body stalled for {0:?}")]
    Stalled(Duration),
    /// The connection broke.
    #[error("the body was cut off: {0}")]
    Broken(#[from] hyper::Error),
}

/// Reads a small body to its end: at most `limit` bytes, each frame within `idle`.
pub async fn read_body(mut body: Incoming, limit: usize, idle: Duration) -> Result<Bytes, BodyError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = tokio::time::timeout(idle, body.frame()).await.map_err(|_| BodyError::Stalled(idle))? {
        if let Ok(data) = frame?.into_data() {
            if bytes.len() + data.len() > limit {
                return Err(BodyError::TooLong(limit));
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.freeze())
}

//! Opens the connections of a client: TCP, perhaps a tunnel through a proxy, then TLS.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::TryFutureExt;
use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower_service::Service;

use super::buffered_stream::BufferedStream;
use super::name_lookup::NameLookup;
use super::{CONNECT_TIMEOUT, ClientOptions};
use crate::serve::BoxError;

/// A peer accepted a connection and did not finish the TLS handshake.
#[derive(Debug, thiserror::Error)]
#[error("no TLS handshake within {} s of connecting: the server may be hanging", .0.as_secs())]
struct HandshakeTimeout(Duration);

/// Connects within [`CONNECT_TIMEOUT`]: the system accepts connections for a process that hangs, which
/// never answers.
#[derive(Debug, Clone)]
pub struct Connector(HttpsConnector<TcpConnector>);

impl Connector {
    /// Over TLS for HTTP/2. `tls` has no ALPN protocols.
    pub(super) fn new(tls: ClientConfig, options: ClientOptions) -> Self {
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        Self(builder.https_only().enable_http2().wrap_connector(TcpConnector::new(options)))
    }

    /// Over TLS for HTTP/1.1 and 2. `tls` has no ALPN protocols.
    pub(super) fn of_https(tls: ClientConfig) -> Self {
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        Self(
            builder
                .https_only()
                .enable_http1()
                .enable_http2()
                .wrap_connector(TcpConnector::new(ClientOptions::default())),
        )
    }

    /// For HTTP/1.1, over TLS where the URL says so. `tls` has no ALPN protocols.
    pub(super) fn of_webhooks(tls: ClientConfig) -> Self {
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        Self(builder.https_or_http().enable_http1().wrap_connector(TcpConnector::new(ClientOptions::default())))
    }
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<BufferedStream<TcpStream>>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move {
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
            connected.unwrap_or_else(|_| Err(HandshakeTimeout(CONNECT_TIMEOUT).into()))
        })
    }
}

/// Connects with a timeout, `TCP_NODELAY` and a read buffer. Names are looked up for each connection, and their addresses
/// are tried one after the other: the timeout is divided among them.
#[derive(Debug, Clone)]
enum TcpConnector {
    Direct(HttpConnector<NameLookup>),
    /// The proxy looks the server's name up.
    Proxied(Tunnel<HttpConnector<NameLookup>>),
}

impl TcpConnector {
    fn new(options: ClientOptions) -> Self {
        let tcp = configured(HttpConnector::new_with_resolver(options.lookup));
        let Some(proxy) = options.proxy else { return Self::Direct(tcp) };
        let tunnel = Tunnel::new(proxy.uri().clone(), tcp);
        Self::Proxied(match proxy.authorization() {
            Some(authorization) => tunnel.with_auth(authorization.clone()),
            None => tunnel,
        })
    }
}

fn configured<R>(mut tcp: HttpConnector<R>) -> HttpConnector<R> {
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp
}

impl Service<Uri> for TcpConnector {
    type Response = TokioIo<BufferedStream<TcpStream>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(tcp) => tcp.poll_ready(cx).map_err(Into::into),
            Self::Proxied(tunnel) => tunnel.poll_ready(cx).map_err(Into::into),
        }
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting: Pin<Box<dyn Future<Output = Result<TokioIo<TcpStream>, BoxError>> + Send>> = match self {
            Self::Direct(tcp) => Box::pin(tcp.call(uri).map_err(Into::into)),
            Self::Proxied(tunnel) => Box::pin(tunnel.call(uri).map_err(Into::into)),
        };
        Box::pin(async move { Ok(TokioIo::new(BufferedStream::new(connecting.await?.into_inner()))) })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use bytes::Bytes;
    use http_body_util::Empty;
    use rustls::RootCertStore;
    use tokio::net::TcpListener;

    use super::*;
    use crate::http_client::{http2_client, root_cause};

    #[tokio::test]
    async fn all_addresses_of_a_name_are_tried() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // Nothing listens at the first two.
        let addresses = [2, 3, 1].map(|host| SocketAddr::from(([127, 0, 0, host], 0)));
        let lookup = NameLookup::of(move |_| Ok(addresses.to_vec()));
        let mut tcp = configured(HttpConnector::new_with_resolver(lookup));
        let stream = tcp.call(format!("https://origin.example:{port}").parse().unwrap()).await.unwrap();
        assert_eq!(stream.inner().peer_addr().unwrap(), listener.local_addr().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_accepts_and_never_answers_is_given_up() {
        // Nobody accepts: the system does, as for a process that is stopped.
        let hung = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let tls = ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let request =
            http2_client::<Empty<Bytes>>(tls).get(format!("https://{}", hung.local_addr().unwrap()).parse().unwrap());
        let answered = tokio::time::timeout(CONNECT_TIMEOUT * 10, request).await.expect("an end");
        assert_eq!(root_cause(&answered.unwrap_err()), HandshakeTimeout(CONNECT_TIMEOUT).to_string());
    }
}

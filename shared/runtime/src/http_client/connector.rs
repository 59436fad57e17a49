//! Opens the TCP connections of a client.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use super::CONNECT_TIMEOUT;
use super::buffered_stream::BufferedStream;
use crate::serve::BoxError;

/// Connects with a timeout, `TCP_NODELAY` and a read buffer. Names are looked up for each connection, and their addresses
/// are tried one after the other: the timeout is divided among them.
#[derive(Debug, Clone)]
pub struct Connector(HttpConnector);

impl Connector {
    pub(super) fn new() -> Self {
        Self(configured(HttpConnector::new()))
    }
}

fn configured<R>(mut tcp: HttpConnector<R>) -> HttpConnector<R> {
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp
}

impl Service<Uri> for Connector {
    type Response = TokioIo<BufferedStream<TcpStream>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move { Ok(TokioIo::new(BufferedStream::new(connecting.await?.into_inner()))) })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use std::net::{Ipv4Addr, SocketAddr};

    use hyper_util::client::legacy::connect::dns::Name;
    use tokio::net::TcpListener;

    use super::*;

    /// What a name resolves to.
    #[derive(Clone)]
    struct Addresses([SocketAddr; 3]);

    impl Service<Name> for Addresses {
        type Response = std::array::IntoIter<SocketAddr, 3>;
        type Error = Infallible;
        type Future = Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Name) -> Self::Future {
            ready(Ok(self.0.into_iter()))
        }
    }

    #[tokio::test]
    async fn all_addresses_of_a_name_are_tried() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // Nothing listens at the first two.
        let addresses = [2, 3, 1].map(|host| SocketAddr::from(([127, 0, 0, host], 0)));
        let mut tcp = configured(HttpConnector::new_with_resolver(Addresses(addresses)));
        let stream = tcp.call(format!("https://origin.example:{port}").parse().unwrap()).await.unwrap();
        assert_eq!(stream.inner().peer_addr().unwrap(), listener.local_addr().unwrap());
    }
}

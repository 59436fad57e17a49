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

/// Connects with a timeout, `TCP_NODELAY` and a read buffer.
#[derive(Debug, Clone)]
pub struct Connector(HttpConnector);

impl Connector {
    pub(super) fn new() -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Self(tcp)
    }
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

//! A client that starts a download and stops reading until the test lets it continue.

use std::net::SocketAddr;
use std::pin::Pin;

use anyhow::{bail, ensure};
use bytes::{Buf, Bytes};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;

use crate::connect::{self, Http3Requests};
use crate::poller::Version;

/// The receive buffer of a TCP client: small, so that the server notices soon.
const RECEIVE_BUFFER: u32 = 32 << 10;

/// The flow-control window over HTTP/2: much larger than the receive buffer.
const HTTP2_WINDOW: u32 = 4 << 20;

/// The flow-control window over QUIC.
const QUIC_WINDOW: u32 = 64 << 10;

/// A stalled download. Dropping it closes its connection.
pub struct SlowReader(Connection);

/// Drives a TCP connection while it is polled, which is only until the head arrives. hyper would otherwise read an
/// HTTP/2 connection without a reader of its bodies, and hide the stall from the server.
type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

enum Connection {
    Tcp { body: Incoming, driver: Driver, _alive: Box<dyn Send> },
    Quic { stream: Box<h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>>, _alive: Http3Requests },
}

impl SlowReader {
    /// Requests a path, reads the head of the response, which must be `200`, and stops reading.
    ///
    /// # Errors
    /// The server cannot be reached, or responds with another status.
    pub async fn begin(version: Version, server: SocketAddr, path: &str, tls: ClientConfig) -> anyhow::Result<Self> {
        let request = Request::get(format!("https://{server}{path}")).header("accept-encoding", "zstd");
        let tcp = async |protocol| connect::tls(server, tls.clone(), protocol, Some(RECEIVE_BUFFER)).await;
        Ok(Self(match version {
            Version::Http1 => {
                let (mut sender, driver) = http1::handshake(tcp(b"http/1.1").await?).await?;
                let request = request.uri(path).header("host", server.to_string()).body(Empty::<Bytes>::new())?;
                let (body, driver) = head(sender.send_request(request), Box::pin(driver)).await?;
                Connection::Tcp { body, driver, _alive: Box::new(sender) }
            }
            Version::Http2 => {
                let (mut sender, driver) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(HTTP2_WINDOW)
                    .initial_connection_window_size(HTTP2_WINDOW)
                    .handshake(tcp(b"h2").await?)
                    .await?;
                let request = request.body(Empty::<Bytes>::new())?;
                let (body, driver) = head(sender.send_request(request), Box::pin(driver)).await?;
                Connection::Tcp { body, driver, _alive: Box::new(sender) }
            }
            Version::Http3 => {
                let mut sender = connect::http3(server, tls, Some(QUIC_WINDOW)).await?;
                let mut stream = sender.send_request(request.body(())?).await?;
                stream.finish().await?;
                check(&stream.recv_response().await?)?;
                Connection::Quic { stream: Box::new(stream), _alive: sender }
            }
        }))
    }

    /// Reads the rest of the body, and passes each part to `take`.
    ///
    /// # Errors
    /// The body is incomplete.
    pub async fn finish(self, mut take: impl FnMut(&[u8])) -> anyhow::Result<()> {
        match self.0 {
            Connection::Tcp { mut body, driver, _alive } => {
                let driver = tokio::spawn(driver);
                while let Some(frame) = body.frame().await {
                    if let Ok(data) = frame?.into_data() {
                        take(&data);
                    }
                }
                driver.abort();
            }
            Connection::Quic { mut stream, _alive } => {
                while let Some(mut data) = stream.recv_data().await? {
                    take(&data.copy_to_bytes(data.remaining()));
                }
            }
        }
        Ok(())
    }
}

/// Drives a connection until the head of the response has arrived.
async fn head(
    response: impl Future<Output = hyper::Result<Response<Incoming>>>,
    mut driver: Driver,
) -> anyhow::Result<(Incoming, Driver)> {
    let response = tokio::select! {
        response = response => response?,
        ended = &mut driver => bail!("the connection ended: {ended:?}"),
    };
    check(&response)?;
    Ok((response.into_body(), driver))
}

fn check<B>(response: &Response<B>) -> anyhow::Result<()> {
    ensure!(response.status() == StatusCode::OK, "the answer is {}", response.status());
    Ok(())
}

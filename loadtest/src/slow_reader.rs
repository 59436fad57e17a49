//! A client that begins a download and then takes nothing more of it until it is told to: what a cache must bear.

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

/// Bytes that the system keeps for a TCP client that reads nothing: little, so that the server feels it soon.
const RECEIVE_BUFFER: u32 = 32 << 10;

/// What a client over HTTP/2 says that it would take at once: much more than it does.
const HTTP2_WINDOW: u32 = 4 << 20;

/// What a client over QUIC says that it would take.
const QUIC_WINDOW: u32 = 64 << 10;

/// A download that stands still. Dropping it closes its connection.
pub struct SlowReader(Held);

/// What reads and writes a TCP connection, while it is polled: no longer than the head takes. hyper reads an HTTP/2
/// connection whether anybody wants its bodies or not, and would hide from the server that nobody does.
type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

enum Held {
    Tcp { body: Incoming, driver: Driver, _alive: Box<dyn Send> },
    Quic { stream: Box<h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>>, _alive: Http3Requests },
}

impl SlowReader {
    /// Connects, asks for a path, reads the head of the answer, which must be a `200`, and stops.
    ///
    /// # Errors
    /// The server cannot be reached or answers otherwise.
    pub async fn begin(version: Version, server: SocketAddr, path: &str, tls: ClientConfig) -> anyhow::Result<Self> {
        let request = Request::get(format!("https://{server}{path}")).header("accept-encoding", "zstd");
        let tcp = async |protocol| connect::tls(server, tls.clone(), protocol, Some(RECEIVE_BUFFER)).await;
        Ok(Self(match version {
            Version::Http1 => {
                let (mut sender, driver) = http1::handshake(tcp(b"http/1.1").await?).await?;
                let request = request.uri(path).header("host", server.to_string()).body(Empty::<Bytes>::new())?;
                let (body, driver) = head(sender.send_request(request), Box::pin(driver)).await?;
                Held::Tcp { body, driver, _alive: Box::new(sender) }
            }
            Version::Http2 => {
                let (mut sender, driver) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(HTTP2_WINDOW)
                    .initial_connection_window_size(HTTP2_WINDOW)
                    .handshake(tcp(b"h2").await?)
                    .await?;
                let request = request.body(Empty::<Bytes>::new())?;
                let (body, driver) = head(sender.send_request(request), Box::pin(driver)).await?;
                Held::Tcp { body, driver, _alive: Box::new(sender) }
            }
            Version::Http3 => {
                let mut sender = connect::http3(server, tls, Some(QUIC_WINDOW)).await?;
                let mut stream = sender.send_request(request.body(())?).await?;
                stream.finish().await?;
                check(&stream.recv_response().await?)?;
                Held::Quic { stream: Box::new(stream), _alive: sender }
            }
        }))
    }

    /// Reads what is left, to the end, and hands each part to `take`.
    ///
    /// # Errors
    /// The body breaks off.
    pub async fn finish(self, mut take: impl FnMut(&[u8])) -> anyhow::Result<()> {
        match self.0 {
            Held::Tcp { mut body, driver, _alive } => {
                let driver = tokio::spawn(driver);
                while let Some(frame) = body.frame().await {
                    if let Ok(data) = frame?.into_data() {
                        take(&data);
                    }
                }
                driver.abort();
            }
            Held::Quic { mut stream, _alive } => {
                while let Some(mut data) = stream.recv_data().await? {
                    take(&data.copy_to_bytes(data.remaining()));
                }
            }
        }
        Ok(())
    }
}

/// Drives a connection until the head of the answer is there, and no further.
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

//! Polls as a fleet of connected agents does: conditional `HEAD`s, over one version of HTTP, as fast as they are answered.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use weir_shared::process::tls;

/// The versions of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1 over TLS: one request at a time on each connection.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3.
    Http3,
}

/// What to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the server listens; its certificate must be valid for the address.
    pub server: SocketAddr,
    /// The path that is polled.
    pub path: String,
    /// Over what.
    pub version: Version,
    /// Connections.
    pub connections: usize,
    /// Requests under way on each; over HTTP/1.1 always one.
    pub streams: usize,
    /// For how long.
    pub duration: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Requests that were answered `304`.
    pub requests: u64,
    /// How long that took.
    pub took: Duration,
}

/// Polls. Each answer must be a `304`.
///
/// # Errors
/// The server cannot be reached, its certificate is not of `ca`, or it answers anything else.
pub async fn poll(plan: &Plan, ca: &Path) -> anyhow::Result<Outcome> {
    let tls = tls::client_config(ca, None)?;
    let uri: Uri = format!("https://{}{}", plan.server, plan.path).parse()?;
    let mut connections = Vec::new();
    for _ in 0..plan.connections {
        connections.push(Connection::open(plan, tls.clone()).await?);
    }
    let tag = connections[0].clone().etag(&uri).await?;
    let streams = if plan.version == Version::Http1 { 1 } else { plan.streams };
    let answered = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let end = begun + plan.duration;
    let mut pollers = JoinSet::new();
    for connection in &connections {
        for _ in 0..streams {
            let (mut connection, uri, tag, answered) = (connection.clone(), uri.clone(), tag.clone(), answered.clone());
            pollers.spawn(async move {
                while Instant::now() < end {
                    let (status, _) = connection.head(&uri, Some(&tag)).await?;
                    ensure!(status == StatusCode::NOT_MODIFIED, "answered {status}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
        }
    }
    while let Some(poller) = pollers.join_next().await {
        poller??;
    }
    Ok(Outcome { requests: answered.load(Ordering::Relaxed), took: begun.elapsed() })
}

/// A connection that can be shared among the streams it carries.
#[derive(Clone)]
enum Connection {
    Http1(Arc<tokio::sync::Mutex<http1::SendRequest<Empty<Bytes>>>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
    Http3(h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>),
}

impl Connection {
    async fn open(plan: &Plan, mut tls: ClientConfig) -> anyhow::Result<Self> {
        if plan.version == Version::Http3 {
            tls.alpn_protocols = vec![b"h3".to_vec()];
            let mut endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into())?;
            let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
            endpoint.set_default_client_config(config);
            let connection = endpoint.connect(plan.server, &plan.server.ip().to_string())?.await?;
            let (mut driver, sender) =
                h3::client::builder().send_grease(false).build(h3_quinn::Connection::new(connection)).await?;
            tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
            return Ok(Self::Http3(sender));
        }
        let protocol: &[u8] = if plan.version == Version::Http2 { b"h2" } else { b"http/1.1" };
        tls.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(plan.server).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::IpAddress(plan.server.ip().into());
        let stream = TokioIo::new(TlsConnector::from(Arc::new(tls)).connect(name, stream).await?);
        Ok(if plan.version == Version::Http2 {
            let (sender, driver) = http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(driver);
            Self::Http2(sender)
        } else {
            let (sender, driver) = http1::handshake(stream).await?;
            tokio::spawn(driver);
            Self::Http1(Arc::new(tokio::sync::Mutex::new(sender)))
        })
    }

    /// The tag of what the server holds now.
    async fn etag(&mut self, uri: &Uri) -> anyhow::Result<String> {
        let (status, tag) = self.head(uri, None).await?;
        ensure!(status == StatusCode::OK, "{uri} answered {status}");
        tag.context("the answer has an ETag")
    }

    async fn head(&mut self, uri: &Uri, tag: Option<&str>) -> anyhow::Result<(StatusCode, Option<String>)> {
        let mut request = Request::builder().method(Method::HEAD).uri(uri.clone());
        if let Some(tag) = tag {
            request = request.header("if-none-match", tag);
        }
        let head = match self {
            Self::Http1(sender) => {
                let host = uri.authority().context("the URI has an authority")?.as_str();
                let target = uri.path().to_owned();
                let request = request.uri(target).header("host", host).body(Empty::new())?;
                let mut sender = sender.lock().await;
                sender.ready().await?;
                sender.send_request(request).await?.into_parts().0
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request.body(Empty::new())?).await?.into_parts().0
            }
            Self::Http3(sender) => {
                let mut stream = sender.send_request(request.body(())?).await?;
                stream.finish().await?;
                let head = stream.recv_response().await?.into_parts().0;
                // The end of the stream, which would otherwise be answered with a STOP_SENDING.
                while stream.recv_data().await?.is_some() {}
                head
            }
        };
        let tag = head.headers.get("etag").and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        Ok((head.status, tag))
    }
}

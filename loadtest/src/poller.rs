//! Loads a server as a fleet of connected agents does, over one version of HTTP: with polls (conditional `HEAD`s) or
//! fetches (`GET`s of the body), as fast as it responds.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::{Buf, Bytes};
use http::{HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;
use tokio::task::JoinSet;
use weir_runtime::tls;

use crate::connect::{self, Http3Requests};

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

/// The kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A conditional `HEAD` with the current tag; the response must be `304`.
    Poll,
    /// A `GET`; each body must be as long as the first.
    Fetch,
}

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server's address, for which its certificate must be valid.
    pub server: SocketAddr,
    /// The request path.
    pub path: String,
    /// The kind of request.
    pub request: Request,
    /// The field `Authorization`.
    pub authorization: Option<HeaderValue>,
    /// The version of HTTP.
    pub version: Version,
    /// The number of connections.
    pub connections: usize,
    /// Concurrent requests per connection; always one over HTTP/1.1.
    pub streams: usize,
    /// The duration of the run.
    pub duration: Duration,
}

/// The result of a run.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Successful requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// The time it took.
    pub took: Duration,
}

/// Runs the load.
///
/// # Errors
/// The server cannot be reached, its certificate is not signed by `ca`, or a response is unexpected.
pub async fn run(plan: &Plan, ca: &Path) -> anyhow::Result<Outcome> {
    let tls = tls::client_config(ca, None)?;
    let uri: Uri = format!("https://{}{}", plan.server, plan.path).parse()?;
    let mut connections = Vec::new();
    for _ in 0..plan.connections {
        connections.push(Connection::open(plan, tls.clone()).await?);
    }
    let method = match plan.request {
        Request::Poll => Method::HEAD,
        Request::Fetch => Method::GET,
    };
    let ask = Ask { method, tag: None, authorization: plan.authorization.clone() };
    let first = connections[0].clone().ask(&uri, &ask).await?;
    ensure!(first.status == StatusCode::OK, "{uri} answered {}", first.status);
    let (ask, expected) = match plan.request {
        Request::Poll => {
            let tag = Some(first.tag.context("the answer has an ETag")?);
            (Ask { tag, ..ask }, (StatusCode::NOT_MODIFIED, 0))
        }
        Request::Fetch => (ask, (StatusCode::OK, first.length)),
    };
    let streams = if plan.version == Version::Http1 { 1 } else { plan.streams };
    let answered = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let end = begun + plan.duration;
    let mut askers = JoinSet::new();
    for connection in &connections {
        for _ in 0..streams {
            let (mut connection, uri, ask, answered) = (connection.clone(), uri.clone(), ask.clone(), answered.clone());
            askers.spawn(async move {
                while Instant::now() < end {
                    let answer = connection.ask(&uri, &ask).await?;
                    let (status, length) = (answer.status, answer.length);
                    ensure!((status, length) == expected, "answered {status} with {length} bytes");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
        }
    }
    while let Some(asker) = askers.join_next().await {
        asker??;
    }
    let requests = answered.load(Ordering::Relaxed);
    Ok(Outcome { requests, bytes: requests * expected.1, took: begun.elapsed() })
}

#[derive(Debug, Clone)]
struct Ask {
    method: Method,
    tag: Option<String>,
    authorization: Option<HeaderValue>,
}

struct Answer {
    status: StatusCode,
    tag: Option<String>,
    /// The length of the body in bytes.
    length: u64,
}

/// The HTTP/2 window of a client in bytes: large, because the server is measured.
const WINDOW: u32 = 16 << 20;

/// A connection shared by its streams.
#[derive(Clone)]
enum Connection {
    Http1(Arc<tokio::sync::Mutex<http1::SendRequest<Empty<Bytes>>>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
    Http3(Http3Requests),
}

impl Connection {
    async fn open(plan: &Plan, tls: ClientConfig) -> anyhow::Result<Self> {
        Ok(match plan.version {
            Version::Http1 => {
                let stream = connect::tls(plan.server, tls, b"http/1.1", None).await?;
                let (sender, driver) = http1::handshake(stream).await?;
                tokio::spawn(driver);
                Self::Http1(Arc::new(tokio::sync::Mutex::new(sender)))
            }
            Version::Http2 => {
                let (sender, driver) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(WINDOW)
                    .initial_connection_window_size(WINDOW)
                    .handshake(connect::tls(plan.server, tls, b"h2", None).await?)
                    .await?;
                tokio::spawn(driver);
                Self::Http2(sender)
            }
            Version::Http3 => Self::Http3(connect::http3(plan.server, tls, None).await?),
        })
    }

    async fn ask(&mut self, uri: &Uri, ask: &Ask) -> anyhow::Result<Answer> {
        let mut request = http::Request::builder().method(&ask.method).uri(uri.clone());
        if let Some(tag) = &ask.tag {
            request = request.header("if-none-match", tag);
        }
        if let Some(authorization) = &ask.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if ask.method == Method::GET {
            request = request.header("accept-encoding", "zstd");
        }
        match self {
            Self::Http1(sender) => {
                let host = uri.authority().context("the URI has an authority")?.as_str();
                let request = request.uri(uri.path()).header("host", host).body(Empty::new())?;
                let mut sender = sender.lock().await;
                sender.ready().await?;
                received(sender.send_request(request).await?).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                received(sender.send_request(request.body(Empty::new())?).await?).await
            }
            Self::Http3(sender) => {
                let mut stream = sender.send_request(request.body(())?).await?;
                stream.finish().await?;
                let head = stream.recv_response().await?.into_parts().0;
                let mut length = 0;
                // Read to the end of the stream, also after a HEAD: the client would send STOP_SENDING otherwise.
                while let Some(data) = stream.recv_data().await? {
                    length += data.remaining() as u64;
                }
                Ok(answer(&head, length))
            }
        }
    }
}

async fn received(response: http::Response<Incoming>) -> anyhow::Result<Answer> {
    let (head, mut body) = response.into_parts();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame?.data_ref().map_or(0, Bytes::len) as u64;
    }
    Ok(answer(&head, length))
}

fn answer(head: &http::response::Parts, length: u64) -> Answer {
    let tag = head.headers.get("etag").and_then(|tag| tag.to_str().ok()).map(str::to_owned);
    Answer { status: head.status, tag, length }
}

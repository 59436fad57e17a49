//! A response, over any version of HTTP.

use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::error::{RequestError, chain};
use super::h3_stream::{Http3Stream, request_error};

/// The longest time for the body of a document: an edge that sends a byte now and then must not hold up the agent.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The version of HTTP of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/3 over QUIC.
    H3,
    /// HTTP/2 over TLS.
    H2,
}

impl Protocol {
    /// The value of a metric's label: `h3` or `h2`.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::H3 => "h3",
            Protocol::H2 => "h2",
        }
    }
}

/// The head of a response, and its body to be read.
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: ResponseBody,
    pub(crate) protocol: Protocol,
    /// The connection over HTTP/3.
    pub(crate) connection_id: Option<usize>,
    /// When its connection reaches `max_connection_age`.
    pub(crate) renew_at: Instant,
}

/// A streamed body.
pub(crate) struct ResponseBody {
    source: Source,
    idle: Duration,
}

enum Source {
    H2(Incoming),
    H3(Box<Http3Stream>),
}

impl ResponseBody {
    pub(super) fn h2(body: Incoming, idle: Duration) -> Self {
        Self { source: Source::H2(body), idle }
    }

    pub(super) fn h3(stream: Box<Http3Stream>, idle: Duration) -> Self {
        Self { source: Source::H3(stream), idle }
    }

    /// The same body, of which parts arrive at least this often.
    pub(crate) fn with_idle(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }

    /// The next bytes; `None` at the end. Fails when nothing arrives for the idle timeout, or the body breaks off.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, RequestError> {
        let idle = self.idle;
        tokio::time::timeout(idle, self.next()).await.map_err(|_| RequestError::Silent(idle))?
    }

    /// The whole body of a document. `None`: it is longer than `limit` bytes.
    pub(crate) async fn read(&mut self, limit: usize) -> Result<Option<Vec<u8>>, RequestError> {
        let read = async {
            let mut bytes = Vec::new();
            while let Some(part) = self.chunk().await? {
                if bytes.len() + part.len() > limit {
                    return Ok(None);
                }
                bytes.extend_from_slice(&part);
            }
            Ok(Some(bytes))
        };
        tokio::time::timeout(DOCUMENT_TIMEOUT, read).await.map_err(|_| RequestError::Slow(DOCUMENT_TIMEOUT))?
    }

    async fn next(&mut self) -> Result<Option<Bytes>, RequestError> {
        match &mut self.source {
            Source::H2(body) => loop {
                match body.frame().await {
                    None => return Ok(None),
                    Some(Ok(frame)) => {
                        if let Ok(data) = frame.into_data() {
                            return Ok(Some(data));
                        }
                    }
                    Some(Err(error)) if error.is_timeout() || error.is_closed() || error.is_incomplete_message() => {
                        return Err(RequestError::Closed(chain(&error)));
                    }
                    Some(Err(error)) => return Err(RequestError::Broken(chain(&error))),
                }
            },
            Source::H3(stream) => match stream.recv_data().await {
                Ok(None) => Ok(None),
                Ok(Some(mut data)) => Ok(Some(data.copy_to_bytes(data.remaining()))),
                Err(error) => Err(request_error(&error)),
            },
        }
    }
}

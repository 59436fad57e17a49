//! The bodies of requests and responses.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{StatusCode, header, response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use tokio::sync::{mpsc, oneshot};
use weir_protocol::problem::Problem;

use super::unread::Http2Body;

/// How long reading a small body may take.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a response. An error while it is read resets the stream, so that the client never sees a clean end.
#[derive(Default)]
pub enum Body {
    /// Nothing.
    #[default]
    Empty,
    /// Bytes in memory.
    Full(Bytes),
    /// Parts that a task writes, such as events.
    Parts(Parts),
    /// Bytes as they become available.
    Stream(Pin<Box<dyn HttpBody<Data = Bytes, Error = BoxError> + Send>>),
}

impl Body {
    /// A body from anything that yields frames of bytes.
    pub fn stream(body: impl HttpBody<Data = Bytes, Error = BoxError> + Send + 'static) -> Self {
        Self::Stream(Box::pin(body))
    }

    /// Waits until it has failed for a reason that does not wait for the reader to take the bytes before it.
    pub(super) async fn failed(&mut self) {
        match self {
            Body::Parts(parts) => parts.failed().await,
            Body::Empty | Body::Full(_) | Body::Stream(_) => std::future::pending().await,
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Full(bytes.into())
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::Full(bytes)
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let body = self.get_mut();
        match body {
            Body::Empty => Poll::Ready(None),
            Body::Full(_) => {
                let Body::Full(bytes) = std::mem::take(body) else { unreachable!("matched above") };
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Body::Parts(parts) => Pin::new(parts).poll_frame(cx),
            Body::Stream(stream) => stream.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Empty => true,
            Body::Full(bytes) => bytes.is_empty(),
            Body::Parts(_) => false,
            Body::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Empty => SizeHint::with_exact(0),
            Body::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::Parts(_) => SizeHint::default(),
            Body::Stream(stream) => stream.size_hint(),
        }
    }
}

/// The reading end of a body that a task writes in parts.
#[derive(Debug)]
pub struct Parts {
    received: mpsc::Receiver<Result<Bytes, BoxError>>,
    /// `None`: it was.
    is_clean: Option<oneshot::Receiver<()>>,
}

impl Parts {
    pub(super) fn new(received: mpsc::Receiver<Result<Bytes, BoxError>>, is_clean: oneshot::Receiver<()>) -> Self {
        Self { received, is_clean: Some(is_clean) }
    }

    /// Waits until the writer has ended the body with an error.
    pub(super) async fn failed(&mut self) {
        if let Some(is_clean) = &mut self.is_clean {
            if is_clean.await.is_err() {
                return;
            }
            self.is_clean = None;
        }
        std::future::pending::<()>().await;
    }
}

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.received.poll_recv(cx).map(|part| match part {
            Some(Ok(part)) if part.is_empty() => None,
            Some(part) => Some(part.map(Frame::data)),
            None => Some(Err("the stream was cut off".into())),
        })
    }
}

/// Sets `Content-Length` if the body knows its length and the handler has not set it. An empty body gets none: it may stand
/// for an omitted one (HEAD, `304`).
pub(super) fn add_content_length(head: &mut response::Parts, body: &Body) {
    if let Some(length @ 1..) = body.size_hint().exact() {
        head.headers.entry(header::CONTENT_LENGTH).or_insert(length.into());
    }
}

/// The body of a request. Over HTTP/3, that of GET and HEAD is not read.
#[derive(Debug)]
pub enum RequestBody {
    /// Nothing.
    Empty,
    /// Over HTTP/1.1.
    Http1(Incoming),
    /// Over HTTP/2.
    Http2(Http2Body),
    /// Over HTTP/3.
    Http3(BoxBody<Bytes, BoxError>),
}

/// The body of a request was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestBodyError {
    /// It is longer than this limit, in bytes.
    #[error("the request's body has more than {0} bytes")]
    TooLong(usize),
    /// It took longer than 30 s.
    #[error("the request's body did not arrive in time")]
    TooSlow,
    /// The client or the connection ended it early.
    #[error("the request's body was cut off")]
    BrokeOff,
}

impl From<RequestBodyError> for Problem {
    fn from(error: RequestBodyError) -> Self {
        match error {
            RequestBodyError::TooLong(limit) => {
                let detail = format!("The request's body may have at most {limit} bytes.");
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The request is too large", detail)
            }
            RequestBodyError::TooSlow => Self::body_too_slow(),
            RequestBodyError::BrokeOff => Self::malformed(format!("{error}.")),
        }
    }
}

impl RequestBody {
    /// Reads a small body to its end: at most `limit` bytes, within 30 s.
    ///
    /// # Errors
    /// It is longer, takes longer, or breaks off.
    pub async fn read(mut self, limit: usize) -> Result<Bytes, RequestBodyError> {
        let whole = async {
            let mut bytes = BytesMut::new();
            while let Some(frame) = self.frame().await {
                let frame = frame.map_err(|_| RequestBodyError::BrokeOff)?;
                if let Ok(data) = frame.into_data() {
                    if bytes.len() + data.len() > limit {
                        return Err(RequestBodyError::TooLong(limit));
                    }
                    bytes.extend_from_slice(&data);
                }
            }
            Ok(bytes.freeze())
        };
        tokio::time::timeout(READ_TIMEOUT, whole).await.unwrap_or(Err(RequestBodyError::TooSlow))
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            RequestBody::Empty => Poll::Ready(None),
            RequestBody::Http1(incoming) => Pin::new(incoming).poll_frame(cx).map_err(Into::into),
            RequestBody::Http2(body) => {
                let stream = body.stream_mut();
                stream.poll_data(cx).map(|part| {
                    part.map(|data| {
                        let data = data?;
                        stream.flow_control().release_capacity(data.len())?;
                        Ok(Frame::data(data))
                    })
                })
            }
            RequestBody::Http3(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Empty => true,
            RequestBody::Http1(incoming) => incoming.is_end_stream(),
            RequestBody::Http2(body) => body.stream().is_end_stream(),
            RequestBody::Http3(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Http1(incoming) => incoming.size_hint(),
            RequestBody::Http2(_) | RequestBody::Http3(_) => SizeHint::default(),
        }
    }
}

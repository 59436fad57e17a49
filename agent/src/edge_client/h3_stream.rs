//! The stream of one response over HTTP/3, and what its errors mean.

use bytes::{Buf, Bytes};
use h3::client::RequestStream;
use h3::error::{ConnectionError, StreamError};

use super::error::{RequestError, chain};
use super::h3_dialer::{MAX_IDLE, Requests};

/// The stream of one response. It keeps its connection open, also after that was replaced.
pub(super) struct Http3Stream {
    stream: RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>,
    _requests: Requests,
}

impl Http3Stream {
    pub(super) fn new(stream: RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>, requests: Requests) -> Self {
        Self { stream, _requests: requests }
    }

    pub(super) async fn recv_data(&mut self) -> Result<Option<impl Buf + use<>>, StreamError> {
        Ok(self.stream.recv_data().await?.map(|mut data| data.copy_to_bytes(data.remaining())))
    }
}

/// Classifies a stream error.
pub(super) fn request_error(error: &StreamError) -> RequestError {
    match error {
        StreamError::ConnectionError { 0: ConnectionError::Timeout { .. }, .. } => RequestError::Silent(MAX_IDLE),
        StreamError::ConnectionError { .. } | StreamError::RemoteClosing { .. } => RequestError::Closed(chain(error)),
        _ => RequestError::Broken(chain(error)),
    }
}

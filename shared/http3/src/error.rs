//! Errors of connections and requests, with the codes of RFC 9114 section 8.1.

use quinn::VarInt;

use super::qpack::QpackError;

/// An error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(u32);

impl Code {
    /// Nothing failed.
    pub const NO_ERROR: Self = Self(0x100);
    /// The server failed.
    pub const INTERNAL_ERROR: Self = Self(0x102);
    pub(super) const STREAM_CREATION_ERROR: Self = Self(0x103);
    pub(super) const CLOSED_CRITICAL_STREAM: Self = Self(0x104);
    pub(super) const FRAME_UNEXPECTED: Self = Self(0x105);
    pub(super) const FRAME_ERROR: Self = Self(0x106);
    pub(super) const EXCESSIVE_LOAD: Self = Self(0x107);
    pub(super) const ID_ERROR: Self = Self(0x108);
    pub(super) const SETTINGS_ERROR: Self = Self(0x109);
    pub(super) const MISSING_SETTINGS: Self = Self(0x10a);
    /// The request was not begun.
    pub const REQUEST_REJECTED: Self = Self(0x10b);
    /// The response is not sent to its end.
    pub const REQUEST_CANCELLED: Self = Self(0x10c);
    /// The stream of the request ended within it.
    pub const REQUEST_INCOMPLETE: Self = Self(0x10d);
    pub(super) const MESSAGE_ERROR: Self = Self(0x10e);
    pub(super) const QPACK_DECOMPRESSION_FAILED: Self = Self(0x200);
    pub(super) const QPACK_ENCODER_STREAM_ERROR: Self = Self(0x201);
    pub(super) const QPACK_DECODER_STREAM_ERROR: Self = Self(0x202);
}

impl From<Code> for VarInt {
    fn from(code: Code) -> Self {
        VarInt::from_u32(code.0)
    }
}

/// Why a request got no complete response.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The client violated the protocol: the connection is closed.
    #[error("the client violated the protocol ({0:?})")]
    Connection(Code),
    /// The request is malformed: its stream is reset.
    #[error("the request is malformed ({0:?})")]
    Stream(Code),
    /// The headers exceed the limit: the response is `431`.
    #[error("the headers are too large")]
    HeadTooLarge,
    /// The client cancelled the request, or has gone.
    #[error("the client cancelled the request: {0}")]
    Ended(String),
    /// The client accepts the response below the minimum rate.
    #[error("the client accepts the response too slowly")]
    Stalled,
    /// The body of the response could not be read to its end.
    #[error("the body of the response could not be read to its end: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

impl From<QpackError> for RequestError {
    fn from(error: QpackError) -> Self {
        match error {
            QpackError::TooLarge => Self::HeadTooLarge,
            QpackError::Malformed | QpackError::Dynamic => Self::Connection(Code::QPACK_DECOMPRESSION_FAILED),
        }
    }
}

impl From<quinn::ReadError> for RequestError {
    fn from(error: quinn::ReadError) -> Self {
        Self::Ended(error.to_string())
    }
}

impl From<quinn::WriteError> for RequestError {
    fn from(error: quinn::WriteError) -> Self {
        Self::Ended(error.to_string())
    }
}

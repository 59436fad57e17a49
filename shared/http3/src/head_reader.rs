//! Reads a request's stream up to the end of its HEADERS frame. Pure.

use bytes::{Bytes, BytesMut};
use http::Request;

use super::error::{Code, RequestError};
use super::frame::{self, kind};
use super::head;

/// Bytes of a stream up to the end of its HEADERS frame, beyond the largest section. An encoded section exceeds the decoded
/// one by no more than its framing; unknown frames before it may take the rest.
const MAX_BYTES_BEFORE_HEAD: usize = 4 << 10;

/// Reads the headers of a request from a stream in chunks of any size.
#[derive(Debug)]
pub struct HeadReader {
    max_header_bytes: usize,
    bytes: Bytes,
    /// Bytes of unknown frames.
    skipped: usize,
}

impl HeadReader {
    /// Reads headers of at most so many bytes.
    pub fn new(max_header_bytes: usize) -> Self {
        Self { max_header_bytes, bytes: Bytes::new(), skipped: 0 }
    }

    /// Adds the next chunk. Returns the request once its headers are complete.
    ///
    /// # Errors
    /// The stream violates RFC 9114, or the headers are too large.
    pub fn take(&mut self, chunk: Bytes) -> Result<Option<Request<()>>, RequestError> {
        if self.bytes.is_empty() {
            self.bytes = chunk;
        } else {
            let mut joined = BytesMut::from(std::mem::take(&mut self.bytes));
            joined.extend_from_slice(&chunk);
            self.bytes = joined.freeze();
        }
        // Frames of unknown types may precede HEADERS, and are skipped (section 9).
        while let Some((frame_type, length, head)) = frame::read_head(&self.bytes) {
            let is_head = match frame_type {
                kind::HEADERS => true,
                kind::DATA
                | kind::CANCEL_PUSH
                | kind::SETTINGS
                | kind::PUSH_PROMISE
                | kind::GOAWAY
                | kind::MAX_PUSH_ID => {
                    return Err(RequestError::Connection(Code::FRAME_UNEXPECTED));
                }
                reserved if kind::is_reserved(reserved) => {
                    return Err(RequestError::Connection(Code::FRAME_UNEXPECTED));
                }
                _ => false,
            };
            let end = usize::try_from(length).ok().and_then(|length| head.checked_add(length));
            // Checked before the payload arrives, so that no larger frame is ever buffered.
            let most = self.max_header_bytes + MAX_BYTES_BEFORE_HEAD;
            let Some(end) = end.filter(|end| self.skipped + end <= most) else {
                let unknown = RequestError::Stream(Code::EXCESSIVE_LOAD);
                return Err(if is_head { RequestError::HeadTooLarge } else { unknown });
            };
            let Some(payload) = self.bytes.get(head..end) else { break };
            if is_head {
                let request = head::read(payload, self.max_header_bytes).map(Some);
                self.bytes = self.bytes.slice(end..);
                return request;
            }
            self.bytes = self.bytes.slice(end..);
            self.skipped += end;
        }
        Ok(None)
    }

    /// What followed the headers.
    pub fn into_rest(self) -> Bytes {
        self.bytes
    }
}

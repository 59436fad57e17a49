//! The beginning of a request's stream, up to the end of its first HEADERS frame. Pure.

use bytes::{Bytes, BytesMut};
use http::Request;

use super::super::{MAX_HEADER_BYTES, RequestBody};
use super::error::{Code, RequestError};
use super::frame::{self, kind};
use super::head;

/// How much of a stream may come up to the end of the head of its request, in bytes. A section is never larger coded
/// than decoded by more than its framing; unknown frames before it may take the rest.
const MAX_BYTES_BEFORE_HEAD: usize = MAX_HEADER_BYTES + (4 << 10);

/// Reads a request's head from a stream that comes in any pieces.
#[derive(Debug, Default)]
pub(super) struct HeadReader {
    bytes: Bytes,
    /// Bytes of frames that mean nothing.
    passed_over: usize,
}

impl HeadReader {
    /// Takes what came next of the stream. Gives the request once its head is whole.
    ///
    /// # Errors
    /// It breaks the rules of RFC 9114, or is too large.
    pub(super) fn take(&mut self, chunk: Bytes) -> Result<Option<Request<RequestBody>>, RequestError> {
        if self.bytes.is_empty() {
            self.bytes = chunk;
        } else {
            let mut joined = BytesMut::from(std::mem::take(&mut self.bytes));
            joined.extend_from_slice(&chunk);
            self.bytes = joined.freeze();
        }
        // Frames of unknown types may stand before it, and mean nothing (section 9).
        while let Some((found, length, head)) = frame::read_head(&self.bytes) {
            let is_head = match found {
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
            // Said before its payload has come: an incomplete frame is never larger than this.
            let Some(end) = end.filter(|end| self.passed_over + end <= MAX_BYTES_BEFORE_HEAD) else {
                let unknown = RequestError::Stream(Code::EXCESSIVE_LOAD);
                return Err(if is_head { RequestError::HeadTooLarge } else { unknown });
            };
            let Some(payload) = self.bytes.get(head..end) else { break };
            if is_head {
                return head::read(payload, MAX_HEADER_BYTES).map(Some);
            }
            self.bytes = self.bytes.slice(end..);
            self.passed_over += end;
        }
        Ok(None)
    }
}

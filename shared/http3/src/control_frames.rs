//! The frames of the client's control stream, and their order (RFC 9114 section 6.2.1 and 7.2).

use super::error::Code;
use super::frame::{self, kind};

/// The largest SETTINGS frame that is read, in bytes. Settings are pairs of integers, and few.
const MAX_SETTINGS: u64 = 4 << 10;

/// The longest integer, in bytes.
const MAX_INTEGER: u64 = 8;

/// The state of a client's control stream.
#[derive(Debug, Default)]
pub(super) struct ControlFrames {
    has_settings: bool,
    last_goaway: Option<u64>,
    last_max_push: Option<u64>,
}

/// What to do with the payload of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Payload {
    /// Read it whole.
    Read,
    /// Skip it: the type is unknown.
    Skip,
}

impl ControlFrames {
    /// Checks the type and length of the next frame.
    ///
    /// # Errors
    /// The code to close the connection with: the frame is not allowed here, or too long.
    pub(super) fn head(&mut self, frame_type: u64, length: u64) -> Result<Payload, Code> {
        let (max_length, error) = match frame_type {
            kind::SETTINGS if self.has_settings => return Err(Code::FRAME_UNEXPECTED),
            kind::SETTINGS => (MAX_SETTINGS, Code::EXCESSIVE_LOAD),
            _ if !self.has_settings => return Err(Code::MISSING_SETTINGS),
            kind::DATA | kind::HEADERS | kind::PUSH_PROMISE => return Err(Code::FRAME_UNEXPECTED),
            reserved if kind::is_reserved(reserved) => return Err(Code::FRAME_UNEXPECTED),
            kind::GOAWAY | kind::MAX_PUSH_ID | kind::CANCEL_PUSH => (MAX_INTEGER, Code::FRAME_ERROR),
            _ => return Ok(Payload::Skip),
        };
        self.has_settings = true;
        if length > max_length { Err(error) } else { Ok(Payload::Read) }
    }

    /// Checks the payload of a frame.
    ///
    /// # Errors
    /// The code to close the connection with: the payload is malformed.
    pub(super) fn payload(&mut self, frame_type: u64, payload: &[u8]) -> Result<(), Code> {
        if frame_type == kind::SETTINGS {
            return settings(payload);
        }
        let Some((id, length)) = frame::read_integer(payload) else { return Err(Code::FRAME_ERROR) };
        if length != payload.len() {
            return Err(Code::FRAME_ERROR);
        }
        let is_in_order = match frame_type {
            // A client's GOAWAY concerns pushes, of which there are none; its id must not grow.
            kind::GOAWAY => self.last_goaway.replace(id).is_none_or(|last| id <= last),
            kind::MAX_PUSH_ID => self.last_max_push.replace(id).is_none_or(|last| id >= last),
            // CANCEL_PUSH: no push was promised.
            _ => false,
        };
        if is_in_order { Ok(()) } else { Err(Code::ID_ERROR) }
    }
}

/// Checks that a payload is settings. Their values need no attention: responses use no dynamic table, and have headers of a
/// few hundred bytes.
fn settings(mut payload: &[u8]) -> Result<(), Code> {
    while !payload.is_empty() {
        let (setting, _, length) = frame::read_head(payload).ok_or(Code::FRAME_ERROR)?;
        // Settings of HTTP/2 that have no counterpart (section 7.2.4.1).
        if matches!(setting, 0x2..=0x5) {
            return Err(Code::SETTINGS_ERROR);
        }
        payload = &payload[length..];
    }
    Ok(())
}

//! The frames of the peer's control stream, and their order (RFC 9114 section 6.2.1 and 7.2).

use super::error::Code;
use super::frame::{self, kind};

/// The largest SETTINGS frame that is read, in bytes. Settings are pairs of integers, and few.
const MAX_SETTINGS: u64 = 4 << 10;

/// The largest payload that is one integer, in bytes.
const MAX_INTEGER: u64 = 8;

/// What a client has said on its control stream so far.
#[derive(Debug, Default)]
pub(super) struct ControlFrames {
    has_settings: bool,
    last_goaway: Option<u64>,
    last_max_push: Option<u64>,
}

/// What to do with the payload of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Payload {
    /// It is to be read as a whole.
    Read,
    /// It means nothing here, whatever its length.
    Skip,
}

impl ControlFrames {
    /// Takes the head of the next frame.
    ///
    /// # Errors
    /// It has no place there, or is too long: the connection is to be closed.
    pub(super) fn head(&mut self, found: u64, length: u64) -> Result<Payload, Code> {
        let (most, error) = match found {
            kind::SETTINGS if self.has_settings => return Err(Code::FRAME_UNEXPECTED),
            kind::SETTINGS => (MAX_SETTINGS, Code::EXCESSIVE_LOAD),
            _ if !self.has_settings => return Err(Code::MISSING_SETTINGS),
            kind::DATA | kind::HEADERS | kind::PUSH_PROMISE => return Err(Code::FRAME_UNEXPECTED),
            reserved if kind::is_reserved(reserved) => return Err(Code::FRAME_UNEXPECTED),
            kind::GOAWAY | kind::MAX_PUSH_ID | kind::CANCEL_PUSH => (MAX_INTEGER, Code::FRAME_ERROR),
            _ => return Ok(Payload::Skip),
        };
        self.has_settings = true;
        if length > most { Err(error) } else { Ok(Payload::Read) }
    }

    /// Takes the payload of a frame that is to be read.
    ///
    /// # Errors
    /// It is not what its type says: the connection is to be closed.
    pub(super) fn payload(&mut self, found: u64, payload: &[u8]) -> Result<(), Code> {
        if found == kind::SETTINGS {
            return settings(payload);
        }
        let Some((id, length)) = frame::read_integer(payload) else { return Err(Code::FRAME_ERROR) };
        if length != payload.len() {
            return Err(Code::FRAME_ERROR);
        }
        let is_in_order = match found {
            // A client's GOAWAY is about pushes, of which there are none; it may go down alone.
            kind::GOAWAY => self.last_goaway.replace(id).is_none_or(|last| id <= last),
            kind::MAX_PUSH_ID => self.last_max_push.replace(id).is_none_or(|last| id >= last),
            // CANCEL_PUSH: none was ever promised.
            _ => false,
        };
        if is_in_order { Ok(()) } else { Err(Code::ID_ERROR) }
    }
}

/// Checks that a payload is settings. What they say is kept to in any case: an answer has no dynamic table, and a head
/// of a few hundred bytes.
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

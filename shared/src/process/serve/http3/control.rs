//! The streams in one direction: what this end says of itself, and what the other does.

use bytes::{Buf, BytesMut};
use quinn::{RecvStream, SendStream};

use super::super::MAX_HEADER_BYTES;
use super::error::Code;
use super::frame::{self, kind};

/// The largest frame on the control stream that is read as a whole, in bytes. Settings are pairs of integers.
const MAX_CONTROL_FRAME: u64 = 4 << 10;

/// Opens this end's control stream with its settings.
///
/// # Errors
/// The connection is gone.
pub(super) async fn open(connection: &quinn::Connection) -> Option<SendStream> {
    let mut settings = Vec::new();
    frame::write_integer(frame::MAX_FIELD_SECTION_SIZE, &mut settings);
    frame::write_integer(MAX_HEADER_BYTES as u64, &mut settings);
    // No setting for QPACK: no dynamic table, no blocked streams, is what its absence means.
    let mut out = Vec::new();
    frame::write_integer(kind::CONTROL_STREAM, &mut out);
    frame::write_head(kind::SETTINGS, settings.len() as u64, &mut out);
    out.extend_from_slice(&settings);
    let mut stream = connection.open_uni().await.ok()?;
    stream.write_all(&out).await.ok()?;
    Some(stream)
}

/// Tells the client that no request from this stream on will be answered (section 5.2).
pub(super) async fn go_away(control: &mut SendStream, stream: u64) -> Option<()> {
    let mut id = Vec::new();
    frame::write_integer(stream, &mut id);
    let mut out = Vec::new();
    frame::write_head(kind::GOAWAY, id.len() as u64, &mut out);
    out.extend_from_slice(&id);
    control.write_all(&out).await.ok()
}

/// Which of the streams of which there may be one were opened.
#[derive(Debug, Default)]
pub(super) struct Opened {
    control: bool,
    encoder: bool,
    decoder: bool,
}

/// What a stream of the peer's turned out to be.
pub(super) enum Incoming {
    /// Its control stream.
    Control(Reader),
    /// One of QPACK's, which has nothing to say without a dynamic table.
    Qpack(Reader),
    /// One of a type that means nothing here, or that broke off before it said.
    Unknown(RecvStream),
}

/// Reads the type of a stream.
pub(super) async fn identify(stream: RecvStream) -> (u64, Reader) {
    let mut reader = Reader { stream, bytes: BytesMut::new() };
    loop {
        if let Some((found, length)) = frame::read_integer(&reader.bytes) {
            reader.bytes.advance(length);
            return (found, reader);
        }
        if !reader.more().await {
            return (u64::MAX, reader);
        }
    }
}

impl Opened {
    /// Takes a stream of a type.
    ///
    /// # Errors
    /// There may be one of it, or none from a client: the connection is to be closed.
    pub(super) fn admit(&mut self, found: u64, reader: Reader) -> Result<Incoming, Code> {
        let slot = match found {
            kind::CONTROL_STREAM => &mut self.control,
            kind::QPACK_ENCODER_STREAM => &mut self.encoder,
            kind::QPACK_DECODER_STREAM => &mut self.decoder,
            kind::PUSH_STREAM => return Err(Code::STREAM_CREATION_ERROR),
            _ => return Ok(Incoming::Unknown(reader.stream)),
        };
        if std::mem::replace(slot, true) {
            return Err(Code::STREAM_CREATION_ERROR);
        }
        Ok(if found == kind::CONTROL_STREAM { Incoming::Control(reader) } else { Incoming::Qpack(reader) })
    }
}

impl Incoming {
    /// Reads the stream for as long as the connection lives; the error with which the connection is to be closed.
    pub(super) async fn watch(self) -> Option<Code> {
        match self {
            Incoming::Control(reader) => Some(reader.control().await),
            Incoming::Qpack(mut reader) => {
                while reader.more().await {
                    reader.bytes.clear();
                }
                Some(Code::CLOSED_CRITICAL_STREAM)
            }
            Incoming::Unknown(mut stream) => {
                let _ = stream.stop(Code::STREAM_CREATION_ERROR.into());
                None
            }
        }
    }
}

/// A stream, with what was read of it.
pub(super) struct Reader {
    stream: RecvStream,
    bytes: BytesMut,
}

impl Reader {
    /// Reads some more. False: the stream has ended.
    async fn more(&mut self) -> bool {
        match self.stream.read_chunk(4 << 10, true).await {
            Ok(Some(chunk)) => {
                self.bytes.extend_from_slice(&chunk.bytes);
                true
            }
            Ok(None) | Err(_) => false,
        }
    }

    /// Reads the frames of a control stream until one breaks the protocol, or the stream ends, which does too.
    async fn control(mut self) -> Code {
        let mut has_settings = false;
        loop {
            let Some((found, length, head)) = frame::read_head(&self.bytes) else {
                if self.more().await {
                    continue;
                }
                return Code::CLOSED_CRITICAL_STREAM;
            };
            match found {
                kind::SETTINGS if has_settings => return Code::FRAME_UNEXPECTED,
                kind::SETTINGS => has_settings = true,
                _ if !has_settings => return Code::MISSING_SETTINGS,
                kind::DATA | kind::HEADERS | kind::PUSH_PROMISE => return Code::FRAME_UNEXPECTED,
                reserved if kind::is_reserved(reserved) => return Code::FRAME_UNEXPECTED,
                // No push was ever promised, and whatever the client's settings are, a response keeps to them: it has
                // no dynamic table, and a head of a few hundred bytes.
                _ => {}
            }
            if length > MAX_CONTROL_FRAME {
                return Code::EXCESSIVE_LOAD;
            }
            let end = head + length as usize;
            while self.bytes.len() < end {
                if !self.more().await {
                    return Code::CLOSED_CRITICAL_STREAM;
                }
            }
            if found == kind::SETTINGS && !is_settings(&self.bytes[head..end]) {
                return Code::FRAME_ERROR;
            }
            self.bytes.advance(end);
        }
    }
}

/// Whether a payload is pairs of integers.
fn is_settings(mut payload: &[u8]) -> bool {
    while !payload.is_empty() {
        let Some((_, _, length)) = frame::read_head(payload) else { return false };
        payload = &payload[length..];
    }
    true
}

//! The streams in one direction: what this end says of itself, and what the other does.

use bytes::{Buf, BytesMut};
use quinn::{RecvStream, SendStream, WriteError};

use super::super::MAX_HEADER_BYTES;
use super::control_frames::{ControlFrames, Payload};
use super::error::Code;
use super::frame::{self, kind};
use super::qpack::{DecoderStream, EncoderStream};

/// This end's control stream, with what is still to be said there.
///
/// A client may be slow to take even that, or busy with a large answer: nothing else waits for it.
pub(super) struct Outgoing {
    stream: SendStream,
    unsent: Vec<u8>,
}

impl Outgoing {
    /// Begins with the settings.
    pub(super) fn new(stream: SendStream) -> Self {
        let mut settings = Vec::new();
        frame::write_integer(frame::MAX_FIELD_SECTION_SIZE, &mut settings);
        frame::write_integer(MAX_HEADER_BYTES as u64, &mut settings);
        // No setting for QPACK: no dynamic table, no blocked streams, is what its absence means.
        let mut unsent = Vec::new();
        frame::write_integer(kind::CONTROL_STREAM, &mut unsent);
        frame::write_head(kind::SETTINGS, settings.len() as u64, &mut unsent);
        unsent.extend_from_slice(&settings);
        Self { stream, unsent }
    }

    /// Tells the client that no request from this stream on will be answered (section 5.2).
    pub(super) fn go_away(&mut self, stream: u64) {
        let mut id = Vec::new();
        frame::write_integer(stream, &mut id);
        frame::write_head(kind::GOAWAY, id.len() as u64, &mut self.unsent);
        self.unsent.extend_from_slice(&id);
    }

    /// Whether something is to be written.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Writes some of what is to be said. May be dropped at any await.
    ///
    /// # Errors
    /// The client closed the stream, or the connection is gone: it is to be closed.
    pub(super) async fn write(&mut self) -> Result<(), Code> {
        match self.stream.write(&self.unsent).await {
            Ok(written) => {
                self.unsent.drain(..written);
                Ok(())
            }
            Err(WriteError::Stopped(_)) => Err(Code::CLOSED_CRITICAL_STREAM),
            Err(_) => Err(Code::NO_ERROR),
        }
    }
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
    /// That of its QPACK encoder.
    Encoder(Reader),
    /// That of its QPACK decoder.
    Decoder(Reader),
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
        Ok(match found {
            kind::CONTROL_STREAM => Incoming::Control(reader),
            kind::QPACK_ENCODER_STREAM => Incoming::Encoder(reader),
            _ => Incoming::Decoder(reader),
        })
    }
}

impl Incoming {
    /// Reads the stream for as long as the connection lives; the error with which the connection is to be closed.
    pub(super) async fn watch(self) -> Option<Code> {
        match self {
            Incoming::Control(mut reader) => Some(reader.control().await.unwrap_or(Code::CLOSED_CRITICAL_STREAM)),
            Incoming::Encoder(reader) => {
                let mut instructions = EncoderStream;
                Some(reader.qpack(|bytes| instructions.take(bytes), Code::QPACK_ENCODER_STREAM_ERROR).await)
            }
            Incoming::Decoder(reader) => {
                let mut instructions = DecoderStream::default();
                Some(reader.qpack(|bytes| instructions.take(bytes), Code::QPACK_DECODER_STREAM_ERROR).await)
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

    /// Reads the frames of a control stream until one breaks the protocol. `None`: the stream ended, which does too.
    async fn control(&mut self) -> Option<Code> {
        let mut frames = ControlFrames::default();
        loop {
            let (found, length, head) = loop {
                match frame::read_head(&self.bytes) {
                    Some(head) => break head,
                    None => self.more().await.then_some(())?,
                }
            };
            self.bytes.advance(head);
            match frames.head(found, length) {
                Ok(Payload::Read) => {}
                Ok(Payload::Skip) => {
                    self.skip(length).await?;
                    continue;
                }
                Err(code) => return Some(code),
            }
            // The length was found to be small.
            while (self.bytes.len() as u64) < length {
                self.more().await.then_some(())?;
            }
            let payload = self.bytes.split_to(length as usize);
            if let Err(code) = frames.payload(found, &payload) {
                return Some(code);
            }
        }
    }

    async fn skip(&mut self, mut length: u64) -> Option<()> {
        loop {
            let here = self.bytes.len().min(usize::try_from(length).unwrap_or(usize::MAX));
            self.bytes.advance(here);
            length -= here as u64;
            if length == 0 {
                return Some(());
            }
            self.more().await.then_some(())?;
        }
    }

    /// Reads the instructions of one of QPACK's streams.
    async fn qpack(mut self, mut is_in_order: impl FnMut(&[u8]) -> bool, error: Code) -> Code {
        loop {
            if !is_in_order(&self.bytes) {
                return error;
            }
            self.bytes.clear();
            if !self.more().await {
                return Code::CLOSED_CRITICAL_STREAM;
            }
        }
    }
}

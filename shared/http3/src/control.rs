//! The unidirectional streams: the server's control stream, and those of the client.

use bytes::{Buf, BytesMut};
use quinn::{RecvStream, SendStream, WriteError};

use super::control_frames::{ControlFrames, Payload};
use super::error::Code;
use super::frame::{self, kind};
use super::qpack::{DecoderStream, EncoderStream};

/// The server's control stream, with its unsent bytes.
///
/// Nothing else waits for it: a client may be slow to accept even these few bytes.
pub struct ControlSender {
    stream: SendStream,
    unsent: Vec<u8>,
}

impl ControlSender {
    /// Queues the settings. `max_header_bytes`: those of a request.
    pub fn new(stream: SendStream, max_header_bytes: usize) -> Self {
        let mut settings = Vec::new();
        frame::write_integer(frame::MAX_FIELD_SECTION_SIZE, &mut settings);
        frame::write_integer(max_header_bytes as u64, &mut settings);
        // Without a QPACK setting there is no dynamic table and no blocked stream.
        let mut unsent = Vec::new();
        frame::write_integer(kind::CONTROL_STREAM, &mut unsent);
        frame::write_head(kind::SETTINGS, settings.len() as u64, &mut unsent);
        unsent.extend_from_slice(&settings);
        Self { stream, unsent }
    }

    /// Queues a GOAWAY: requests from this stream id on are refused (section 5.2).
    pub fn go_away(&mut self, stream: u64) {
        let mut id = Vec::new();
        frame::write_integer(stream, &mut id);
        frame::write_head(kind::GOAWAY, id.len() as u64, &mut self.unsent);
        self.unsent.extend_from_slice(&id);
    }

    /// Whether bytes are queued.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Writes some of the queued bytes. May be dropped at any await.
    ///
    /// # Errors
    /// The code to close the connection with: the client closed the stream, or the connection is gone.
    pub async fn write(&mut self) -> Result<(), Code> {
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

/// Which of the client's critical streams are open; there may be one of each.
#[derive(Debug, Default)]
pub struct CriticalStreams {
    control: bool,
    encoder: bool,
    decoder: bool,
}

/// A unidirectional stream of the client.
pub enum PeerStream {
    /// The control stream.
    Control(StreamReader),
    /// The stream of the QPACK encoder.
    Encoder(StreamReader),
    /// The stream of the QPACK decoder.
    Decoder(StreamReader),
    /// A stream of an unknown type, or one that ended before its type.
    Unknown(RecvStream),
}

/// Reads the type of a stream.
pub async fn identify(stream: RecvStream) -> (u64, StreamReader) {
    let mut reader = StreamReader { stream, bytes: BytesMut::new() };
    loop {
        if let Some((stream_type, length)) = frame::read_integer(&reader.bytes) {
            reader.bytes.advance(length);
            return (stream_type, reader);
        }
        if !reader.more().await {
            return (u64::MAX, reader);
        }
    }
}

impl CriticalStreams {
    /// Registers a stream.
    ///
    /// # Errors
    /// The code to close the connection with: the stream is a second one of its type, or a push stream.
    pub fn open(&mut self, stream_type: u64, reader: StreamReader) -> Result<PeerStream, Code> {
        let is_open = match stream_type {
            kind::CONTROL_STREAM => &mut self.control,
            kind::QPACK_ENCODER_STREAM => &mut self.encoder,
            kind::QPACK_DECODER_STREAM => &mut self.decoder,
            kind::PUSH_STREAM => return Err(Code::STREAM_CREATION_ERROR),
            _ => return Ok(PeerStream::Unknown(reader.stream)),
        };
        if std::mem::replace(is_open, true) {
            return Err(Code::STREAM_CREATION_ERROR);
        }
        Ok(match stream_type {
            kind::CONTROL_STREAM => PeerStream::Control(reader),
            kind::QPACK_ENCODER_STREAM => PeerStream::Encoder(reader),
            _ => PeerStream::Decoder(reader),
        })
    }
}

impl PeerStream {
    /// Reads the stream until it ends or violates the protocol. Returns the code to close the connection with, if any.
    pub async fn watch(self) -> Option<Code> {
        match self {
            PeerStream::Control(mut reader) => Some(reader.control().await.unwrap_or(Code::CLOSED_CRITICAL_STREAM)),
            PeerStream::Encoder(reader) => {
                let mut instructions = EncoderStream;
                Some(reader.qpack(|bytes| instructions.take(bytes), Code::QPACK_ENCODER_STREAM_ERROR).await)
            }
            PeerStream::Decoder(reader) => {
                let mut instructions = DecoderStream::default();
                Some(reader.qpack(|bytes| instructions.take(bytes), Code::QPACK_DECODER_STREAM_ERROR).await)
            }
            PeerStream::Unknown(mut stream) => {
                let _ = stream.stop(Code::STREAM_CREATION_ERROR.into());
                None
            }
        }
    }
}

/// A stream, with the bytes that were read and not parsed yet.
pub struct StreamReader {
    stream: RecvStream,
    bytes: BytesMut,
}

impl StreamReader {
    /// Reads more bytes. False: the stream has ended.
    async fn more(&mut self) -> bool {
        match self.stream.read_chunk(4 << 10, true).await {
            Ok(Some(chunk)) => {
                self.bytes.extend_from_slice(&chunk.bytes);
                true
            }
            Ok(None) | Err(_) => false,
        }
    }

    /// Reads the frames of a control stream until one violates the protocol. `None`: the stream ended.
    async fn control(&mut self) -> Option<Code> {
        let mut frames = ControlFrames::default();
        loop {
            let (frame_type, length, head) = loop {
                match frame::read_head(&self.bytes) {
                    Some(head) => break head,
                    None => self.more().await.then_some(())?,
                }
            };
            self.bytes.advance(head);
            match frames.head(frame_type, length) {
                Ok(Payload::Read) => {}
                Ok(Payload::Skip) => {
                    self.skip(length).await?;
                    continue;
                }
                Err(code) => return Some(code),
            }
            // `head` has limited the length.
            while (self.bytes.len() as u64) < length {
                self.more().await.then_some(())?;
            }
            let payload = self.bytes.split_to(length as usize);
            if let Err(code) = frames.payload(frame_type, &payload) {
                return Some(code);
            }
        }
    }

    async fn skip(&mut self, mut length: u64) -> Option<()> {
        loop {
            let skipped = self.bytes.len().min(usize::try_from(length).unwrap_or(usize::MAX));
            self.bytes.advance(skipped);
            length -= skipped as u64;
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

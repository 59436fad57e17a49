//! Entry points for fuzzers: the HTTP/3 parsers of unauthenticated input.

use bytes::Bytes;

use super::control_frames::{ControlFrames, Payload};
use super::head_reader::HeadReader;
use super::qpack::{DecoderStream, EncoderStream};
use super::{frame, head};

/// The largest headers of a request, as servers limit them.
const MAX_HEADER_BYTES: usize = 16 << 10;

/// Reads the field section of a request.
///
/// # Panics
/// When an accepted request violates RFC 9114 section 4.3.
pub fn http3_head(section: &[u8]) {
    let Ok(request) = head::read(section, MAX_HEADER_BYTES) else { return };
    assert!(request.uri().authority().is_some() && request.uri().path_and_query().is_some());
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32);
    assert!(fields.sum::<usize>() <= MAX_HEADER_BYTES, "the limit counts every field");
}

/// Reads the beginning of a request's stream, once whole and once in chunks of the size in the first byte.
///
/// # Panics
/// When the results differ.
pub fn http3_request(bytes: &[u8]) {
    let Some((size, stream)) = bytes.split_first() else { return };
    let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut reader = HeadReader::new(MAX_HEADER_BYTES);
        for piece in pieces {
            match reader.take(Bytes::copy_from_slice(piece)) {
                Ok(None) => {}
                Ok(Some(request)) => return format!("{} {} {:?}", request.method(), request.uri(), request.headers()),
                Err(error) => return format!("{error:?}"),
            }
        }
        "more".to_owned()
    };
    let whole = read(&mut std::iter::once(stream));
    let pieces = read(&mut stream.chunks(usize::from(*size).max(1)));
    assert_eq!(whole, pieces);
}

/// Reads the frames of a control stream, and the same bytes as QPACK's two streams.
///
/// # Panics
/// When a payload is to be read that is longer than any known frame.
pub fn http3_control(mut bytes: &[u8]) {
    EncoderStream.take(bytes);
    DecoderStream::default().take(bytes);
    let mut frames = ControlFrames::default();
    while let Some((kind, length, taken)) = frame::read_head(bytes) {
        bytes = &bytes[taken..];
        let Ok(payload) = frames.head(kind, length) else { return };
        let Some((content, rest)) = usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length))
        else {
            return;
        };
        if payload == Payload::Read {
            assert!(length <= 4 << 10);
            if frames.payload(kind, content).is_err() {
                return;
            }
        }
        bytes = rest;
    }
}

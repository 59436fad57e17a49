//! The body of a request: the DATA frames that follow its headers, read as the handler wants them.

use bytes::{Buf, Bytes, BytesMut};
use futures_util::stream;
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use quinn::RecvStream;

use super::error::{Code, RequestError};
use super::frame::{self, kind};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The most bytes of a chunk.
const MAX_CHUNK: usize = 16 << 10;

/// The most bytes of trailers and of frames of unknown types; they are skipped.
const MAX_SKIPPED: u64 = 4 << 10;

/// The body on a stream. `rest`: what arrived with the headers.
pub fn of(receiver: RecvStream, rest: Bytes) -> BoxBody<Bytes, BoxError> {
    let reader = Reader { receiver, frames: Frames { bytes: rest, ..Frames::default() } };
    let frames = stream::try_unfold(reader, |mut reader| async move {
        let data = reader.next().await.map_err(BoxError::from)?;
        Ok(data.map(|data| (Frame::data(data), reader)))
    });
    StreamBody::new(frames).boxed()
}

struct Reader {
    receiver: RecvStream,
    frames: Frames,
}

impl Reader {
    async fn next(&mut self) -> Result<Option<Bytes>, RequestError> {
        loop {
            if let Some(data) = self.frames.next()? {
                return Ok(Some(data));
            }
            match self.receiver.read_chunk(MAX_CHUNK, true).await? {
                Some(chunk) => self.frames.push(&chunk.bytes),
                None if self.frames.is_between() => return Ok(None),
                None => return Err(RequestError::Stream(Code::REQUEST_INCOMPLETE)),
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // After the end of the stream this does nothing.
        let _ = self.receiver.stop(Code::NO_ERROR.into());
    }
}

/// Takes the data out of frames. Pure.
#[derive(Debug, Default)]
struct Frames {
    bytes: Bytes,
    /// What is missing of the current frame, if it is DATA.
    data: u64,
    /// The same of any other frame.
    other: u64,
    skipped: u64,
}

impl Frames {
    fn push(&mut self, chunk: &Bytes) {
        let mut joined = BytesMut::from(std::mem::take(&mut self.bytes));
        joined.extend_from_slice(chunk);
        self.bytes = joined.freeze();
    }

    /// Whether no frame has begun that is not complete.
    fn is_between(&self) -> bool {
        self.bytes.is_empty() && self.data == 0 && self.other == 0
    }

    /// The next data that is there.
    fn next(&mut self) -> Result<Option<Bytes>, RequestError> {
        loop {
            let have = |wanted: u64| usize::try_from(wanted).unwrap_or(usize::MAX).min(self.bytes.len());
            let (data, other) = (have(self.data), have(self.other));
            if data > 0 {
                self.data -= data as u64;
                return Ok(Some(self.bytes.split_to(data)));
            }
            self.bytes.advance(other);
            self.other -= other as u64;
            if self.data + self.other > 0 {
                return Ok(None);
            }
            let Some((kind, length, head)) = frame::read_head(&self.bytes) else { return Ok(None) };
            self.bytes.advance(head);
            match kind {
                kind::DATA => self.data = length,
                kind::CANCEL_PUSH | kind::SETTINGS | kind::PUSH_PROMISE | kind::GOAWAY | kind::MAX_PUSH_ID => {
                    return Err(RequestError::Stream(Code::FRAME_UNEXPECTED));
                }
                reserved if kind::is_reserved(reserved) => {
                    return Err(RequestError::Stream(Code::FRAME_UNEXPECTED));
                }
                // Trailers, and frames of unknown types.
                _ => {
                    self.skipped = self.skipped.saturating_add(length);
                    if self.skipped > MAX_SKIPPED {
                        return Err(RequestError::Stream(Code::EXCESSIVE_LOAD));
                    }
                    self.other = length;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame_of(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::write_head(kind, payload.len() as u64, &mut bytes);
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn trailers_are_skipped_within_a_bound_and_other_frames_are_errors() {
        let all = |bytes: Vec<u8>| {
            let mut frames = Frames { bytes: bytes.into(), ..Frames::default() };
            let mut data = Vec::new();
            while let Some(part) = frames.next()? {
                data.extend_from_slice(&part);
            }
            Ok::<_, RequestError>((data, frames.is_between()))
        };
        let body = [frame_of(kind::DATA, b"ab"), frame_of(0x21, b"x"), frame_of(kind::DATA, b"c")].concat();
        assert_eq!(all([body.clone(), frame_of(kind::HEADERS, b"t")].concat()).unwrap(), (b"abc".to_vec(), true));
        assert_eq!(all(body[..body.len() - 1].to_vec()).unwrap(), (b"ab".to_vec(), false));
        assert!(all(frame_of(kind::SETTINGS, b"")).is_err() && all(frame_of(0x2, b"")).is_err());
        assert!(all(frame_of(0x21, &[0; MAX_SKIPPED as usize + 1])).is_err());
    }

    proptest! {
        #[test]
        fn chunks_of_any_size_give_the_same_data(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..6), size in 1usize..60,
        ) {
            let bytes = payloads.iter().map(|payload| frame_of(kind::DATA, payload)).collect::<Vec<_>>().concat();
            let (mut frames, mut data) = (Frames::default(), Vec::new());
            for chunk in bytes.chunks(size) {
                frames.push(&Bytes::copy_from_slice(chunk));
                while let Some(part) = frames.next().unwrap() {
                    data.extend_from_slice(&part);
                }
            }
            prop_assert_eq!(data, payloads.concat());
            prop_assert!(frames.is_between());
        }
    }
}

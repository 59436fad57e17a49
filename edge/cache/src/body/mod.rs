//! A body: its frames concatenated, as stored or transcoded.

mod decode;
mod frames;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::Stream;
use http_body::{Body as HttpBody, Frame as HttpFrame, SizeHint};
use prometheus::IntCounter;
use weir_runtime::serve::{Body, BoxError};

use super::metrics::{FarthestTier, Tier};
use super::slots::ClientSlot;
use super::source::Source;

pub(super) use self::frames::{FrameReader, part};

/// How frames are transcoded while they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transcoding {
    /// As stored.
    Passthrough,
    /// Decoded to tar.
    Decode,
    /// Decoded and compressed with gzip.
    Gzip,
}

/// A body whose first frame is loaded and verified.
pub enum ReadyBody {
    /// A range of one frame, which was in memory, is the whole body.
    Part(Bytes),
    /// What is sent as it is read.
    Frames {
        /// The frames.
        frames: Box<FrameReader>,
        /// What becomes of them.
        transcoding: Transcoding,
        /// Released with the body.
        slot: Option<ClientSlot>,
        /// Bytes of the body; unknown for gzip.
        length: Option<u64>,
    },
}

impl ReadyBody {
    /// The farthest tier that its bytes come from, now and while they are sent. `source`: of manifest and first frame.
    pub fn farthest_tier(&self, source: &Source) -> FarthestTier {
        let farthest = match self {
            ReadyBody::Part(_) => FarthestTier::default(),
            ReadyBody::Frames { frames, .. } => frames.farthest_tier().clone(),
        };
        farthest.at_least(source.tier());
        farthest
    }

    /// The response body. `sent` counts the bytes of each frame for the tier that it came from. Bytes that gzip makes of
    /// several frames count for that of the last.
    pub fn into_body(self, sent: &SentBytes) -> Body {
        let (frames, transcoding, slot, left) = match self {
            ReadyBody::Part(bytes) => {
                sent[Tier::Memory as usize].inc_by(bytes.len() as u64);
                return Body::Full(bytes);
            }
            ReadyBody::Frames { frames, transcoding, slot, length } => (frames, transcoding, slot, length),
        };
        let tier = frames.tier();
        let chunks: Chunks = match transcoding {
            Transcoding::Passthrough => Box::pin(frames.stream().map(|read| read?.stored())),
            Transcoding::Decode => Box::pin(decode::decoded(*frames, slot)),
            Transcoding::Gzip => Box::pin(decode::gzipped(*frames, slot)),
        };
        Body::stream(StreamedBody { chunks: Some(chunks), left, tier, sent: sent.clone() })
    }
}

/// Counts the bytes of bodies, in the order of [`Tier`].
pub type SentBytes = Arc<[IntCounter; 3]>;

type Chunks = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// A streamed body. It ends with an error when its length is wrong, and never cleanly.
struct StreamedBody {
    chunks: Option<Chunks>,
    /// The bytes left to send, when the length is known.
    left: Option<u64>,
    /// The tier of the current chunk, as a number.
    tier: Arc<AtomicUsize>,
    sent: SentBytes,
}

impl HttpBody for StreamedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<HttpFrame<Bytes>, BoxError>>> {
        let body = self.get_mut();
        let Some(chunks) = &mut body.chunks else { return Poll::Ready(None) };
        let error = match ready!(chunks.as_mut().poll_next(cx)) {
            Some(Ok(chunk)) if body.left.is_none_or(|left| chunk.len() as u64 <= left) => {
                body.left = body.left.map(|left| left - chunk.len() as u64);
                body.sent[body.tier.load(Ordering::Relaxed)].inc_by(chunk.len() as u64);
                if body.left == Some(0) {
                    body.chunks = None;
                }
                return Poll::Ready(Some(Ok(HttpFrame::data(chunk))));
            }
            None if body.left.is_none_or(|left| left == 0) => {
                body.chunks = None;
                return Poll::Ready(None);
            }
            Some(Ok(_)) | None => io::Error::new(io::ErrorKind::InvalidData, "the body has a wrong length"),
            Some(Err(error)) => error,
        };
        body.chunks = None;
        tracing::warn!(%error, left = body.left, "a response body was aborted");
        Poll::Ready(Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.chunks.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_body_of_wrong_length_ends_with_an_error() {
        for (chunks, length) in [(&["ab"][..], 3), (&["ab", "", "cd"], 3), (&["abcd"], 3), (&[], 1)] {
            let given: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
            let sent = Arc::new(std::array::from_fn(|_| IntCounter::new("sent", "sent").unwrap()));
            let tier = Arc::new(AtomicUsize::new(Tier::Disk as usize));
            let chunks: Chunks = Box::pin(stream::iter(given));
            let mut body = StreamedBody { chunks: Some(chunks), left: Some(length), tier, sent: sent.clone() };
            let end = loop {
                match body.frame().await {
                    Some(Ok(_)) => {}
                    end => break end,
                }
            };
            assert!(matches!(end, Some(Err(_))) && sent[Tier::Disk as usize].get() < length);
            assert!(body.frame().await.is_none(), "it has ended");
        }
    }
}

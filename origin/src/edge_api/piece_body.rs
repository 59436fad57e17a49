//! The pieces of a blob as the body of a response: each is read when the client has taken the one before.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use prometheus::IntCounter;
use weir_shared::piece::PIECE_BYTES;
use weir_shared::process::serve::BoxError;

/// A piece that is being read.
pub(super) type Reading = Pin<Box<dyn Future<Output = Result<Bytes, BoxError>> + Send>>;

/// A part of a blob. A piece that cannot be had ends it with an error and never cleanly. It holds one piece in memory.
pub(super) struct PieceBody<R> {
    read: R,
    rest: Range<u64>,
    /// The piece that the part begins in.
    first: Option<Bytes>,
    reading: Option<Reading>,
    sent_bytes: IntCounter,
}

impl<R: Fn(u64) -> Reading> PieceBody<R> {
    /// The bytes `part` of a blob, counted as they are sent. `first` is the piece that they begin in; `read` gives the
    /// others.
    pub(super) fn new(part: Range<u64>, first: Bytes, read: R, sent_bytes: IntCounter) -> Self {
        Self { read, rest: part, first: Some(first), reading: None, sent_bytes }
    }
}

impl<R: Fn(u64) -> Reading + Unpin> Body for PieceBody<R> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let body = self.get_mut();
        if body.rest.is_empty() {
            return Poll::Ready(None);
        }
        let index = body.rest.start / PIECE_BYTES;
        let piece = match body.first.take() {
            Some(first) => first,
            None => {
                let reading = body.reading.get_or_insert_with(|| (body.read)(index));
                let read = ready!(reading.as_mut().poll(cx));
                body.reading = None;
                match read {
                    Ok(piece) => piece,
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
            }
        };
        let bytes = wanted(&body.rest, index * PIECE_BYTES, &piece);
        if bytes.is_empty() {
            return Poll::Ready(Some(Err("a piece is shorter than it should be".into())));
        }
        body.rest.start += bytes.len() as u64;
        body.sent_bytes.inc_by(bytes.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.end - self.rest.start)
    }
}

/// What the piece that begins at `start` has of a part that begins within it.
fn wanted(part: &Range<u64>, start: u64, piece: &Bytes) -> Bytes {
    let within = |byte: u64| usize::try_from(byte - start).unwrap_or(usize::MAX).min(piece.len());
    piece.slice(within(part.start)..within(part.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    const PIECE: usize = PIECE_BYTES as usize;

    fn counter() -> IntCounter {
        IntCounter::new("sent", "sent").unwrap()
    }

    fn body(blob: &Bytes, part: Range<usize>, sent: &IntCounter) -> PieceBody<impl Fn(u64) -> Reading + Unpin + use<>> {
        let piece = |blob: &Bytes, index: usize| blob.slice(index * PIECE..blob.len().min((index + 1) * PIECE));
        let first = piece(blob, part.start / PIECE);
        let blob = blob.clone();
        let read = move |index| -> Reading {
            let read = match index {
                3 => Err("as the test wants it".into()),
                index => Ok(piece(&blob, usize::try_from(index).unwrap())),
            };
            Box::pin(std::future::ready(read))
        };
        PieceBody::new(part.start as u64..part.end as u64, first, read, sent.clone())
    }

    #[tokio::test]
    async fn a_part_is_read_to_its_end_and_counted_wherever_it_begins_and_ends() {
        let blob: Bytes = (0..3 * PIECE - 9).map(|i| (i % 251) as u8).collect();
        for part in [0..blob.len(), 5..6, PIECE - 1..PIECE + 1, PIECE..2 * PIECE, 2 * PIECE + 3..3 * PIECE - 9] {
            let sent = counter();
            let body = body(&blob, part.clone(), &sent);
            assert_eq!(body.size_hint().exact(), Some(part.len() as u64));
            assert!(body.collect().await.unwrap().to_bytes() == blob[part.clone()], "{part:?}");
            assert_eq!(sent.get(), part.len() as u64);
        }
    }

    #[tokio::test]
    async fn a_piece_that_cannot_be_had_is_an_error_and_no_clean_end() {
        let blob = Bytes::from(vec![7; 4 * PIECE]);
        let mut body = body(&blob, 2 * PIECE..4 * PIECE, &counter());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), PIECE);
        assert!(body.frame().await.unwrap().is_err() && !body.is_end_stream());
    }
}

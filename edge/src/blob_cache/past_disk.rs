//! Serves blobs past the edge's disk, when that cannot take them: each request asks the origin for itself.
//!
//! It asks for one piece, and for the next when its client has taken that: no answer of an origin is ever read at a
//! client's pace, which would hold up all others on the same connection. So a request holds two pieces in memory at the
//! most, the one that its client reads and the one that comes next, and the requests that do so have places of a stated
//! number.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::fill::{Counted, FillError, Transfer, Upstream, Wanted};
use crate::metrics::WriteDropped;

/// The way past the disk.
#[derive(Debug)]
pub(super) struct PastDisk {
    upstream: Arc<Upstream>,
    places: Arc<Semaphore>,
    /// How long a request waits for a place, and for its first piece.
    wait: Duration,
}

/// A blob that goes past the disk to one client.
pub(super) struct Through {
    transfer: Transfer,
    /// A piece that was fetched and not handed over yet, and where it begins.
    piece: (u64, Bytes),
    _serving: Counted,
    _place: OwnedSemaphorePermit,
}

impl PastDisk {
    pub(super) fn new(upstream: Arc<Upstream>, places: usize, wait: Duration) -> Self {
        upstream.metrics.serving_through_limit.set(i64::try_from(places).unwrap_or(i64::MAX));
        Self { upstream, places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))), wait }
    }

    /// Begins to serve a blob from the byte `from` on, once there is a place: that byte's piece is there and verified.
    ///
    /// # Errors
    /// There is no place, or its origin does not give it.
    pub(super) async fn serve(&self, wanted: Wanted, from: u64, why: WriteDropped) -> Result<Through, FillError> {
        let begun = tokio::time::timeout(self.wait, async {
            let place = self.places.clone().acquire_owned().await.map_err(|_| FillError::Abandoned)?;
            let serving = Counted::new(&self.upstream.metrics.serving_through);
            self.upstream.metrics.served_through(why.as_str());
            let mut transfer = Transfer::begin_at(self.upstream.clone(), wanted, from).await?;
            let piece = transfer.next().await?.map(|piece| (piece.start, piece.bytes)).unwrap_or_default();
            Ok(Through { transfer, piece, _serving: serving, _place: place })
        });
        begun.await.unwrap_or(Err(FillError::TooSlow))
    }
}

impl Through {
    /// The next bytes of a part that begins within the piece that is there, or right behind it.
    pub(super) async fn next(&mut self, part: &Range<u64>) -> Result<Bytes, FillError> {
        let mut found = within(part, &self.piece);
        if found.is_empty() {
            self.piece = (0, Bytes::new());
            self.piece = self.transfer.next().await?.map(|piece| (piece.start, piece.bytes)).unwrap_or_default();
            found = within(part, &self.piece);
        }
        Ok(found)
    }
}

/// What a piece has of a part, from the part's first byte on; nothing when it does not have that.
fn within(part: &Range<u64>, (start, bytes): &(u64, Bytes)) -> Bytes {
    let end = part.end.min(start + bytes.len() as u64);
    if part.start < *start || part.start >= end {
        return Bytes::new();
    }
    let at = |byte: u64| usize::try_from(byte - start).expect("a piece is in memory");
    bytes.slice(at(part.start)..at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_piece_has_of_a_part() {
        let piece = (10, Bytes::from_static(b"abcde"));
        for (part, found) in
            [(10..15, "abcde"), (12..13, "c"), (14..99, "e"), (15..99, ""), (9..15, ""), (0..5, ""), (12..12, "")]
        {
            assert_eq!(within(&part, &piece), found, "{part:?}");
        }
        assert_eq!(within(&(0..5), &(0, Bytes::new())), "");
    }
}

//! The way of one blob from its origin: verified pieces in order, resumed where it breaks off.
//!
//! Fills and those who are served past the disk both read a blob through this.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use weir_shared::piece::{PIECE_BYTES, PieceList};

use super::verifier::{Verifier, Wrong, is_end, is_one_piece, length_of};
use super::{FillError, Wanted};
use crate::clock::{AtomicMoment, Clock, Moment};
use crate::metrics::{CacheMetrics, OriginMetrics, VerifiedAt};
use crate::origin_client::{BlobRequest, OriginError, Origins};

/// How often an origin is asked without a whole piece coming of it before a transfer fails.
const MAX_ATTEMPTS: u32 = 3;

/// The pause before a transfer is resumed: about this long, in the middle, and twice as long each time.
const RESUME_PAUSE: Duration = Duration::from_millis(200);

/// Bytes that are hashed at a time, while they are in the processor's cache: of fewer, or of some that begin in the middle
/// of a chunk of BLAKE3's, it takes twice as long.
const HASHED_AT_A_TIME: usize = 128 << 10;

/// From where blobs come.
#[derive(Debug)]
pub(in crate::blob_cache) struct Upstream {
    pub(in crate::blob_cache) origins: Arc<Origins>,
    pub(in crate::blob_cache) metrics: CacheMetrics,
    pub(in crate::blob_cache) origin_metrics: OriginMetrics,
    pub(in crate::blob_cache) clock: Clock,
    /// How long an origin may be silent in the middle of a body before the transfer is resumed.
    pub(in crate::blob_cache) idle: Duration,
    /// How long a request waits for its first byte: an origin that wants to be asked later than that has refused.
    pub(in crate::blob_cache) patience: Duration,
}

/// A blob on its way.
pub(in crate::blob_cache) struct Transfer {
    upstream: Arc<Upstream>,
    wanted: Wanted,
    verifier: Verifier,
    /// An answer that nobody has looked at yet.
    asked: Option<Result<Response<Incoming>, OriginError>>,
    body: Option<Body>,
    /// The piece that is coming, and what has come of it. It stays when a body breaks off: it is verified when whole.
    index: u64,
    gathered: BytesMut,
    /// How many bytes of that the verifier has.
    hashed: usize,
    /// Each piece is asked for by itself, when it is wanted: whoever takes them may be slow.
    one_at_a_time: bool,
    /// Requests since the last whole piece that came to nothing.
    failures: u32,
    /// When the last whole piece came.
    since: Moment,
    /// What came before was wrong: caches on the way are passed by. That happens once.
    no_cache: bool,
    moved: Arc<AtomicMoment>,
}

/// The body of an answer.
struct Body {
    incoming: Incoming,
    /// The byte of the blob behind its last one.
    end: u64,
    /// Bytes that are still to come of it and that are there already: it began too early.
    skip: u64,
    /// What has come of it and belongs to the next piece.
    rest: Bytes,
}

/// The next bytes of a blob.
pub(in crate::blob_cache) struct Piece {
    /// Where they begin.
    pub(in crate::blob_cache) start: u64,
    /// The bytes.
    pub(in crate::blob_cache) bytes: Bytes,
    /// How many bytes from the blob's start are verified with them, given that those before them came.
    pub(in crate::blob_cache) verified: u64,
}

impl Transfer {
    /// Asks for a blob and for its piece list at once. `moved` is advanced whenever something comes.
    ///
    /// The first piece is asked for by itself: somebody waits for it, and what comes behind it would stand in its way, at
    /// the origin and here. The rest is asked for when it is there.
    pub(in crate::blob_cache) async fn begin(
        upstream: Arc<Upstream>,
        wanted: Wanted,
        moved: Arc<AtomicMoment>,
    ) -> Self {
        let first = request(wanted.size, 0, false);
        let asked = upstream.origins.blob(&wanted.digest, wanted.origin, first);
        let (list, asked) = tokio::join!(piece_list(&upstream, wanted), asked);
        let verifier = Verifier::new(wanted.digest, wanted.size, list);
        Self { asked: Some(asked), ..Self::of(upstream, wanted, verifier, moved) }
    }

    /// Prepares to ask for a blob from the piece that holds the byte `from` on, one piece at a time. Each piece is verified
    /// by itself, whatever the origin offers: when it has no list the blob is read once before, to make it.
    pub(in crate::blob_cache) async fn begin_at(
        upstream: Arc<Upstream>,
        wanted: Wanted,
        from: u64,
    ) -> Result<Self, FillError> {
        let moved = Arc::new(AtomicMoment::new(upstream.clock.now()));
        let list = piece_list(&upstream, wanted).await;
        let verifier = Verifier::new(wanted.digest, wanted.size, list);
        let mut transfer = Self::of(upstream, wanted, verifier, moved);
        if !is_one_piece(wanted.size) && !transfer.verifier.is_by_piece() {
            while transfer.next().await?.is_some() {}
            transfer.body = None;
        }
        transfer.index = from / PIECE_BYTES;
        transfer.one_at_a_time = true;
        Ok(transfer)
    }

    fn of(upstream: Arc<Upstream>, wanted: Wanted, verifier: Verifier, moved: Arc<AtomicMoment>) -> Self {
        let since = upstream.clock.now();
        Self {
            upstream,
            wanted,
            verifier,
            asked: None,
            body: None,
            index: 0,
            gathered: BytesMut::new(),
            hashed: 0,
            one_at_a_time: false,
            failures: 0,
            since,
            no_cache: false,
            moved,
        }
    }

    /// The next piece; `None` behind the last one.
    pub(in crate::blob_cache) async fn next(&mut self) -> Result<Option<Piece>, FillError> {
        if is_end(self.index, self.wanted.size) {
            return Ok(None);
        }
        loop {
            let error = match self.gather().await {
                Ok(()) => match self.verify() {
                    Ok(piece) => return Ok(Some(piece)),
                    Err(Wrong) => FillError::Corrupt,
                },
                Err(error) => error,
            };
            (self.body, self.asked) = (None, None);
            self.recover(error).await?;
        }
    }

    /// Reads until the piece is whole, and hashes what comes.
    async fn gather(&mut self) -> Result<(), FillError> {
        let length = length_of(self.index, self.wanted.size);
        self.gathered.reserve(length - self.gathered.len());
        while self.gathered.len() < length {
            if self.body.is_none() {
                self.body = Some(self.open().await?);
            }
            let body = self.body.as_mut().expect("it was opened");
            let some = body.some(length - self.gathered.len(), &self.upstream).await?;
            self.moved.advance(self.upstream.clock.now());
            self.gathered.extend_from_slice(&some);
            self.hash(length);
        }
        let position = self.position();
        if let Some(body) = self.body.take_if(|body| body.end == position) {
            body.end(self.upstream.idle);
        }
        Ok(())
    }

    /// The byte of the blob that comes next.
    fn position(&self) -> u64 {
        self.index * PIECE_BYTES + self.gathered.len() as u64
    }

    /// Has the verifier take what has come of a piece of `length` bytes.
    fn hash(&mut self, length: usize) {
        let come = self.gathered.len();
        let due = if come == length { come } else { come - come % HASHED_AT_A_TIME };
        if due > self.hashed {
            self.verifier.update(self.index, &self.gathered[self.hashed..due]);
            self.hashed = due;
        }
    }

    /// Looks at an answer: the one that was asked for, or a new one from where the bytes end.
    async fn open(&mut self) -> Result<Body, FillError> {
        let offset = self.position();
        let request = BlobRequest { no_cache: self.no_cache, ..request(self.wanted.size, offset, self.one_at_a_time) };
        let response = match self.asked.take() {
            Some(asked) => asked?,
            None => self.upstream.origins.blob(&self.wanted.digest, self.wanted.origin, request).await?,
        };
        self.moved.advance(self.upstream.clock.now());
        let part = match (response.status(), begins_at(&response)) {
            (StatusCode::PARTIAL_CONTENT, Some(begins)) if begins == offset => {
                begins..request.end.unwrap_or(self.wanted.size)
            }
            (StatusCode::OK, _) => 0..self.wanted.size,
            _ => return Err(FillError::Corrupt),
        };
        let incoming = response.into_body();
        match incoming.size_hint().exact() {
            Some(length) if length != part.end - part.start => Err(FillError::Corrupt),
            _ => Ok(Body { incoming, end: part.end, skip: offset - part.start, rest: Bytes::new() }),
        }
    }

    /// The piece, when it is what it should be.
    fn verify(&mut self) -> Result<Piece, Wrong> {
        let (index, bytes) = (self.index, self.gathered.split().freeze());
        self.hashed = 0;
        let verified = self.verifier.end(index)?;
        self.upstream.metrics.pieces_verified.inc();
        (self.index, self.failures, self.since) = (index + 1, 0, self.upstream.clock.now());
        Ok(Piece { start: index * PIECE_BYTES, bytes, verified })
    }

    /// Prepares to ask again, after a pause; or gives up.
    async fn recover(&mut self, error: FillError) -> Result<(), FillError> {
        let blob = &self.wanted.digest;
        let reason = if matches!(error, FillError::Corrupt) {
            self.upstream.metrics.verify_failed(VerifiedAt::Origin);
            tracing::warn!(%blob, piece = self.index, "an origin sent wrong bytes for a blob");
            if self.no_cache {
                return Err(error);
            }
            self.no_cache = true;
            self.gathered.clear();
            self.hashed = 0;
            self.index = self.verifier.begin_again(self.index);
            "wrong_bytes"
        } else {
            self.failures += 1;
            let resumed = error.worth_resuming().filter(|_| self.failures < MAX_ATTEMPTS);
            let waited = self.upstream.clock.now().since(self.since);
            let pause = match error.retry_after() {
                Some(after) => later(after, self.upstream.patience.saturating_sub(waited), fastrand::f64()),
                None => Some(pause(self.failures, fastrand::f64())),
            };
            let Some((reason, pause)) = resumed.zip(pause) else { return Err(error) };
            tracing::debug!(%blob, %error, piece = self.index, "a transfer is resumed");
            tokio::time::sleep(pause).await;
            reason
        };
        self.upstream.metrics.resumed(reason);
        Ok(())
    }
}

impl Body {
    /// Sees the end of an answer of which everything has come: its stream would be reset otherwise. Nobody waits for it:
    /// an origin, or what stands before it, may say late that there is no more.
    fn end(mut self, idle: Duration) {
        if !self.incoming.is_end_stream() {
            tokio::spawn(async move { tokio::time::timeout(idle, self.incoming.frame()).await });
        }
    }

    /// The next bytes of it: at least one, and `most` at the most.
    async fn some(&mut self, most: usize, upstream: &Upstream) -> Result<Bytes, FillError> {
        loop {
            let skipped = self.rest.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
            drop(self.rest.split_to(skipped));
            self.skip -= skipped as u64;
            if !self.rest.is_empty() {
                return Ok(self.rest.split_to(most.min(self.rest.len())));
            }
            match tokio::time::timeout(upstream.idle, self.incoming.frame()).await {
                Err(_) => return Err(FillError::Stalled(upstream.idle)),
                Ok(None) => return Err(FillError::Broken("it ended early".to_owned())),
                Ok(Some(Err(error))) => return Err(FillError::Broken(error.to_string())),
                Ok(Some(Ok(frame))) => self.rest = frame.into_data().unwrap_or_default(),
            }
            upstream.origin_metrics.received(self.rest.len());
        }
    }
}

/// The list of a blob of more than one piece, when its origin has one that is its.
async fn piece_list(upstream: &Upstream, wanted: Wanted) -> Option<PieceList> {
    if is_one_piece(wanted.size) {
        return None;
    }
    let blob = &wanted.digest;
    let bytes = match upstream.origins.piece_list(blob, wanted.size, wanted.origin).await {
        Ok(bytes) => bytes,
        Err(error) => {
            tracing::debug!(%blob, %error, "a piece list cannot be had; the blob is verified as a whole");
            return None;
        }
    };
    match PieceList::parse(blob, wanted.size, &bytes) {
        Ok(list) => Some(list),
        Err(error) => {
            upstream.metrics.verify_failed(VerifiedAt::Origin);
            tracing::warn!(%blob, %error, "an origin sent a wrong piece list; the blob is verified as a whole");
            None
        }
    }
}

/// What is asked for next of a blob of `size` bytes, from a byte on: up to the end of its piece, when that is the first one
/// or each is asked for by itself; otherwise up to the blob's end.
fn request(size: u64, offset: u64, one_at_a_time: bool) -> BlobRequest {
    let index = offset / PIECE_BYTES;
    let end = size.min((index + 1) * PIECE_BYTES);
    let is_by_itself = one_at_a_time || index == 0 && end < size;
    BlobRequest { offset, end: is_by_itself.then_some(end), no_cache: false }
}

/// The first byte of a partial answer.
fn begins_at<T>(response: &Response<T>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

/// The pause before the next attempt after `failures` in a row; `chance` is between 0 and 1.
fn pause(failures: u32, chance: f64) -> Duration {
    (RESUME_PAUSE * 2_u32.pow(failures.clamp(1, 8) - 1)).mul_f64(0.5 + chance)
}

/// The pause before an origin is asked again that wants it to be after this long; `None` when that is too late for those
/// who wait. `chance`, from 0 to 1, spreads those who were told the same.
fn later(after: Duration, patience: Duration, chance: f64) -> Option<Duration> {
    let pause = after.checked_add(RESUME_PAUSE.mul_f64(chance))?;
    (pause <= patience).then_some(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_asked_again_when_it_wants_it_and_as_long_as_somebody_waits() {
        let seconds = Duration::from_secs;
        assert_eq!(later(seconds(2), seconds(60), 0.0), Some(seconds(2)));
        assert_eq!(later(seconds(2), seconds(60), 1.0), Some(seconds(2) + RESUME_PAUSE));
        assert_eq!(later(seconds(2), seconds(2), 1.0), None);
        assert_eq!(later(Duration::MAX, seconds(60), 1.0), None);
    }

    #[test]
    fn pauses_grow_and_are_not_the_same_for_all() {
        let millis = |failures, chance| pause(failures, chance).as_millis();
        assert_eq!((millis(1, 0.0), millis(1, 1.0)), (100, 300));
        assert_eq!((millis(2, 0.0), millis(2, 1.0)), (200, 600));
        assert!(pause(u32::MAX, 1.0) < Duration::from_secs(40));
    }

    #[test]
    fn the_first_piece_is_asked_for_by_itself_and_the_rest_at_once() {
        let piece = PIECE_BYTES;
        let asked = |size, offset, one_at_a_time| {
            let BlobRequest { offset, end, .. } = request(size, offset, one_at_a_time);
            (offset, end)
        };
        for size in [1, piece - 1, piece] {
            assert_eq!(asked(size, 0, false), (0, None), "{size}: it is all of it");
        }
        let size = 3 * piece + 5;
        assert_eq!(asked(size, 0, false), (0, Some(piece)));
        assert_eq!(asked(size, 7, false), (7, Some(piece)), "it broke off");
        assert_eq!(asked(size, piece, false), (piece, None));
        assert_eq!(asked(size, piece + 7, false), (piece + 7, None));
        assert_eq!(asked(size, piece, true), (piece, Some(2 * piece)));
        assert_eq!(asked(size, 3 * piece, true), (3 * piece, Some(size)));
    }

    #[test]
    fn where_a_partial_answer_begins() {
        let answer = |range: &str| Response::builder().header(header::CONTENT_RANGE, range).body(()).unwrap();
        assert_eq!(begins_at(&answer("bytes 7-9/10")), Some(7));
        for other in ["bytes */10", "bytes -1-2/3", "items 7-9/10", "bytes 7", ""] {
            assert_eq!(begins_at(&answer(other)), None, "{other}");
        }
    }
}

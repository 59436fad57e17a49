//! The frames that a body needs, one after the other, with those that have to be fetched on their way ahead of the reader.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use tokio::time::timeout;
use weir_protocol::manifest::{Frame, Slice};

use super::super::fetch::FetchError;
use super::super::representation::{BodyRequest, Frames};
use super::super::waiter::Waiter;
use super::super::{Cache, Loaded};

/// Bytes of frames that are looked at ahead of one reader, and fetched when they are not here, to begin with. The first frame
/// shares the line with them: at 1 Mbit/s it is there within half a minute.
const FIRST_WINDOW: u64 = 2 << 20;

/// The same once as much has come: more than a line of 1 Gbit/s carries in 50 ms.
const MAX_WINDOW: u64 = 8 << 20;

/// How much earlier the first frame is asked for than those behind it. A near origin has sent it by then, and nothing else
/// took its processors and its line; a far one loses little.
const HEAD_START: Duration = Duration::from_millis(5);

/// A reader of frames.
pub(crate) struct FrameReader {
    cache: Cache,
    request: BodyRequest,
    frames: Frames,
    /// What is still to be read, and was not looked at.
    slices: VecDeque<Slice>,
    /// What was looked at and comes before them, with the fetches of what is not here.
    ahead: VecDeque<(Slice, Option<Waiter>)>,
    ahead_bytes: u64,
    /// The most bytes ahead. It grows with what comes, so that the first frame of a thin line is not starved.
    window: u64,
    /// What was read before it was known that it would be sent.
    first: Option<(Slice, Bytes)>,
    verify_again: bool,
}

/// A frame that was read and verified.
pub(in super::super) struct ReadFrame {
    pub(super) frame: Frame,
    pub(super) bytes: Bytes,
    pub(super) slice: Slice,
}

impl FrameReader {
    pub(in super::super) fn new(
        cache: Cache,
        request: BodyRequest,
        frames: Frames,
        slices: Vec<Slice>,
        verify_again: bool,
    ) -> Self {
        let (slices, ahead, window) = (slices.into(), VecDeque::new(), FIRST_WINDOW);
        Self { cache, request, frames, slices, ahead, ahead_bytes: 0, window, first: None, verify_again }
    }

    /// Reads the first frame, whatever becomes of it; it is given again by [`FrameReader::next`]. `None`: there is none.
    pub(in super::super) async fn begin(&mut self) -> Result<Option<Loaded>, FetchError> {
        let Some((slice, loaded)) = self.load(true).await? else { return Ok(None) };
        self.first = Some((slice, loaded.bytes.clone()));
        Ok(Some(loaded))
    }

    /// The same without waiting for anything: the first frame is in memory. `None`: it is not.
    pub(in super::super) fn begin_in_memory(&mut self) -> Option<()> {
        let bytes = self.cache.in_memory(&self.frames.get(self.slices.front()?.index).digest)?;
        self.first = self.slices.pop_front().map(|slice| (slice, bytes));
        Some(())
    }

    /// The next frame. `None`: there was the last one.
    pub(super) async fn next(&mut self) -> Result<Option<ReadFrame>, FetchError> {
        let (slice, bytes) = match self.first.take() {
            Some(first) => first,
            None => match self.load(false).await? {
                Some((slice, loaded)) => (slice, loaded.bytes),
                None => return Ok(None),
            },
        };
        self.window = MAX_WINDOW.min(self.window + bytes.len() as u64);
        // While this one is sent those behind it come.
        self.fetch_ahead();
        Ok(Some(ReadFrame { frame: *self.frames.get(slice.index), bytes, slice }))
    }

    async fn load(&mut self, is_first: bool) -> Result<Option<(Slice, Loaded)>, FetchError> {
        let (slice, waiter) = match self.ahead.pop_front() {
            Some(next) => {
                self.ahead_bytes -= self.frames.get(next.0.index).size;
                next
            }
            None => match self.slices.pop_front() {
                Some(slice) => (slice, None),
                None => return Ok(None),
            },
        };
        if let Some(waiter) = waiter
            && let Ok(loaded) = waiter.result().await
        {
            return Ok(Some((slice, loaded)));
        }
        // One that failed some time ago has another chance now that it is needed.
        let request = self.request.frame(self.frames.get(slice.index));
        let mut loading = pin!(self.cache.begin_load(&request, self.verify_again, is_first)?.result());
        if is_first && let Ok(loaded) = timeout(HEAD_START, &mut loading).await {
            return Ok(Some((slice, loaded?)));
        }
        // Those behind it are asked for while it comes.
        self.fetch_ahead();
        Ok(Some((slice, loading.await?)))
    }

    /// Begins to fetch what is not here of the next frames. Nobody waits for more than there is memory for.
    fn fetch_ahead(&mut self) {
        while let Some(slice) = self.slices.front() {
            let frame = self.frames.get(slice.index);
            if self.ahead_bytes > 0 && self.ahead_bytes + frame.size > self.window {
                return;
            }
            let is_missing = self.cache.tier(&frame.digest).is_none();
            let waiter = is_missing.then(|| self.cache.fetch_ahead(&self.request.frame(frame)));
            if let Some(None) = waiter {
                return;
            }
            self.ahead_bytes += frame.size;
            self.ahead.push_back((*slice, waiter.flatten()));
            self.slices.pop_front();
        }
    }

    /// The frames as they come. Without an end when one cannot be had.
    pub(super) fn stream(self) -> impl Stream<Item = io::Result<ReadFrame>> + Send {
        stream::try_unfold(self, |mut reader| async move {
            let read = reader.next().await.map_err(io::Error::other)?;
            Ok(read.map(|read| (read, reader)))
        })
    }
}

impl ReadFrame {
    /// What is wanted of the frame, or of its tar.
    pub(super) fn range(&self) -> Range<u64> {
        self.slice.start..self.slice.end
    }

    /// What is wanted of it as it is stored.
    pub(super) fn stored(&self) -> io::Result<Bytes> {
        part(&self.bytes, &self.range())
    }
}

/// A part of bytes; an error when they are fewer.
pub(in super::super) fn part(bytes: &Bytes, range: &Range<u64>) -> io::Result<Bytes> {
    let at = |byte: u64| usize::try_from(byte).ok().filter(|byte| *byte <= bytes.len());
    let range = at(range.start).zip(at(range.end)).filter(|(start, end)| start <= end);
    let (start, end) = range.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    Ok(bytes.slice(start..end))
}

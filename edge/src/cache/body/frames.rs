//! The frames that a body needs, one after the other, with those that have to be fetched on their way ahead of the reader.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use weir_shared::manifest::{Frame, Slice};

use super::super::fetch::FetchError;
use super::super::representation::{BodyRequest, Frames};
use super::super::waiter::Waiter;
use super::super::{Cache, Loaded};

/// Bytes of frames that are fetched ahead of one reader, at the most: more than a line of 1 Gbit/s carries in 50 ms.
const MAX_AHEAD_BYTES: u64 = 8 << 20;

/// A reader of frames.
pub(crate) struct FrameReader {
    cache: Cache,
    request: BodyRequest,
    frames: Frames,
    /// What is still to be read.
    slices: VecDeque<Slice>,
    /// How many of `slices` were looked at, whether they have to be fetched.
    considered: usize,
    /// Fetches that were begun, with the index of their frames, in order.
    ahead: VecDeque<(usize, Waiter)>,
    ahead_bytes: u64,
    /// What was read before it was known that it would be sent.
    first: Option<Bytes>,
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
        let slices = slices.into();
        let (ahead, ahead_bytes) = (VecDeque::new(), 0);
        Self { cache, request, frames, slices, considered: 0, ahead, ahead_bytes, first: None, verify_again }
    }

    /// Reads the first frame, whatever becomes of it; it is given again by [`FrameReader::next`]. `None`: there is none.
    pub(in super::super) async fn begin(&mut self) -> Result<Option<Loaded>, FetchError> {
        let Some(slice) = self.slices.front().copied() else { return Ok(None) };
        let loaded = self.load(slice).await?;
        self.first = Some(loaded.bytes.clone());
        Ok(Some(loaded))
    }

    /// The same without waiting for anything: the first frame is in memory. `None`: it is not.
    pub(in super::super) fn begin_in_memory(&mut self) -> Option<()> {
        let slice = self.slices.front()?;
        self.first = Some(self.cache.in_memory(&self.frames.get(slice.index).digest)?);
        Some(())
    }

    /// The next frame. `None`: there was the last one.
    pub(super) async fn next(&mut self) -> Result<Option<ReadFrame>, FetchError> {
        let Some(slice) = self.slices.front().copied() else { return Ok(None) };
        let bytes = match self.first.take() {
            Some(bytes) => bytes,
            None => self.load(slice).await?.bytes,
        };
        self.slices.pop_front();
        self.considered = self.considered.saturating_sub(1);
        // While this one is sent those behind it come.
        self.fetch_ahead();
        Ok(Some(ReadFrame { frame: *self.frames.get(slice.index), bytes, slice }))
    }

    async fn load(&mut self, slice: Slice) -> Result<Loaded, FetchError> {
        self.considered = self.considered.max(1);
        if let Some((_, waiter)) = self.ahead.pop_front_if(|(index, _)| *index == slice.index) {
            self.ahead_bytes -= self.frames.get(slice.index).size;
            // One that failed some time ago has another chance now that it is needed.
            if let Ok(loaded) = waiter.result().await {
                return Ok(loaded);
            }
        }
        let request = self.request.frame(self.frames.get(slice.index));
        let loading = self.cache.begin_load(&request, self.verify_again)?;
        // It is asked for first, and those behind it while it comes.
        self.fetch_ahead();
        loading.result().await
    }

    /// Begins to fetch what is not here of the next frames. Nobody waits for more than there is memory for.
    fn fetch_ahead(&mut self) {
        while let Some(slice) = self.slices.get(self.considered) {
            let frame = self.frames.get(slice.index);
            if !self.cache.may_have(&frame.digest) {
                if self.ahead_bytes > 0 && self.ahead_bytes + frame.size > MAX_AHEAD_BYTES {
                    return;
                }
                let Some(waiter) = self.cache.fetch_ahead(&self.request.frame(frame)) else { return };
                self.ahead.push_back((slice.index, waiter));
                self.ahead_bytes += frame.size;
            }
            self.considered += 1;
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

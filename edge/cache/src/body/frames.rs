//! Reads the frames of a body in order, with read-ahead of those that have to be fetched.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use tokio::time::timeout;
use weir_protocol::manifest::{Frame, Slice};

use super::super::fill::FillError;
use super::super::in_flight::FillWaiter;
use super::super::metrics::{FarthestTier, Tier};
use super::super::objects::Objects;
use super::super::representation::{BodyRequest, Frames};
use super::super::source::Loaded;

/// The initial read-ahead window in bytes. The first frame shares the line with it: at 1 Mbit/s it arrives within half
/// a minute.
const FIRST_WINDOW: u64 = 2 << 20;

/// The largest window: more than a line of 1 Gbit/s carries in 50 ms.
const MAX_WINDOW: u64 = 8 << 20;

/// The head start of the first frame over read-ahead: a near origin has sent it by then at full speed, a distant one
/// loses little.
const HEAD_START: Duration = Duration::from_millis(5);

/// Reads the frames of a body.
pub struct FrameReader {
    objects: Arc<Objects>,
    request: BodyRequest,
    frames: Frames,
    /// The slices beyond the window.
    slices: VecDeque<Slice>,
    /// The slices within the window, with the fills of those that were missing.
    ahead: VecDeque<(Slice, Option<FillWaiter>)>,
    ahead_bytes: u64,
    /// The current window. It grows with the bytes received, so that the first frame gets most of a slow line.
    window: u64,
    /// The first frame with its tier, read before the response starts.
    first: Option<(Slice, Bytes, Tier)>,
    /// The tier of the frame that was returned last.
    tier: Arc<AtomicUsize>,
    farthest: FarthestTier,
    reverify: bool,
}

pub(in super::super) struct ReadFrame {
    pub(super) frame: Frame,
    pub(super) bytes: Bytes,
    pub(super) slice: Slice,
}

impl FrameReader {
    pub(in super::super) fn new(
        objects: Arc<Objects>,
        request: BodyRequest,
        frames: Frames,
        slices: Vec<Slice>,
        reverify: bool,
    ) -> Self {
        let (slices, ahead, window) = (slices.into(), VecDeque::new(), FIRST_WINDOW);
        Self {
            objects,
            request,
            frames,
            slices,
            ahead,
            ahead_bytes: 0,
            window,
            first: None,
            tier: Arc::default(),
            farthest: FarthestTier::default(),
            reverify,
        }
    }

    /// Reads the first frame; [`FrameReader::next`] returns it again. `None`: there is no frame.
    pub(in super::super) async fn read_first(&mut self) -> Result<Option<Loaded>, FillError> {
        let Some((slice, loaded)) = self.load(true).await? else { return Ok(None) };
        self.first = Some((slice, loaded.bytes.clone(), loaded.source.tier()));
        Ok(Some(loaded))
    }

    /// Reads the first frame from memory. `None`: it is not there.
    pub(in super::super) fn read_first_in_memory(&mut self) -> Option<()> {
        let bytes = self.objects.in_memory(&self.frames.get(self.slices.front()?.index).digest)?;
        self.first = self.slices.pop_front().map(|slice| (slice, bytes, Tier::Memory));
        Some(())
    }

    /// Reads the next frame. `None`: the end.
    pub(super) async fn next(&mut self) -> Result<Option<ReadFrame>, FillError> {
        let (slice, bytes, tier) = match self.first.take() {
            Some(first) => first,
            None => match self.load(false).await? {
                Some((slice, loaded)) => (slice, loaded.bytes, loaded.source.tier()),
                None => return Ok(None),
            },
        };
        self.tier.store(tier as usize, Ordering::Relaxed);
        self.farthest.at_least(tier);
        self.window = MAX_WINDOW.min(self.window + bytes.len() as u64);
        // The next frames arrive while this one is sent.
        self.read_ahead();
        Ok(Some(ReadFrame { frame: *self.frames.get(slice.index), bytes, slice }))
    }

    async fn load(&mut self, is_first: bool) -> Result<Option<(Slice, Loaded)>, FillError> {
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
        // A failed read-ahead is retried now.
        let request = self.request.frame(self.frames.get(slice.index));
        let mut loading = pin!(self.objects.start_load(&request, self.reverify, is_first)?.result());
        if is_first && let Ok(loaded) = timeout(HEAD_START, &mut loading).await {
            return Ok(Some((slice, loaded?)));
        }
        // The next frames are requested while this one arrives.
        self.read_ahead();
        Ok(Some((slice, loading.await?)))
    }

    /// Starts fills within the window and the memory budget.
    fn read_ahead(&mut self) {
        while let Some(slice) = self.slices.front() {
            let frame = self.frames.get(slice.index);
            if self.ahead_bytes > 0 && self.ahead_bytes + frame.size > self.window {
                return;
            }
            let is_missing = self.objects.tier(&frame.digest).is_none();
            let waiter = is_missing.then(|| self.objects.read_ahead(&self.request.frame(frame)));
            if let Some(None) = waiter {
                return;
            }
            self.ahead_bytes += frame.size;
            self.ahead.push_back((*slice, waiter.flatten()));
            self.slices.pop_front();
        }
    }

    /// The tier of the frame that was returned last, as a number.
    pub(super) fn tier(&self) -> Arc<AtomicUsize> {
        self.tier.clone()
    }

    /// The farthest tier of the frames that were returned.
    pub(super) fn farthest_tier(&self) -> &FarthestTier {
        &self.farthest
    }

    /// The frames as a stream. It ends with an error when a frame cannot be loaded.
    pub(super) fn stream(self) -> impl Stream<Item = io::Result<ReadFrame>> + Send {
        stream::try_unfold(self, |mut reader| async move {
            let read = reader.next().await.map_err(io::Error::other)?;
            Ok(read.map(|read| (read, reader)))
        })
    }
}

impl ReadFrame {
    pub(super) fn range(&self) -> Range<u64> {
        self.slice.start..self.slice.end
    }

    pub(super) fn stored(&self) -> io::Result<Bytes> {
        part(&self.bytes, &self.range())
    }
}

/// A range of bytes; an error when it is beyond their end.
pub(in super::super) fn part(bytes: &Bytes, range: &Range<u64>) -> io::Result<Bytes> {
    let at = |byte: u64| usize::try_from(byte).ok().filter(|byte| *byte <= bytes.len());
    let range = at(range.start).zip(at(range.end)).filter(|(start, end)| start <= end);
    let (start, end) = range.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    Ok(bytes.slice(start..end))
}

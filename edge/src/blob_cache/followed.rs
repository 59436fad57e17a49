//! Reads a blob while it comes: up to where it is verified, then as more of it is.
//!
//! Every reader goes at its own pace and holds one chunk of memory: the bytes are in the fill's file, which stays open
//! for as long as somebody reads, and the last of them in memory while they are written. When the fill ends badly a
//! reader still gets what was written of it; when that is because of the disk it then goes on past it.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use rustix::io::{ReadWriteFlags, preadv2};

use super::fill::{Progress, Wanted, Watcher};
use super::past_disk::{PastDisk, Through};
use super::store::DiskTrouble;
use crate::metrics::WriteDropped;

/// A blob that is on its way into a file.
pub(crate) struct Followed {
    pub(super) wanted: Wanted,
    pub(super) file: Arc<File>,
    pub(super) watcher: Watcher,
    pub(super) past_disk: Arc<PastDisk>,
}

/// A blob that goes past the disk.
pub(crate) struct Passing {
    pub(super) wanted: Wanted,
    pub(super) through: Box<Through>,
    pub(super) past_disk: Arc<PastDisk>,
}

/// A part of a blob that is read from wherever it can be had.
struct Reading {
    wanted: Wanted,
    from: From,
    past_disk: Arc<PastDisk>,
    part: Range<u64>,
    chunk: u64,
}

enum From {
    File(Arc<File>, Watcher),
    Origin(Box<Through>),
}

impl Followed {
    /// The bytes of a part, `chunk` at a time.
    pub(super) fn chunks(self, part: Range<u64>, chunk: u64) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let from = From::File(self.file, self.watcher);
        Reading { wanted: self.wanted, from, past_disk: self.past_disk, part, chunk }.stream()
    }
}

impl Passing {
    /// The bytes of a part that begins where it was asked for: a piece at a time.
    pub(super) fn chunks(self, part: Range<u64>, chunk: u64) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let from = From::Origin(self.through);
        Reading { wanted: self.wanted, from, past_disk: self.past_disk, part, chunk }.stream()
    }
}

impl Reading {
    fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        stream::try_unfold(self, |mut reading| async move {
            if reading.part.is_empty() {
                return Ok(None);
            }
            let bytes = reading.next().await?;
            reading.part.start += bytes.len() as u64;
            Ok(Some((bytes, reading)))
        })
    }

    /// The next bytes: at least one.
    async fn next(&mut self) -> io::Result<Bytes> {
        if let From::File(file, watcher) = &mut self.from {
            let progress = watcher.answered(self.part.start).await;
            if let Some(bytes) = progress.latest(&readable(&self.part, progress.verified(), self.chunk)) {
                return Ok(bytes);
            }
            let there = readable(&self.part, progress.written(), self.chunk);
            let why = match progress {
                _ if !there.is_empty() => match read(file.clone(), there).await {
                    Ok(bytes) => return Ok(bytes),
                    Err(error) => {
                        tracing::warn!(blob = %self.wanted.digest, %error, "a blob on its way cannot be read back");
                        WriteDropped::Disk(DiskTrouble::from(&error))
                    }
                },
                Progress::PastDisk { why, .. } => why,
                Progress::Failed { error, .. } => return Err(io::Error::other(error)),
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
            let through = self.past_disk.serve(self.wanted, self.part.start, why).await;
            self.from = From::Origin(Box::new(through.map_err(io::Error::other)?));
        }
        let From::Origin(through) = &mut self.from else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        let bytes = through.next(&self.part).await.map_err(io::Error::other)?;
        if bytes.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
    }
}

/// What may be read now of a part.
fn readable(part: &Range<u64>, verified: u64, chunk: u64) -> Range<u64> {
    part.start..part.end.min(verified).min(part.start.saturating_add(chunk))
}

async fn read(file: Arc<File>, part: Range<u64>) -> io::Result<Bytes> {
    let mut bytes = vec![0; usize::try_from(part.end - part.start).expect("a chunk fits in memory")];
    // What was written just now is in the page cache: to ask a thread for it would cost more than to copy it here.
    let cached = preadv2(&file, &mut [IoSliceMut::new(&mut bytes)], part.start, ReadWriteFlags::NOWAIT);
    if cached == Ok(bytes.len()) {
        return Ok(bytes.into());
    }
    let read = tokio::task::spawn_blocking(move || {
        file.read_exact_at(&mut bytes, part.start)?;
        Ok(bytes.into())
    });
    read.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_shared::piece::PIECE_BYTES;

    proptest! {
        #[test]
        fn what_is_read_is_verified_and_wanted_and_goes_on(
            start in 0..8 * PIECE_BYTES, length in 1..8 * PIECE_BYTES, ahead in 1..8 * PIECE_BYTES, chunk in 1..PIECE_BYTES,
        ) {
            let part = start..start + length;
            let verified = start + ahead;
            let now = readable(&part, verified, chunk);
            prop_assert!(now.start == start && now.end > start);
            prop_assert!(now.end <= verified && now.end <= part.end && now.end - start <= chunk);
            prop_assert!(now.end == verified || now.end == part.end || now.end - start == chunk, "and no less");
            prop_assert!(readable(&part, start, chunk).is_empty() && readable(&part, start / 2, chunk).is_empty());
        }
    }
}

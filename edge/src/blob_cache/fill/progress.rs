//! What is known of a fill while it runs: those who wait for it and those who follow it are woken by its changes.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use super::FillError;
use crate::blob_cache::store::Blob;
use crate::metrics::{Tier, WriteDropped};

/// How far a fill is.
#[derive(Debug, Clone)]
pub(in crate::blob_cache) enum Progress {
    /// It waits for its turn, or looks at what is on disk.
    Queued,
    /// The origin was asked.
    Asked,
    /// The first bytes are there and verified, and can be read whatever becomes of the origin.
    Arriving {
        /// Where they are written.
        file: Arc<File>,
        /// How many are.
        written: u64,
        /// Those that come next, which are being written: nobody waits for a disk to have what is in memory.
        latest: Bytes,
        /// The bytes of the whole blob.
        size: u64,
    },
    /// The blob is one piece, and here it is.
    InMemory {
        /// All of it.
        bytes: Bytes,
        /// It is to be kept.
        stored: bool,
    },
    /// It was there, and was verified now.
    Held(Blob, Tier),
    /// It cannot be had.
    Failed {
        /// Why.
        error: FillError,
        /// Of a file that it came into, the first bytes that are good.
        written: u64,
    },
    /// The edge's disk does not take it: whoever wants it asks the origin.
    PastDisk {
        /// Why.
        why: WriteDropped,
        /// Of a file that it came into, the first bytes that are good.
        written: u64,
    },
}

impl Progress {
    /// Whether a request that begins with the byte `first` has something to go on with.
    pub(in crate::blob_cache) fn answers(&self, first: u64) -> bool {
        match self {
            Progress::Queued | Progress::Asked => false,
            Progress::Arriving { .. } => self.verified() > first || self.is_whole(),
            Progress::InMemory { .. } | Progress::Held(..) | Progress::Failed { .. } | Progress::PastDisk { .. } => {
                true
            }
        }
    }

    /// How many bytes from the blob's start can be read now.
    pub(in crate::blob_cache) fn verified(&self) -> u64 {
        match self {
            Progress::Arriving { written, latest, .. } => written + latest.len() as u64,
            _ => self.written(),
        }
    }

    /// How many of them are written, and stay whatever becomes of the fill.
    pub(in crate::blob_cache) fn written(&self) -> u64 {
        match self {
            Progress::Queued | Progress::Asked => 0,
            Progress::Arriving { written, .. }
            | Progress::Failed { written, .. }
            | Progress::PastDisk { written, .. } => *written,
            Progress::InMemory { .. } | Progress::Held(..) => u64::MAX,
        }
    }

    /// What is in memory of a part whose first byte is not written yet. A copy, so that a slow reader holds no more than
    /// it takes.
    pub(in crate::blob_cache) fn latest(&self, part: &Range<u64>) -> Option<Bytes> {
        let Progress::Arriving { written, latest, .. } = self else { return None };
        let at = |byte: u64| usize::try_from(byte.checked_sub(*written)?).ok().map(|at| at.min(latest.len()));
        let (start, end) = (at(part.start)?, at(part.end)?);
        (start < end).then(|| Bytes::copy_from_slice(&latest[start..end]))
    }

    /// Whether all of it is there.
    pub(in crate::blob_cache) fn is_whole(&self) -> bool {
        match self {
            Progress::Arriving { size, .. } => self.verified() == *size,
            Progress::InMemory { .. } | Progress::Held(..) => true,
            Progress::Queued | Progress::Asked | Progress::Failed { .. } | Progress::PastDisk { .. } => false,
        }
    }
}

/// The reading end. While there is one, somebody wants the fill.
#[derive(Debug, Clone)]
pub(in crate::blob_cache) struct Watcher(watch::Receiver<Progress>);

/// The writing end.
pub(super) type Teller = watch::Sender<Progress>;

/// A fill that has not begun.
pub(super) fn progress() -> (Teller, Watcher) {
    let (teller, watcher) = watch::channel(Progress::Queued);
    (teller, Watcher(watcher))
}

impl Watcher {
    /// How far it is now.
    pub(in crate::blob_cache) fn now(&self) -> Progress {
        self.0.borrow().clone()
    }

    /// Waits until a request that begins with the byte `first` has something to go on with.
    pub(in crate::blob_cache) async fn answered(&mut self, first: u64) -> Progress {
        if let Ok(progress) = self.0.wait_for(|progress| progress.answers(first)).await {
            return progress.clone();
        }
        Progress::Failed { error: FillError::Abandoned, written: self.0.borrow().written() }
    }

    /// Waits until the fill has ended, whatever came of it.
    pub(in crate::blob_cache) async fn ended(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_shared::piece::{PIECE_BYTES, covering};

    fn arriving(written: u64, latest: &'static [u8], size: u64) -> Progress {
        let latest = Bytes::from_static(latest);
        Progress::Arriving { file: Arc::new(tempfile::tempfile().unwrap()), written, latest, size }
    }

    #[test]
    fn a_request_is_answered_from_its_first_byte_on() {
        let piece = PIECE_BYTES;
        let size = 2 * piece + 5;
        for (verified, first, answers) in [
            (0, 0, false),
            (piece, 0, true),
            (piece, piece - 1, true),
            (piece, piece, false),
            (2 * piece, piece, true),
            (2 * piece, 2 * piece, false),
            (size, size - 1, true),
        ] {
            let progress = arriving(verified, b"", size);
            assert_eq!(progress.answers(first), answers, "{first} of {verified}");
            assert_eq!(progress.is_whole(), verified == size);
        }
        assert!(!Progress::Queued.answers(0) && !Progress::Asked.answers(0));
        let failed = Progress::Failed { error: FillError::Corrupt, written: piece };
        assert!(failed.answers(0) && !failed.is_whole() && failed.verified() == piece);
    }

    #[test]
    fn what_is_not_written_yet_is_read_from_memory_and_only_that() {
        let progress = arriving(10, b"abcde", 20);
        assert_eq!((progress.verified(), progress.written(), progress.is_whole()), (15, 10, false));
        assert!(progress.answers(14) && !progress.answers(15));
        let latest = |part| progress.latest(&part);
        for (part, found) in [(10..15, "abcde"), (12..13, "c"), (14..99, "e")] {
            assert_eq!(latest(part), Some(Bytes::from(found)));
        }
        for part in [9..12, 15..16, 12..12, 0..5] {
            assert_eq!(latest(part), None, "it is in the file, or nowhere");
        }
        assert!(arriving(15, b"fghij", 20).is_whole());
    }

    proptest! {
        #[test]
        fn nobody_is_answered_before_the_piece_of_the_first_byte_is_there(
            first in 0..1_u64 << 40, more in 1..1_u64 << 30, pieces in 0..1_u64 << 21,
        ) {
            let size = first + more;
            let verified = (pieces * PIECE_BYTES).min(size);
            let needed = covering(&(first..first + 1)).start;
            let there = verified == size || needed < verified / PIECE_BYTES;
            prop_assert_eq!(arriving(verified, b"", size).answers(first), there);
        }
    }
}

//! What is known of a blob that is kept, and of one that has to go.

use weir_shared::digest::BlobDigest;

use super::super::file_stamp::FileStamp;
use crate::clock::Moment;

/// Uses that are remembered of a blob: each one saves an established blob from one turn to go.
pub(super) const MAX_USES: u8 = 3;

/// What is known of a blob that is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    /// Its bytes.
    pub(crate) size: u64,
    /// The state of its file in which the bytes were compared with the name by this process, and were right.
    pub(crate) verified: Option<FileStamp>,
    /// What is known of its use.
    pub(crate) usage: Usage,
    /// Its place among those of its queue: the lowest is the next to go.
    pub(crate) turn: u64,
}

/// How a blob was used: what the index remembers of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    /// When it was used last.
    pub(crate) last: Moment,
    /// Uses since it was taken up or had its last turn, at most [`MAX_USES`].
    pub(crate) uses: u8,
    /// It has passed its probation.
    pub(crate) established: bool,
}

/// A blob that has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evicted {
    /// Its name.
    pub(crate) digest: BlobDigest,
    /// Its bytes.
    pub(crate) size: u64,
    /// When it was used last.
    pub(crate) last_use: Moment,
}

impl Slot {
    /// It is used.
    pub(super) fn touch(&mut self, now: Moment) {
        self.usage.last = now;
        self.usage.uses = (self.usage.uses + 1).min(MAX_USES);
    }
}

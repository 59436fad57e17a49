//! Room for blobs that are on their way: claimed while their origins are asked, reserved once they come.

use super::slot::Evicted;
use super::{LOW_WATERMARK_PERCENT, Limits, PROBATION_PERCENT, Policy, low_entries, percent};

/// Blobs that are on their way, as far as they have come to this.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OnTheWay {
    pub(super) bytes: u64,
    pub(super) entries: usize,
}

impl OnTheWay {
    fn with(self, size: u64) -> Self {
        Self { bytes: self.bytes + size, entries: self.entries + 1 }
    }

    fn without(self, size: u64) -> Self {
        Self { bytes: self.bytes.saturating_sub(size), entries: self.entries.saturating_sub(1) }
    }
}

impl Policy {
    /// Whether a blob that is about to be fetched can have room, beside all that is on its way already. Nothing goes
    /// for it yet.
    pub(crate) fn claim(&mut self, size: u64) -> bool {
        let is_alone = self.claimed.entries == 0;
        let all = self.claimed.with(size);
        let Limits { bytes, entries } = self.limits;
        let share = |of: u64| percent(of, PROBATION_PERCENT);
        let is_within_share = all.bytes <= share(bytes) && all.entries as u64 <= share(entries as u64);
        // An eviction goes on to the low watermark, and would take from them what lies above it.
        let leaves_established = all.bytes + self.established.bytes <= percent(bytes, LOW_WATERMARK_PERCENT)
            && all.entries + self.established.turns.len() <= low_entries(entries);
        let is_granted = self.fits(size) && (is_alone || is_within_share || leaves_established);
        if is_granted {
            self.claimed = all;
        }
        is_granted
    }

    /// Gives back a claim.
    pub(crate) fn unclaim(&mut self, size: u64) {
        self.claimed = self.claimed.without(size);
    }

    /// Makes room for a blob that is being fetched. What is returned has to be deleted.
    pub(crate) fn reserve(&mut self, size: u64) -> Vec<Evicted> {
        self.reserved = self.reserved.with(size);
        self.shrink()
    }

    /// Gives back room that was reserved.
    pub(crate) fn release(&mut self, size: u64) {
        self.reserved = self.reserved.without(size);
    }
}

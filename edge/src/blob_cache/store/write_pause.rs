//! A disk that is full or read-only is left alone for a while, instead of being tried with every blob.

use std::time::Duration;

use super::DiskTrouble;
use crate::clock::{AtomicMoment, Moment};

/// How long nothing is kept after the disk was found full or read-only.
const PAUSE: Duration = Duration::from_secs(30);

/// Until when nothing is kept.
#[derive(Debug)]
pub(super) struct WritePause(AtomicMoment);

impl WritePause {
    /// Things are kept from the first moment on.
    pub(super) fn none(now: Moment) -> Self {
        Self(AtomicMoment::new(now))
    }

    /// Whether nothing is kept now.
    pub(super) fn is_on(&self, now: Moment) -> bool {
        now < self.0.get()
    }

    /// After a failed write: a full or read-only disk begins a pause.
    pub(super) fn after(&self, trouble: DiskTrouble, now: Moment) {
        if matches!(trouble, DiskTrouble::NoSpace | DiskTrouble::ReadOnly) {
            self.0.advance(now.after(PAUSE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_full_disk_is_left_alone_for_a_while_and_an_error_of_one_file_is_not() {
        let now = Clock::begin().now();
        let pause = WritePause::none(now);
        pause.after(DiskTrouble::Failed, now);
        pause.after(DiskTrouble::TooManyFiles, now);
        assert!(!pause.is_on(now));
        pause.after(DiskTrouble::NoSpace, now);
        assert!(pause.is_on(now) && pause.is_on(now.after(PAUSE - Duration::from_millis(1))));
        assert!(!pause.is_on(now.after(PAUSE)));
        pause.after(DiskTrouble::ReadOnly, now.after(PAUSE));
        assert!(pause.is_on(now.after(PAUSE)));
    }
}

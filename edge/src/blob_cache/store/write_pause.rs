//! A disk that is full or read-only is left alone for a while, instead of being tried with every blob.

use std::io;
use std::time::Duration;

use crate::clock::{AtomicMoment, Moment};
use crate::metrics::WriteDropped;

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

    /// What a failed write means: a full or read-only disk begins a pause.
    pub(super) fn after(&self, error: &io::Error, now: Moment) -> WriteDropped {
        let reason = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => WriteDropped::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => WriteDropped::ReadOnly,
            _ => return WriteDropped::Failed,
        };
        self.0.advance(now.after(PAUSE));
        reason
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
        assert_eq!(pause.after(&io::Error::other("input/output error"), now), WriteDropped::Failed);
        assert!(!pause.is_on(now));
        assert_eq!(pause.after(&io::ErrorKind::StorageFull.into(), now), WriteDropped::NoSpace);
        assert!(pause.is_on(now) && pause.is_on(now.after(PAUSE - Duration::from_millis(1))));
        assert!(!pause.is_on(now.after(PAUSE)));
        assert_eq!(pause.after(&io::ErrorKind::ReadOnlyFilesystem.into(), now), WriteDropped::ReadOnly);
    }
}

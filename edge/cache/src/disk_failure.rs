//! Errors of the edge's disk, and the back-off after them.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use crate::clock::{AtomicMoment, Moment};

/// The back-off after the disk was full, read-only or failing, and of reads after it hung.
const BACKOFF: Duration = Duration::from_secs(30);

/// Why the disk rejects an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum DiskFailure {
    NoSpace,
    ReadOnly,
    /// The limit of open files is reached.
    TooManyFiles,
    /// Another I/O error.
    Failed,
}

impl DiskFailure {
    pub(super) fn of(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::NOSPC | Errno::DQUOT) => DiskFailure::NoSpace,
            Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => DiskFailure::ReadOnly,
            Some(Errno::MFILE | Errno::NFILE) => DiskFailure::TooManyFiles,
            _ => DiskFailure::Failed,
        }
    }
}

/// The end of the back-off of reads or writes.
#[derive(Debug)]
pub(super) struct Backoff(AtomicMoment);

impl Backoff {
    pub(super) fn inactive(now: Moment) -> Self {
        Self(AtomicMoment::new(now))
    }

    pub(super) fn is_active(&self, now: Moment) -> bool {
        now < self.0.get()
    }

    /// Starts the back-off after a failed write; true when it was off. A lack of file descriptors is temporary and says
    /// nothing about the disk.
    pub(super) fn start(&self, failure: DiskFailure, now: Moment) -> bool {
        failure != DiskFailure::TooManyFiles && self.0.advance(now.after(BACKOFF)) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn io_errors_are_classified() {
        for (number, expected) in [
            (Errno::NOSPC, DiskFailure::NoSpace),
            (Errno::ROFS, DiskFailure::ReadOnly),
            (Errno::MFILE, DiskFailure::TooManyFiles),
            (Errno::IO, DiskFailure::Failed),
        ] {
            assert_eq!(DiskFailure::of(&number.into()), expected);
        }
    }

    #[test]
    fn a_failing_disk_backs_off() {
        let now = Clock::start().now();
        let backoff = Backoff::inactive(now);
        assert!(!backoff.start(DiskFailure::TooManyFiles, now) && !backoff.is_active(now));
        assert!(backoff.start(DiskFailure::NoSpace, now) && !backoff.start(DiskFailure::NoSpace, now));
        assert!(
            backoff.is_active(now.after(BACKOFF - Duration::from_millis(1))) && !backoff.is_active(now.after(BACKOFF))
        );
    }
}

//! What can be the matter with the edge's disk, and how long it is left alone then.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use crate::clock::{AtomicMoment, Moment};

/// How long nothing is written after the disk was found full, read-only or failing; or read after it hung.
const LENGTH: Duration = Duration::from_secs(30);

/// Why the disk does not take an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskFailure {
    /// It is full.
    NoSpace,
    /// It is read-only.
    ReadOnly,
    /// No file can be opened: as many are open as may be.
    TooManyFiles,
    /// It failed.
    Failed,
}

impl DiskFailure {
    /// The value of a metric's label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            DiskFailure::NoSpace => "no_space",
            DiskFailure::ReadOnly => "read_only",
            DiskFailure::TooManyFiles => "too_many_files",
            DiskFailure::Failed => "failed",
        }
    }

    /// What an error of the file system means.
    pub(super) fn of(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::NOSPC | Errno::DQUOT) => DiskFailure::NoSpace,
            Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => DiskFailure::ReadOnly,
            Some(Errno::MFILE | Errno::NFILE) => DiskFailure::TooManyFiles,
            _ => DiskFailure::Failed,
        }
    }
}

/// Until when nothing is written, or read.
#[derive(Debug)]
pub(super) struct Pause(AtomicMoment);

impl Pause {
    pub(super) fn none(now: Moment) -> Self {
        Self(AtomicMoment::new(now))
    }

    /// Whether nothing is written now.
    pub(super) fn is_on(&self, now: Moment) -> bool {
        now < self.0.get()
    }

    /// After a failed write. True when the pause begins with it. A lack of descriptors passes by itself, and says nothing
    /// about the disk.
    pub(super) fn after(&self, failure: DiskFailure, now: Moment) -> bool {
        failure != DiskFailure::TooManyFiles && self.0.advance(now.after(LENGTH)) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn errors_of_the_system() {
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
    fn a_failing_disk_is_left_alone_for_a_while() {
        let now = Clock::begin().now();
        let pause = Pause::none(now);
        assert!(!pause.after(DiskFailure::TooManyFiles, now) && !pause.is_on(now));
        assert!(pause.after(DiskFailure::NoSpace, now) && !pause.after(DiskFailure::NoSpace, now));
        assert!(pause.is_on(now.after(LENGTH - Duration::from_millis(1))) && !pause.is_on(now.after(LENGTH)));
    }
}

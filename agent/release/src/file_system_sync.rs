//! One sync of a file system instead of one of each file, where its errors can be trusted.
//!
//! Since Linux 5.8 `syncfs` reports contents that could not be written since its descriptor was opened (syncfs(2)), on file
//! systems that pass on the errors of their disk: an overlay does not. Errors of names are reported when the release gets its own,
//! and its folder is synced. It writes what others have written there, too. So it has a time limit.

use std::path::Path;
#[cfg(target_os = "linux")]
use std::time::Duration;

/// Fewer are synced sooner one by one than with all that others have written.
pub(crate) const MIN_ENTRIES: u64 = 32;

/// How long it may take: others may have written very much.
#[cfg(target_os = "linux")]
const LIMIT: Duration = Duration::from_secs(10);

/// A file system to which something is about to be written.
pub(crate) struct FileSystemSync(#[cfg(target_os = "linux")] std::os::fd::OwnedFd);

#[cfg(not(target_os = "linux"))]
impl FileSystemSync {
    pub(crate) fn open(_: &Path) -> Option<Self> {
        None
    }

    pub(crate) fn finish(self) -> bool {
        false
    }
}

#[cfg(target_os = "linux")]
impl FileSystemSync {
    /// Before the first write. `None`: the errors of this file system cannot be trusted.
    pub(crate) fn open(directory: &Path) -> Option<Self> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
        // Its type differs between architectures.
        let file_system = i128::from(rustix::fs::fstatfs(&directory).ok()?.f_type);
        let is_trusted = linux::TRUSTED.contains(&file_system)
            && rustix::system::uname().release().to_str().is_ok_and(linux::reports_errors);
        is_trusted.then_some(Self(directory))
    }

    /// Waits until all that was written is on disk. False: it is not known, and an error may have been reported.
    pub(crate) fn finish(self) -> bool {
        linux::sync_within(LIMIT, &linux::LATE, move || rustix::fs::syncfs(&self.0).is_ok())
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    /// The types (`f_type`, statfs(2)) of ext4, xfs and btrfs; and of tmpfs, which has no disk.
    pub(super) const TRUSTED: [i128; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

    /// The syncs that go on after their limit. Another one would wait behind them.
    pub(super) static LATE: AtomicUsize = AtomicUsize::new(0);

    /// Whether a kernel of this release reports errors: 5.8 or later.
    pub(super) fn reports_errors(release: &str) -> bool {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
        let version = (numbers.next().flatten(), numbers.next().flatten());
        version >= (Some(5), Some(8))
    }

    /// Whether `sync` succeeds within the limit. It goes on after it, and until it ends no other one starts.
    pub(super) fn sync_within(
        limit: Duration,
        late: &'static AtomicUsize,
        sync: impl FnOnce() -> bool + Send + 'static,
    ) -> bool {
        if late.load(Ordering::Acquire) > 0 {
            return false;
        }
        let (sender, done) = mpsc::sync_channel(1);
        // Whether the sync has ended, or is counted as late: the second of both finds what the first has set.
        let is_settled = Arc::new(AtomicBool::new(false));
        let of_thread = is_settled.clone();
        let run = move || {
            let succeeded = sync();
            if of_thread.swap(true, Ordering::AcqRel) {
                late.fetch_sub(1, Ordering::Release);
            }
            // The reader may have given up.
            let _ = sender.send(succeeded);
        };
        if thread::Builder::new().name("syncfs".to_owned()).spawn(run).is_err() {
            return false;
        }
        done.recv_timeout(limit).unwrap_or_else(|_| {
            late.fetch_add(1, Ordering::AcqRel);
            if is_settled.swap(true, Ordering::AcqRel) {
                late.fetch_sub(1, Ordering::Release);
            }
            false
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn errors_are_reported_since_5_8() {
            let reported = ["5.8.0", "5.10.0-28-amd64", "6.1", "10.0.1+"];
            assert!(reported.into_iter().all(reports_errors));
            assert!(!["5.7.19", "4.18.0-553.el8_10.x86_64", "3.10", "5", "", "x.y"].into_iter().any(reports_errors));
        }

        #[test]
        fn nothing_waits_behind_a_sync_that_is_late() {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let within = |limit, sync: Box<dyn FnOnce() -> bool + Send>| sync_within(limit, &COUNT, sync);
            assert!(within(Duration::MAX, Box::new(|| true)) && !within(Duration::MAX, Box::new(|| false)));
            // Two at once are late.
            let (ends, late): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel::<()>()).unzip();
            let both = std::sync::Barrier::new(2);
            thread::scope(|scope| {
                for ended in late {
                    scope.spawn(|| {
                        both.wait();
                        sync_within(Duration::from_secs(1), &COUNT, move || ended.recv().is_err())
                    });
                }
            });
            assert_eq!(COUNT.load(Ordering::Acquire), 2);
            for end in ends {
                assert!(!within(Duration::MAX, Box::new(|| true)), "one before is under way");
                drop(end);
            }
            while !within(Duration::MAX, Box::new(|| true)) {
                thread::yield_now();
            }
        }
    }
}

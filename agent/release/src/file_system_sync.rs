//! One sync of a file system instead of one of each file, where its errors can be trusted.
//!
//! `syncfs` reports what could not be written since its descriptor was opened, but only since Linux 5.8 (syncfs(2)), and only on
//! file systems that pass on the errors of their disk: an overlay does not. It writes what others have written there, too. So it
//! has a time limit, after which the files are synced one by one.

use std::path::Path;
#[cfg(target_os = "linux")]
use std::time::Duration;

/// A few files are synced sooner one by one than with all that others have written.
#[cfg(target_os = "linux")]
const MIN_ENTRIES: u64 = 32;

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

    pub(crate) fn finish(self, _: u64) -> bool {
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

    /// Waits until all that was written is on disk. False: it is not known, so each of the `entries` must be synced.
    pub(crate) fn finish(self, entries: u64) -> bool {
        entries >= MIN_ENTRIES && linux::sync_within(LIMIT, move || rustix::fs::syncfs(&self.0).is_ok())
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
    use std::thread;
    use std::time::Duration;

    /// The types (`f_type`, statfs(2)) of ext4, xfs and btrfs; and of tmpfs, which has no disk.
    pub(super) const TRUSTED: [i128; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

    /// The last sync that was late: another one would wait behind it.
    static LATE: Mutex<Weak<()>> = Mutex::new(Weak::new());

    /// Whether a kernel of this release reports errors: 5.8 or later.
    pub(super) fn reports_errors(release: &str) -> bool {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
        let version = (numbers.next().flatten(), numbers.next().flatten());
        version >= (Some(5), Some(8))
    }

    /// Whether `sync` succeeds within the limit. It goes on after it, and until it ends no other one begins.
    pub(super) fn sync_within(limit: Duration, sync: impl FnOnce() -> bool + Send + 'static) -> bool {
        let late = || LATE.lock().unwrap_or_else(PoisonError::into_inner);
        if late().strong_count() > 0 {
            return false;
        }
        let (sender, done) = mpsc::sync_channel(1);
        let running = Arc::new(());
        let of_thread = running.clone();
        let run = move || {
            // Nobody may wait any longer.
            let _ = sender.send(sync());
            drop(of_thread);
        };
        if thread::Builder::new().name("syncfs".to_owned()).spawn(run).is_err() {
            return false;
        }
        done.recv_timeout(limit).unwrap_or_else(|_| {
            *late() = Arc::downgrade(&running);
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
            let (end, ended) = mpsc::channel::<()>();
            let (has_ended, seen) = mpsc::channel();
            let late = move || {
                let _ = ended.recv();
                has_ended.send(()).unwrap();
                true
            };
            assert!(sync_within(Duration::MAX, || true) && !sync_within(Duration::MAX, || false));
            assert!(!sync_within(Duration::ZERO, late), "it is late");
            assert!(!sync_within(Duration::MAX, || true), "the one before is under way");
            drop(end);
            seen.recv().unwrap();
            while !sync_within(Duration::MAX, || true) {
                thread::yield_now();
            }
        }
    }
}

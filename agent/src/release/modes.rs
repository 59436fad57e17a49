//! The permissions of what the agent writes, whatever the umask.

use rustix::fs::{Mode, Stat};

/// Everybody may read a release; with `group_write` the group of the root may change it, as well as the owner.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Modes {
    pub(crate) group_write: bool,
}

impl Modes {
    /// Of a directory. With `group_write` its entries get its group, also where the root has another one than the process.
    pub(super) fn directory(self) -> Mode {
        Mode::from_raw_mode(if self.group_write { 0o2775 } else { 0o755 })
    }

    /// Of a directory that readers do not use.
    pub(super) fn private_directory(self) -> Mode {
        Mode::from_raw_mode(if self.group_write { 0o2770 } else { 0o700 })
    }

    pub(super) fn file(self, executable: bool) -> Mode {
        Mode::from_raw_mode(match (executable, self.group_write) {
            (false, false) => 0o644,
            (false, true) => 0o664,
            (true, false) => 0o755,
            (true, true) => 0o775,
        })
    }

    pub(super) fn is_of_file(self, stat: &Stat, executable: bool) -> bool {
        Mode::from_raw_mode(stat.st_mode) == self.file(executable)
    }

    /// The set-group-id bit says nothing about access, and a file system may refuse it.
    pub(super) fn is_of_directory(self, stat: &Stat) -> bool {
        Mode::from_raw_mode(stat.st_mode) - Mode::SGID == self.directory() - Mode::SGID
    }
}

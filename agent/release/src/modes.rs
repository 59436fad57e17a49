//! The permissions of what the agent writes: the umask takes bits away, except with `group_write`.

use rustix::fs::{Mode, Stat};

/// Everybody may read a release, unless the umask of the agent forbids it; with `group_write` the group of the root may change
/// it, as well as the owner.
#[derive(Debug, Clone, Copy, Default)]
pub struct Modes {
    /// Whether the group may write.
    pub group_write: bool,
}

impl Modes {
    /// Of a directory. With `group_write` its entries get its group, also where the root has another one than the process.
    pub fn directory(self) -> Mode {
        Mode::from_raw_mode(if self.group_write { 0o2775 } else { 0o755 })
    }

    /// Of a directory that readers do not use.
    pub fn private_directory(self) -> Mode {
        Mode::from_raw_mode(if self.group_write { 0o2770 } else { 0o700 })
    }

    /// Of a file.
    pub fn file(self, executable: bool) -> Mode {
        Mode::from_raw_mode(match (executable, self.group_write) {
            (false, false) => 0o644,
            (false, true) => 0o664,
            (true, false) => 0o755,
            (true, true) => 0o775,
        })
    }

    /// Those that a release was made with, by the mode of its own directory: the umask may have been another one. `None`: that
    /// directory was changed.
    pub fn of_release(self, directory: &Stat) -> Option<ReleaseModes> {
        let (found, widest) = (access(directory), self.directory() - Mode::SGID);
        let is_narrowed = !self.group_write && widest.contains(found) && found.contains(Mode::RWXU);
        (found == widest || is_narrowed).then_some(ReleaseModes { modes: self, directory: found })
    }
}

/// The modes of the entries of one release.
#[derive(Debug, Clone, Copy)]
pub struct ReleaseModes {
    modes: Modes,
    directory: Mode,
}

impl ReleaseModes {
    pub fn is_of_file(self, stat: &Stat, executable: bool) -> bool {
        Mode::from_raw_mode(stat.st_mode) == self.modes.file(executable) & self.directory
    }

    pub fn is_of_directory(self, stat: &Stat) -> bool {
        access(stat) == self.directory
    }
}

/// The set-group-id bit says nothing about access, and a file system may refuse it.
fn access(directory: &Stat) -> Mode {
    Mode::from_raw_mode(directory.st_mode) - Mode::SGID
}

//! What can be the matter with the edge's disk, in a few words that metrics can carry.

use std::io;

/// Why a blob is not kept, or is served past the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskTrouble {
    /// The disk is full.
    NoSpace,
    /// The disk is read-only.
    ReadOnly,
    /// No file can be opened: as many are open as may be.
    TooManyFiles,
    /// The disk failed.
    Failed,
}

impl DiskTrouble {
    /// All there are.
    pub(crate) const ALL: [Self; 4] = [Self::NoSpace, Self::ReadOnly, Self::TooManyFiles, Self::Failed];

    /// The value of a metric's label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            DiskTrouble::NoSpace => "no_space",
            DiskTrouble::ReadOnly => "read_only",
            DiskTrouble::TooManyFiles => "too_many_files",
            DiskTrouble::Failed => "failed",
        }
    }
}

impl From<&io::Error> for DiskTrouble {
    fn from(error: &io::Error) -> Self {
        // The same numbers on every Unix: too many open files in the system, in the process.
        if matches!(number(error), Some(23 | 24)) {
            return DiskTrouble::TooManyFiles;
        }
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DiskTrouble::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => DiskTrouble::ReadOnly,
            _ => DiskTrouble::Failed,
        }
    }
}

/// The system's number of an error. One that was given the name of its file keeps the number in its words alone.
fn number(error: &io::Error) -> Option<i32> {
    let in_words = || error.to_string().split_once("(os error ")?.1.split_once(')')?.0.parse().ok();
    error.raw_os_error().or_else(in_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says() {
        for (number, expected) in [
            (28, DiskTrouble::NoSpace),
            (30, DiskTrouble::ReadOnly),
            (24, DiskTrouble::TooManyFiles),
            (23, DiskTrouble::TooManyFiles),
            (5, DiskTrouble::Failed),
            (2, DiskTrouble::Failed),
        ] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(DiskTrouble::from(&error), expected, "{number}");
            let named = io::Error::new(error.kind(), format!("{error} at path \"/a (b)\""));
            assert_eq!(DiskTrouble::from(&named), expected, "{number}");
        }
    }
}

//! What a tarball would hold, without making it.

use std::sync::atomic::AtomicBool;

use weir_protocol::descriptor::Omission;
use weir_protocol::entry_path;

use super::entry::EntryKind;
use super::walk::walk;
use super::{Contents, Limits, Selection, TarballError};

/// An entry that a tarball would hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Relative to the folder, percent-encoded where it is not UTF-8; a directory's ends in `/`.
    pub path: String,
    /// What it is.
    pub kind: ListedKind,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListedKind {
    /// A file.
    File {
        /// As it is in the repository: line ends may change it. Of a file of LFS what its pointer says.
        bytes: u64,
        /// Mode 0755, not 0644.
        executable: bool,
    },
    /// A directory.
    Directory,
    /// A symlink, and where it leads, percent-encoded likewise.
    Symlink(String),
}

/// All that a tarball would hold, in numbers, and what it would not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Entries of the tarball.
    pub entries: u64,
    /// Bytes of its files, as they are in the repository.
    pub file_bytes: u64,
    /// What is left out although it was asked for.
    pub omitted: Vec<Omission>,
}

/// Lists what the tarball of a selection would hold, in its order. No files are read.
///
/// # Errors
/// As those of a build, but for those of contents.
pub fn list(
    contents: &impl Contents,
    selection: &Selection,
    limits: &Limits,
    interrupt: &AtomicBool,
    emit: &mut dyn FnMut(Listed),
) -> Result<Listing, TarballError> {
    let mut file_bytes = 0;
    let walked = walk(contents, selection, (limits, interrupt), &mut |entry| {
        let kind = match entry.kind {
            EntryKind::File { size: bytes, executable, .. } => {
                file_bytes += bytes;
                ListedKind::File { bytes, executable }
            }
            EntryKind::Directory => ListedKind::Directory,
            EntryKind::Symlink { target } => ListedKind::Symlink(entry_path::percent_encode(&target)),
        };
        emit(Listed { path: entry_path::percent_encode(&entry.path), kind });
        Ok(())
    })?;
    if walked.entries == 0 {
        return Err(TarballError::Empty);
    }
    Ok(Listing { entries: walked.entries, file_bytes, omitted: walked.omitted })
}

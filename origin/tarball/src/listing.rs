//! Lists the entries of a tarball without building it.

use std::sync::atomic::AtomicBool;

use weir_protocol::descriptor::Omission;
use weir_protocol::entry_path;

use super::entry::EntryKind;
use super::walk::walk;
use super::{Contents, Limits, Selection, TarballError};

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEntry {
    /// Relative to the folder, percent-encoded where it is not UTF-8; a directory's ends in `/`.
    pub path: String,
    /// File, directory or symlink.
    pub kind: ListedKind,
}

/// The kind of a listed entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListedKind {
    /// A file.
    File {
        /// Bytes in the repository, before line ends are converted. For an LFS file, the size in its pointer.
        bytes: u64,
        /// Mode 0755 instead of 0644.
        executable: bool,
    },
    /// A directory.
    Directory,
    /// A symlink with its target, percent-encoded likewise.
    Symlink(String),
}

/// The totals of a tarball, and its omissions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Entries of the tarball.
    pub entries: u64,
    /// Bytes of all files, as in the repository.
    pub file_bytes: u64,
    /// Selected entries that the tarball leaves out.
    pub omitted: Vec<Omission>,
}

/// Lists the entries of a selection's tarball in order. No files are read.
///
/// # Errors
/// Those of a build, except errors of reading files.
pub fn list(
    contents: &impl Contents,
    selection: &Selection,
    limits: &Limits,
    interrupt: &AtomicBool,
    emit: &mut dyn FnMut(ListedEntry),
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
        emit(ListedEntry { path: entry_path::percent_encode(&entry.path), kind });
        Ok(())
    })?;
    if walked.entries == 0 {
        return Err(TarballError::Empty);
    }
    Ok(Listing { entries: walked.entries, file_bytes, omitted: walked.omitted })
}

//! The entries of a tarball.

use weir_protocol::tar_writer::{self, BLOCK};

/// One entry of a tarball.
#[derive(Debug)]
pub struct Entry<F> {
    /// Relative to the folder; the path of a directory ends in `/`.
    pub path: Vec<u8>,
    /// File, directory or symlink.
    pub kind: EntryKind<F>,
}

/// The kind of an entry. `F` identifies a file at its source ([`super::Contents::File`]).
#[derive(Debug)]
pub enum EntryKind<F> {
    /// A file, not read yet.
    File {
        /// Identifies the file at its source.
        file: F,
        /// Bytes, before line ends are converted.
        size: u64,
        /// Mode 0755 instead of 0644.
        executable: bool,
    },
    /// A directory.
    Directory,
    /// A symlink.
    Symlink {
        /// The target.
        target: Vec<u8>,
    },
}

impl<F> Entry<F> {
    /// The same entry, whose file is identified by `map`.
    pub fn map_file<T>(self, map: impl FnOnce(F) -> T) -> Entry<T> {
        let kind = match self.kind {
            EntryKind::File { file, size, executable } => EntryKind::File { file: map(file), size, executable },
            EntryKind::Directory => EntryKind::Directory,
            EntryKind::Symlink { target } => EntryKind::Symlink { target },
        };
        Entry { path: self.path, kind }
    }

    /// Approximate bytes in the tar: exact except for long names and converted line ends.
    pub fn tar_bytes(&self) -> u64 {
        let contents = match &self.kind {
            EntryKind::File { size, .. } => size.saturating_add(tar_writer::padding(*size) as u64),
            EntryKind::Symlink { target } => target.len() as u64,
            EntryKind::Directory => 0,
        };
        contents.saturating_add(BLOCK as u64 + self.path.len() as u64)
    }
}

//! What a tarball consists of.

use super::header::{self, BLOCK};

/// One entry of the tarball to be.
#[derive(Debug)]
pub struct Entry<F> {
    /// Relative to the folder; a directory's ends in `/`.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind<F>,
}

/// What an entry is. `F` is what the source knows a file by ([`super::Contents::File`]).
#[derive(Debug)]
pub enum EntryKind<F> {
    /// A file whose bytes are still with the source.
    File {
        /// Which bytes.
        file: F,
        /// How many, but for line ends that change.
        size: u64,
        /// Mode 0755, not 0644.
        executable: bool,
    },
    /// A directory.
    Directory,
    /// A symlink.
    Symlink {
        /// Where it leads.
        target: Vec<u8>,
    },
}

impl<F> Entry<F> {
    /// About how many bytes of tar it makes: exact but for long names and changed line ends.
    pub(super) fn tar_bytes(&self) -> u64 {
        let contents = match &self.kind {
            EntryKind::File { size, .. } => size.saturating_add(header::padding(*size) as u64),
            EntryKind::Symlink { target } => target.len() as u64,
            EntryKind::Directory => 0,
        };
        contents.saturating_add(BLOCK as u64 + self.path.len() as u64)
    }
}

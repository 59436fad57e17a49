//! The entries of an archive, and where their contents are in the spool.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bounds::{MAX_ALL_PATH_BYTES, MAX_ENTRIES};
use super::error::{ArchiveError, shown};

/// The bytes of a file in the spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpooledFile {
    pub(super) offset: u64,
    pub(super) size: u64,
    /// The BLAKE3 of the bytes.
    pub(super) digest: [u8; 32],
}

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum EntryKind {
    Directory,
    File { file: SpooledFile, executable: bool },
    Symlink { target: Vec<u8> },
}

/// All entries by path. The path of a directory ends in a slash, so an entry comes right after its directory, and the
/// order is that of a tarball. No entry is below a file or a symlink.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Index(Vec<(Vec<u8>, EntryKind)>);

impl Index {
    pub(super) fn get(&self, path: &[u8]) -> Option<&EntryKind> {
        let at = self.0.binary_search_by(|(other, _)| other.as_slice().cmp(path)).ok()?;
        Some(&self.0[at].1)
    }

    /// The entries of a directory and below. Its path ends in a slash, or is empty.
    pub(super) fn below(&self, directory: &[u8]) -> impl Iterator<Item = (&[u8], &EntryKind)> {
        let start = self.0.partition_point(|(path, _)| path.as_slice() <= directory);
        let entries = self.0[start..].iter().map(|(path, kind)| (path.as_slice(), kind));
        entries.take_while(move |(path, _)| path.starts_with(directory))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("all lengths are known")
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

/// An index of the members so far.
#[derive(Default)]
pub(super) struct IndexBuilder {
    entries: BTreeMap<Vec<u8>, EntryKind>,
    path_bytes: usize,
}

impl IndexBuilder {
    /// Adds a member, and the directories above it. Its path has no slash at its ends. Of files and symlinks with one path the
    /// last one counts, as for tar and helm.
    pub(super) fn add(&mut self, path: &[u8], kind: EntryKind) -> Result<(), ArchiveError> {
        // From the deepest one: above a known directory all are known.
        for (at, _) in path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/') {
            let (above, directory) = (&path[..at], &path[..=at]);
            if self.entries.contains_key(directory) {
                break;
            }
            if let Some(kind) = self.entries.get(above) {
                let what = if matches!(kind, EntryKind::Symlink { .. }) { "symlink" } else { "file" };
                let fault = format!("is below the {what} `{}`", shown(above));
                return Err(ArchiveError::member(path, fault));
            }
            self.insert(directory.to_vec(), EntryKind::Directory)?;
        }
        let directory = [path, b"/"].concat();
        let is_known = self.entries.contains_key(&directory);
        let is_directory = kind == EntryKind::Directory;
        match is_directory {
            true if is_known => Ok(()),
            true if !self.entries.contains_key(path) => self.insert(directory, kind),
            false if !is_known => self.insert(path.to_vec(), kind),
            _ => Err(ArchiveError::member(path, "is there twice, as a directory and as a file or symlink")),
        }
    }

    fn insert(&mut self, path: Vec<u8>, kind: EntryKind) -> Result<(), ArchiveError> {
        let bytes = |path: usize, kind: &EntryKind| match kind {
            EntryKind::Symlink { target } => path + target.len(),
            _ => path,
        };
        let length = path.len();
        self.path_bytes += bytes(length, &kind);
        if self.path_bytes > MAX_ALL_PATH_BYTES {
            return Err(ArchiveError::PathsTooLong);
        }
        if let Some(before) = self.entries.insert(path, kind) {
            self.path_bytes -= bytes(length, &before);
        }
        if self.entries.len() > MAX_ENTRIES { Err(ArchiveError::TooManyEntries) } else { Ok(()) }
    }

    /// The file with this path, if there is one so far.
    pub(super) fn file(&self, path: &[u8]) -> Option<&EntryKind> {
        self.entries.get(path).filter(|kind| matches!(kind, EntryKind::File { .. }))
    }

    pub(super) fn finish(self) -> Result<Index, ArchiveError> {
        if self.entries.values().all(|kind| *kind == EntryKind::Directory) {
            return Err(ArchiveError::Empty);
        }
        Ok(Index(self.entries.into_iter().collect()))
    }
}

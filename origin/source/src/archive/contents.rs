//! Tarball contents from a spool.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use weir_protocol::entry_path::percent_encode;
use weir_tarball::{Contents, FolderPath, KeyWriter, PIECE_BYTES, TarballError, Walk};

use super::index::{EntryKind, Index, SpooledFile};

/// A folder of an archive.
#[derive(Debug, Clone)]
pub(crate) struct ArchiveTree<'a> {
    pub(super) spool: Arc<File>,
    pub(super) index: Arc<Index>,
    pub(super) folder: &'a FolderPath,
}

impl ArchiveTree<'_> {
    /// The path of the folder, with a slash at its end. Empty: the whole archive.
    fn root(&self) -> Result<Vec<u8>, TarballError> {
        let mut path = Vec::new();
        for name in self.folder.components() {
            path.extend_from_slice(name.as_bytes());
            let kind = match self.index.get(&path) {
                Some(EntryKind::File { .. }) => "file",
                Some(EntryKind::Symlink { .. }) => "symlink",
                Some(EntryKind::Directory) | None => {
                    path.push(b'/');
                    continue;
                }
            };
            return Err(TarballError::NotAFolder(percent_encode(&path), kind));
        }
        if path.is_empty() || self.index.get(&path).is_some() {
            return Ok(path);
        }
        Err(TarballError::FolderMissing(self.folder.to_string()))
    }

    /// Whether a path below the root, or a parent of it, is a symlink.
    fn leads_through_link(&self, root: &[u8], path: &[u8]) -> bool {
        let whole = [root, path].concat();
        let ends = (root.len()..=whole.len()).filter(|end| whole.get(*end).is_none_or(|byte| *byte == b'/'));
        ends.map(|end| self.index.get(&whole[..end])).any(|kind| matches!(kind, Some(EntryKind::Symlink { .. })))
    }
}

impl Contents for ArchiveTree<'_> {
    type File = SpooledFile;

    fn walk(&self, into: &mut Walk<'_, SpooledFile>) -> Result<(), TarballError> {
        let root = self.root()?;
        let (mut levels, mut left_out) = (vec![&root[..]], None);
        for (path, kind) in self.index.below(&root) {
            if left_out.is_some_and(|directory| path.starts_with(directory)) {
                continue;
            }
            while !path.starts_with(levels[levels.len() - 1]) {
                levels.pop();
                into.leave();
            }
            into.count()?;
            let name = &path[levels[levels.len() - 1].len()..];
            let name = name.strip_suffix(b"/").unwrap_or(name);
            let selected = into.visit(name, *kind == EntryKind::Directory, |_| false)?;
            match kind {
                EntryKind::Directory if selected => {
                    into.enter();
                    levels.push(path);
                }
                EntryKind::Directory => left_out = Some(path),
                _ if !selected => {}
                EntryKind::File { file, executable } => into.file(*file, file.size, *executable)?,
                EntryKind::Symlink { target } => {
                    into.symlink(target.clone(), |path| Ok(self.leads_through_link(&root, path)))?;
                }
            }
        }
        levels.iter().skip(1).for_each(|_| into.leave());
        Ok(())
    }

    fn identify(file: &SpooledFile, executable: bool, key: &mut KeyWriter) {
        key.field(if executable { b"BLAKE3 executable" } else { b"BLAKE3 file" });
        key.field(&file.digest);
    }

    fn read(&self, path: &[u8], file: &SpooledFile, buffer: &mut Vec<u8>) -> Result<(), TarballError> {
        let read = read_at(&self.spool, file, buffer);
        read.map_err(|error| damaged(path, &error))
    }

    fn read_in_pieces(
        &self,
        path: &[u8],
        file: &SpooledFile,
        take: &mut dyn FnMut(u64, Vec<u8>) -> Result<(), TarballError>,
    ) -> Result<(), TarballError> {
        let (mut at, end, mut hash) = (file.offset, file.offset + file.size, blake3::Hasher::new());
        while at < end {
            let mut piece = vec![0; PIECE_BYTES.min(end - at) as usize];
            self.spool.read_exact_at(&mut piece, at).map_err(|error| damaged(path, &error))?;
            hash.update(&piece);
            at += piece.len() as u64;
            take(file.size, piece)?;
        }
        if *hash.finalize().as_bytes() == file.digest { Ok(()) } else { Err(damaged(path, &CHANGED)) }
    }
}

/// What a wrong digest means.
const CHANGED: &str = "its bytes changed on the disk";

fn damaged(path: &[u8], cause: &dyn std::fmt::Display) -> TarballError {
    TarballError::Spool { path: percent_encode(path), cause: cause.to_string() }
}

/// Reads bytes of a spool into `buffer`, whose former contents are lost, and verifies them.
pub(super) fn read_at(spool: &File, at: &SpooledFile, buffer: &mut Vec<u8>) -> io::Result<()> {
    let size = usize::try_from(at.size).map_err(io::Error::other)?;
    buffer.clear();
    buffer.resize(size, 0);
    spool.read_exact_at(buffer, at.offset)?;
    if *blake3::hash(buffer).as_bytes() == at.digest {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, CHANGED))
}

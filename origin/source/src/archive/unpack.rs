//! Reads an archive once, and writes the contents of its files one after the other.

use std::io::{Read, Write};
use std::sync::atomic::AtomicBool;

use super::bounds::Bounds;
use super::error::{ArchiveError, shown};
use super::headers;
use super::index::{EntryKind, Index, IndexBuilder, SpooledFile};
use super::layout::Layout;
use super::members::{self, Member, MemberKind};
use super::paths::Paths;
use super::reader;

/// Unpacks an archive into `out`. Returns its entries.
pub(super) fn unpack(
    archive: impl Read,
    layout: &Layout,
    bounds: &Bounds,
    stop: &AtomicBool,
    out: &mut dyn Write,
) -> Result<Index, ArchiveError> {
    let archive = reader::archive(archive, bounds, stop);
    let mut out = Contents { out, written: 0 };
    let mut linked_bytes = 0;
    let mut index = IndexBuilder::default();
    if let Layout::OneFile(name) = layout {
        let file = out.copy(archive.take(bounds.max_file.saturating_add(1)), None)?;
        check_size(name.as_bytes(), file.size, bounds)?;
        index.add(name.as_bytes(), EntryKind::File { file, executable: false })?;
        return index.finish();
    }
    let mut paths = Paths::new(layout);
    let (tar, found) = reader::decompressed(archive, bounds, stop)?;
    let unpacked = members::read(tar, &mut |Member { path: raw, kind }, contents| {
        let path = paths.place(&raw, matches!(kind, MemberKind::Directory))?;
        if path.is_empty() {
            // The folder of all others.
            return match kind {
                MemberKind::Directory => Ok(()),
                _ => Err(ArchiveError::member(&raw, "has no name")),
            };
        }
        let kind = match kind {
            MemberKind::File { size, executable } => {
                check_size(&raw, size, bounds)?;
                EntryKind::File { file: out.copy(contents, Some(size))?, executable }
            }
            MemberKind::Directory => EntryKind::Directory,
            MemberKind::Symlink { target } => EntryKind::Symlink { target },
            MemberKind::HardLink { target } => {
                let linked = paths.linked(&target).and_then(|linked| index.file(&linked).cloned());
                let no_file = || format!("is a hard link to `{}`, which is not a file before it", shown(&target));
                let linked = linked.ok_or_else(|| ArchiveError::member(&raw, no_file()))?;
                // A link takes no room here, but its contents are published again.
                if let EntryKind::File { file, .. } = &linked {
                    linked_bytes += file.size;
                }
                if linked_bytes > bounds.max_unpacked {
                    return Err(ArchiveError::UnpacksTooLarge(bounds.max_unpacked));
                }
                linked
            }
        };
        index.add(&path, kind)
    });
    let hint = match layout {
        Layout::StripTop => ": package it with `helm package`",
        _ => ": to publish it as one file, set `layer.operation = \"copy\"`",
    };
    unpacked.map_err(|error| match error {
        ArchiveError::NotTar { .. } => ArchiveError::NotTar { found, hint },
        other => other,
    })?;
    index.finish()
}

fn check_size(path: &[u8], size: u64, bounds: &Bounds) -> Result<(), ArchiveError> {
    if size > bounds.max_file {
        return Err(ArchiveError::FileTooLarge { path: shown(path), size, limit: bounds.max_file });
    }
    Ok(())
}

struct Contents<'a> {
    out: &'a mut dyn Write,
    written: u64,
}

impl Contents<'_> {
    /// Writes the contents of a file, which must have `size` bytes.
    fn copy(&mut self, mut from: impl Read, size: Option<u64>) -> Result<SpooledFile, ArchiveError> {
        let (offset, mut hash) = (self.written, blake3::Hasher::new());
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            hash.update(&buffer[..read]);
            self.out.write_all(&buffer[..read]).map_err(on_write)?;
            self.written += read as u64;
        }
        let file = SpooledFile { offset, size: self.written - offset, digest: *hash.finalize().as_bytes() };
        match size {
            Some(size) if size != file.size => Err(headers::cut()),
            _ => Ok(file),
        }
    }
}

fn on_write(error: std::io::Error) -> ArchiveError {
    error.downcast().unwrap_or_else(ArchiveError::Disk)
}

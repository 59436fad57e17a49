//! A run: entries that follow one another, decoded and compressed by themselves.
//!
//! Where runs end depends on the entries only ([`super::cut`]), so a tarball has the same frames whatever the number of
//! threads and whatever was built before.

use std::sync::atomic::Ordering;

use gix::Repository;
use weir_shared::descriptor::FORMAT;
use weir_shared::entry_path;

use super::attributes::LineEnds;
use super::build_context::BuildContext;
use super::codec::CODEC;
use super::cut::MAX_RUN_BYTES;
use super::folder::read_blob;
use super::header::{self, BLOCK, HeaderKind};
use super::recipe::RunKey;
use super::walk::{Entry, EntryContent};
use super::{Selection, TarballError};
use crate::lfs::Pointer;

/// Entries that follow one another, not decoded yet.
#[derive(Debug, Default)]
pub(super) struct Run {
    entries: Vec<Entry>,
    /// About how many bytes of tar they make.
    bytes: u64,
    /// Whether the tarball begins with them: it has a small first frame.
    is_first: bool,
    /// Whether the tarball ends with them.
    is_last: bool,
}

impl Run {
    /// The run that begins a tarball.
    pub(super) fn first() -> Self {
        Self { is_first: true, ..Self::default() }
    }

    pub(super) fn is_first(&self) -> bool {
        self.is_first
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn mark_last(&mut self) {
        self.is_last = true;
    }

    pub(super) fn add(&mut self, entry: Entry) {
        self.bytes += tar_bytes(&entry);
        self.entries.push(entry);
    }

    /// What decides the run's frames. Everything that stands above it (attributes, filters, the folder) has left its mark in
    /// the entries already.
    pub(super) fn key(&self, selection: &Selection) -> RunKey {
        let mut key = blake3::Hasher::new_derive_key("weir run key v1");
        let mut field = |bytes: &[u8]| {
            key.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        field(CODEC.as_bytes());
        // Another version of the library may write other frames, and a body's bytes must not depend on its history.
        field(&zstd::zstd_safe::version_number().to_le_bytes());
        field(&FORMAT.to_le_bytes());
        field(&[u8::from(selection.gzip), u8::from(self.is_first), u8::from(self.is_last)]);
        for entry in &self.entries {
            field(&entry.path);
            match &entry.kind {
                EntryContent::Directory => field(b"directory"),
                EntryContent::Symlink { target } => {
                    field(b"symlink");
                    field(target);
                }
                EntryContent::Lfs { pointer, executable } => {
                    field(if *executable { b"LFS executable" } else { b"LFS file" });
                    field(pointer.oid.as_bytes());
                }
                EntryContent::File { id, size: _, executable, line_ends } => {
                    field(if *executable { b"executable" } else { b"file" });
                    field(id.as_slice());
                    field(line_ends.map_or("as it is", LineEnds::as_str).as_bytes());
                }
            }
        }
        *key.finalize().as_bytes()
    }

    /// Decodes the contents and writes the tar.
    pub(super) fn tar(self, repo: &Repository, context: &BuildContext<'_>) -> Result<Vec<u8>, TarballError> {
        let mut tar = Vec::with_capacity(self.bytes.min(MAX_RUN_BYTES) as usize + header::END.len());
        let mut contents = Vec::new();
        for entry in self.entries {
            if context.interrupt.load(Ordering::Relaxed) {
                return Err(TarballError::Interrupted);
            }
            match entry.kind {
                EntryContent::Directory => header::write_header(&mut tar, &entry.path, HeaderKind::Directory),
                EntryContent::Symlink { target } => {
                    header::write_header(&mut tar, &entry.path, HeaderKind::Symlink { target: &target });
                }
                EntryContent::File { id, executable, line_ends, .. } => {
                    read_blob(repo, id, &mut contents)?;
                    if let Some(rule) = line_ends
                        && let Some(converted) = rule.convert(&contents).map_err(|e| TarballError::object(id, e))?
                    {
                        contents = converted;
                    }
                    write_file(&mut tar, &entry.path, executable, &mut contents);
                }
                EntryContent::Lfs { pointer, executable } => {
                    let read = context.lfs.ok_or(std::io::ErrorKind::NotFound.into());
                    read.and_then(|objects| objects.read(&pointer, &mut contents)).map_err(|error| {
                        let path = entry_path::percent_encode(&entry.path);
                        TarballError::Lfs { path, cause: error.to_string() }
                    })?;
                    write_file(&mut tar, &entry.path, executable, &mut contents);
                }
            }
        }
        if self.is_last {
            tar.extend_from_slice(&header::END);
        }
        Ok(tar)
    }
}

/// Appends a file. A large one is alone in its run, and its contents are moved and not copied, so that they are in memory
/// once.
fn write_file(tar: &mut Vec<u8>, path: &[u8], executable: bool, contents: &mut Vec<u8>) {
    let size = contents.len() as u64;
    let is_alone = tar.is_empty() && size > MAX_RUN_BYTES;
    header::write_header(tar, path, HeaderKind::File { executable, size });
    if is_alone {
        contents.reserve_exact(tar.len() + header::padding(size) + header::END.len());
        contents.splice(0..0, std::mem::take(tar));
        *tar = std::mem::take(contents);
    } else {
        tar.extend_from_slice(contents);
    }
    header::pad(tar, size);
}

/// About how many bytes of tar an entry makes: exact but for long names and changed line ends.
pub(super) fn tar_bytes(entry: &Entry) -> u64 {
    let contents = match &entry.kind {
        EntryContent::File { size, .. } | EntryContent::Lfs { pointer: Pointer { size, .. }, .. } => {
            size.saturating_add(header::padding(*size) as u64)
        }
        EntryContent::Symlink { target } => target.len() as u64,
        EntryContent::Directory => 0,
    };
    contents.saturating_add(BLOCK as u64 + entry.path.len() as u64)
}

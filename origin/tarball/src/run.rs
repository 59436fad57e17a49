//! A run: consecutive entries that are read and compressed on their own.
//!
//! The boundaries depend only on the entries ([`super::chunker`]), so a tarball has the same frames for any number of
//! threads and any base.

use std::sync::atomic::{AtomicBool, Ordering};

use weir_protocol::descriptor::FORMAT;
use weir_protocol::tar_writer::{self, HeaderKind};

use super::chunker::MAX_RUN_BYTES;
use super::codec::CODEC;
use super::entry::{Entry, EntryKind};
use super::key::KeyWriter;
use super::recipe::RunKey;
use super::{Contents, Selection, TarballError};

pub(crate) struct Run<C: Contents> {
    entries: Vec<Entry<C::File>>,
    /// Approximate bytes of tar.
    bytes: u64,
    /// Whether it is the first run of the tarball, which has a small first frame.
    is_first: bool,
    /// Whether it is the last run of the tarball.
    is_last: bool,
}

impl<C: Contents> Default for Run<C> {
    fn default() -> Self {
        Self { entries: Vec::new(), bytes: 0, is_first: false, is_last: false }
    }
}

impl<C: Contents> Run<C> {
    pub(crate) fn first() -> Self {
        Self { is_first: true, ..Self::default() }
    }

    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn mark_last(&mut self) {
        self.is_last = true;
    }

    pub(crate) fn add(&mut self, entry: Entry<C::File>) {
        self.bytes += entry.tar_bytes();
        self.entries.push(entry);
    }

    /// Everything that determines the run's frames. Attributes, filters and the folder are already reflected in the
    /// entries.
    pub(crate) fn key(&self, selection: &Selection) -> RunKey {
        let mut key = KeyWriter::new("weir run key v1");
        key.field(CODEC.as_bytes());
        // Another version of the library may write other frames, and a body must not depend on when it was built.
        key.field(&zstd::zstd_safe::version_number().to_le_bytes());
        key.field(&FORMAT.to_le_bytes());
        key.field(&[u8::from(selection.gzip), u8::from(self.is_first), u8::from(self.is_last)]);
        for entry in &self.entries {
            key.field(&entry.path);
            match &entry.kind {
                EntryKind::Directory => key.field(b"directory"),
                EntryKind::Symlink { target } => {
                    key.field(b"symlink");
                    key.field(target);
                }
                EntryKind::File { file, size: _, executable } => C::identify(file, *executable, &mut key),
            }
        }
        key.finish()
    }

    /// Whether it is a file of more than `bytes`. Such a file is alone in its run.
    pub(crate) fn is_file_larger_than(&self, bytes: u64) -> bool {
        self.bytes > bytes && matches!(&self.entries[..], [Entry { kind: EntryKind::File { .. }, .. }])
    }

    /// Reads the only file, and passes the tar on in parts.
    pub(crate) fn tar_in_parts(
        self,
        contents: &C,
        interrupt: &AtomicBool,
        take: &mut dyn FnMut(Vec<u8>) -> Result<(), TarballError>,
    ) -> Result<(), TarballError> {
        let mut end = Vec::new();
        for Entry { path, kind } in self.entries {
            let EntryKind::File { file, executable, .. } = kind else { continue };
            let mut begun = None;
            contents.read_in_pieces(&path, &file, &mut |size, piece| {
                if interrupt.load(Ordering::Relaxed) {
                    return Err(TarballError::Interrupted);
                }
                if begun.replace(size).is_none() {
                    let mut header = Vec::new();
                    tar_writer::write_header(&mut header, &path, HeaderKind::File { executable, size });
                    take(header)?;
                }
                take(piece)
            })?;
            tar_writer::pad(&mut end, begun.unwrap_or_default());
        }
        if self.is_last {
            end.extend_from_slice(&tar_writer::END);
        }
        take(end)
    }

    /// Reads the files and writes the tar.
    pub(crate) fn tar(self, contents: &C, interrupt: &AtomicBool) -> Result<Vec<u8>, TarballError> {
        let mut tar = Vec::with_capacity(self.bytes.min(MAX_RUN_BYTES) as usize + tar_writer::END.len());
        let mut buffer = Vec::new();
        for Entry { path, kind } in self.entries {
            if interrupt.load(Ordering::Relaxed) {
                return Err(TarballError::Interrupted);
            }
            match kind {
                EntryKind::Directory => tar_writer::write_header(&mut tar, &path, HeaderKind::Directory),
                EntryKind::Symlink { target } => {
                    tar_writer::write_header(&mut tar, &path, HeaderKind::Symlink { target: &target });
                }
                EntryKind::File { file, executable, .. } => {
                    contents.read(&path, &file, &mut buffer)?;
                    write_file(&mut tar, &path, executable, &mut buffer);
                }
            }
        }
        if self.is_last {
            tar.extend_from_slice(&tar_writer::END);
        }
        Ok(tar)
    }
}

/// Appends a file. A large file is alone in its run; its contents are moved instead of copied, to save memory.
fn write_file(tar: &mut Vec<u8>, path: &[u8], executable: bool, contents: &mut Vec<u8>) {
    let size = contents.len() as u64;
    let is_alone = tar.is_empty() && size > MAX_RUN_BYTES;
    tar_writer::write_header(tar, path, HeaderKind::File { executable, size });
    if is_alone {
        contents.reserve_exact(tar.len() + tar_writer::padding(size) + tar_writer::END.len());
        contents.splice(0..0, std::mem::take(tar));
        *tar = std::mem::take(contents);
    } else {
        tar.extend_from_slice(contents);
    }
    tar_writer::pad(tar, size);
}

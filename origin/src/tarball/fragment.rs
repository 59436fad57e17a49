//! A run of entries, decoded and compressed on its own.
//!
//! A tarball is cut into fragments of a few MiB; each becomes one zstd frame, and frames after one another are a valid
//! stream. Where the cuts fall depends on the entries only ([`super::cut`]), so the blob has the same bytes whatever the
//! number of threads and whatever was built before.

use std::io::Write;
use std::sync::atomic::Ordering;

use gix::Repository;
use weir_shared::descriptor::FORMAT;
use weir_shared::entry_path;
use zstd::bulk::{Compressor, Decompressor};

use super::TarballError;
use super::attributes::LineEnds;
use super::build::Means;
use super::cut::MAX_BYTES;
use super::digests::TarDigests;
use super::earlier::FragmentKey;
use super::folder::read_blob;
use super::header::{self, BLOCK, HeaderKind};
use super::walk::{Entry, EntryContent};
use crate::lfs::Pointer;

/// A level-3 frame has a window of at most 2 MiB, below the 8 MiB that readers must take.
const ZSTD_LEVEL: i32 = 3;

/// What decides the bytes of the blob besides those of the tar; a part of the content key, so change it with the code.
pub(super) const CODEC: &str = "zstd level 3, frames cut by names and sizes, v3";

/// Larger contents keep the buffer that they were decoded into and are not copied; they are a fragment of their own.
const OWN_PART_BYTES: usize = MAX_BYTES as usize;

/// Entries that follow one another, not decoded yet.
#[derive(Debug, Default)]
pub(super) struct Plan {
    entries: Vec<Entry>,
    /// About how many bytes of tar they make.
    bytes: u64,
    /// Whether the tarball ends with them.
    is_last: bool,
}

/// A fragment that is ready to be hashed and written.
#[derive(Debug)]
pub(super) struct Fragment {
    /// What it adds to the tar's digests.
    pub(super) tar: Tar,
    /// How many bytes of tar it holds.
    pub(super) tar_bytes: u64,
    /// The zstd frame of them.
    pub(super) frame: Vec<u8>,
    /// BLAKE3 of the frame.
    pub(super) frame_hash: [u8; 32],
    /// Where the frame is in the earlier blob, if it was taken from there.
    pub(super) earlier: Option<u64>,
}

/// What the digests of a tar go on with after a fragment.
#[derive(Debug)]
pub(super) enum Tar {
    /// Its bytes, in parts.
    Bytes(Vec<Vec<u8>>),
    /// Where they stand after it, known from an earlier tar that is the same up to here.
    Known(TarDigests),
}

impl Plan {
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

    /// What decides the fragment's bytes. Everything that stands above it (attributes, filters, the folder) has left its
    /// mark in the entries already.
    pub(super) fn key(&self) -> FragmentKey {
        let mut key = blake3::Hasher::new_derive_key("weir fragment key v1");
        let mut field = |bytes: &[u8]| {
            key.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        field(CODEC.as_bytes());
        // Another version of the library may write other frames, and a blob's bytes must not depend on its history.
        field(&zstd::zstd_safe::version_number().to_le_bytes());
        field(&FORMAT.to_le_bytes());
        field(&[u8::from(self.is_last)]);
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

    /// Decodes the contents, writes the tar and compresses it.
    pub(super) fn build(
        self,
        repo: &Repository,
        compressor: &mut Compressor<'_>,
        means: &Means<'_>,
    ) -> Result<Fragment, TarballError> {
        let mut tar = vec![Vec::with_capacity(self.bytes.min(MAX_BYTES) as usize + header::END.len())];
        let mut contents = Vec::new();
        for entry in self.entries {
            if means.interrupt.load(Ordering::Relaxed) {
                return Err(TarballError::Interrupted);
            }
            let last = tar.last_mut().expect("there is always a part");
            match entry.kind {
                EntryContent::Directory => header::write_header(last, &entry.path, HeaderKind::Directory),
                EntryContent::Symlink { target } => {
                    header::write_header(last, &entry.path, HeaderKind::Symlink { target: &target });
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
                    let read = means.lfs.ok_or(std::io::ErrorKind::NotFound.into());
                    read.and_then(|objects| objects.read(&pointer, &mut contents)).map_err(|error| {
                        let path = entry_path::percent_encode(&entry.path);
                        TarballError::Lfs { path, cause: error.to_string() }
                    })?;
                    write_file(&mut tar, &entry.path, executable, &mut contents);
                }
            }
        }
        if self.is_last {
            tar.last_mut().expect("there is always a part").extend_from_slice(&header::END);
        }
        let frame = compress(compressor, &tar).map_err(TarballError::Write)?;
        let frame_hash = *blake3::hash(&frame).as_bytes();
        let tar_bytes = tar.iter().map(|part| part.len() as u64).sum();
        Ok(Fragment { tar: Tar::Bytes(tar), tar_bytes, frame, frame_hash, earlier: None })
    }
}

/// Appends a file. Large contents are moved out of the buffer and not copied.
fn write_file(tar: &mut Vec<Vec<u8>>, path: &[u8], executable: bool, contents: &mut Vec<u8>) {
    let last = tar.last_mut().expect("there is always a part");
    let size = contents.len() as u64;
    header::write_header(last, path, HeaderKind::File { executable, size });
    if contents.len() <= OWN_PART_BYTES {
        last.extend_from_slice(contents);
        header::pad(last, size);
    } else {
        tar.push(std::mem::take(contents));
        tar.push(vec![0; header::padding(size)]);
    }
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

/// What a thread makes fragments with. It is worth keeping: its tables take some megabytes.
pub(super) struct Tools {
    pub(super) compressor: Compressor<'static>,
    pub(super) decompressor: Decompressor<'static>,
}

impl Tools {
    pub(super) fn new() -> Self {
        let compressor = Compressor::new(ZSTD_LEVEL).expect("the level is one of the library's");
        Self { compressor, decompressor: Decompressor::default() }
    }
}

fn compress(compressor: &mut Compressor<'_>, parts: &[Vec<u8>]) -> std::io::Result<Vec<u8>> {
    // In one piece, which is not copied through a stream's window.
    if let [part] = parts {
        let mut frame = Vec::with_capacity(zstd::zstd_safe::compress_bound(part.len()));
        compressor.compress_to_buffer(part, &mut frame)?;
        return Ok(frame);
    }
    let size: usize = parts.iter().map(Vec::len).sum();
    let mut encoder = zstd::stream::write::Encoder::new(Vec::with_capacity(size / 3 + 1024), ZSTD_LEVEL)?;
    encoder.set_pledged_src_size(Some(size as u64))?;
    encoder.include_contentsize(true)?;
    encoder.include_checksum(false)?;
    for part in parts {
        encoder.write_all(part)?;
    }
    encoder.finish()
}

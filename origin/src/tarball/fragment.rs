//! A run of entries, decoded and compressed on its own.
//!
//! A tarball is cut into fragments of about [`FRAGMENT_BYTES`]; each becomes one zstd frame, and frames after one another
//! are a valid stream. Where the cuts fall depends on the contents only, so the blob has the same bytes whatever the
//! number of threads.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use gix::Repository;

use super::TarballError;
use super::folder::read_blob;
use super::header::{self, BLOCK, HeaderKind};
use super::walk::{Entry, EntryContent};

/// A fragment is cut before the entry that would bring it over this many bytes of tar.
pub(super) const FRAGMENT_BYTES: u64 = 4 << 20;

/// A level-3 frame has a window of at most 2 MiB, below the 8 MiB that readers must take.
const ZSTD_LEVEL: i32 = 3;

/// What decides the bytes of the blob besides those of the tar; a part of the content key, so change it with the code.
pub(super) const CODEC: &str = "zstd level 3, frames of 4 MiB, v1";

/// Contents from this size on keep the buffer that they were decoded into and are not copied.
const OWN_PART_BYTES: usize = 1 << 20;

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
    /// The bytes of tar, in parts.
    pub(super) tar: Vec<Vec<u8>>,
    /// The zstd frame of them.
    pub(super) frame: Vec<u8>,
}

impl Plan {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn mark_last(&mut self) {
        self.is_last = true;
    }

    /// Adds an entry, or returns the finished plan that stands before it.
    pub(super) fn add(&mut self, entry: Entry) -> Option<Plan> {
        let bytes = tar_bytes(&entry);
        let full = self.bytes > 0 && self.bytes + bytes > FRAGMENT_BYTES;
        let finished = full.then(|| std::mem::take(self));
        self.entries.push(entry);
        self.bytes += bytes;
        finished
    }

    /// Decodes the contents, writes the tar and compresses it.
    pub(super) fn build(self, repo: &Repository, interrupt: &AtomicBool) -> Result<Fragment, TarballError> {
        let mut tar = vec![Vec::with_capacity(self.bytes.min(FRAGMENT_BYTES + header::END.len() as u64) as usize)];
        let mut contents = Vec::new();
        for entry in self.entries {
            if interrupt.load(Ordering::Relaxed) {
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
                    let size = contents.len() as u64;
                    header::write_header(last, &entry.path, HeaderKind::File { executable, size });
                    if contents.len() < OWN_PART_BYTES {
                        last.extend_from_slice(&contents);
                        header::pad(last, size);
                    } else {
                        tar.push(std::mem::take(&mut contents));
                        tar.push(vec![0; header::padding(size)]);
                    }
                }
            }
        }
        if self.is_last {
            tar.last_mut().expect("there is always a part").extend_from_slice(&header::END);
        }
        let frame = compress(&tar).map_err(TarballError::Write)?;
        Ok(Fragment { tar, frame })
    }
}

/// About how many bytes of tar an entry makes: exact but for long names and changed line ends.
fn tar_bytes(entry: &Entry) -> u64 {
    let contents = match &entry.kind {
        EntryContent::File { size, .. } => size + header::padding(*size) as u64,
        EntryContent::Symlink { target } => target.len() as u64,
        EntryContent::Directory => 0,
    };
    BLOCK as u64 + entry.path.len() as u64 + contents
}

fn compress(parts: &[Vec<u8>]) -> std::io::Result<Vec<u8>> {
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

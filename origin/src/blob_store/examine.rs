//! Looking at what is in the store without changing anything.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use weir_shared::digest::BlobDigest;
use weir_shared::piece::PieceList;

use super::fragments::MAX_INDEX_BYTES;
use super::stored::Named;
use super::sweep::{Kind, read_name};
use super::{BlobStore, TEMPORARY, hash, is_lost, is_wrong};
use crate::tarball::FragmentIndex;

/// What is in the store, by name.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// Blobs, and their bytes.
    pub(crate) blobs: Vec<(BlobDigest, u64)>,
    /// Files that stand beside a blob that is not there, were being written or removed when a process ended, or are another
    /// form of a blob that is there.
    pub(crate) left_over: Vec<PathBuf>,
    /// What is none of ours.
    pub(crate) foreign: Vec<PathBuf>,
}

/// What a blob's files are like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Examined {
    /// Its bytes.
    pub(crate) size: u64,
    pub(crate) bytes: Bytes,
    /// There is a piece list beside it, and it is not that of the blob.
    pub(crate) has_wrong_pieces: bool,
    /// There is a list of fragments beside it, and it is not what was written.
    pub(crate) has_wrong_fragments: bool,
}

impl Examined {
    /// A blob of so many bytes, as far as is known.
    pub(crate) fn unreadable(size: u64, cause: &io::Error) -> Self {
        let bytes = Bytes::Unreadable(cause.to_string());
        Self { size, bytes, has_wrong_pieces: false, has_wrong_fragments: false }
    }
}

/// What a blob's bytes are like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// Those of the digest.
    Sound,
    /// Others, or the disk cannot read them back.
    Damaged,
    /// They cannot be read just now: why.
    Unreadable(String),
}

impl BlobStore {
    /// The store as it is: what a killed process left stays.
    pub(crate) fn untouched(root: &Path) -> Self {
        Self { root: root.to_owned(), names: Mutex::new(()), unnamed: AtomicU64::new(0) }
    }

    /// All that is in the store.
    pub(crate) fn list(&self) -> io::Result<Listed> {
        let mut listed = Listed::default();
        for path in entries(&self.root)? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name == TEMPORARY {
                listed.left_over.extend(entries(&path)?);
            } else if let Some(folder) = folder(name) {
                self.list_folder(folder, &path, &mut listed)?;
            } else {
                listed.foreign.push(path);
            }
        }
        Ok(listed)
    }

    fn list_folder(&self, folder: u8, path: &Path, listed: &mut Listed) -> io::Result<()> {
        for file in entries(path)? {
            let name = file.file_name().and_then(|name| name.to_str()).and_then(read_name);
            match name.filter(|(digest, _)| digest.as_bytes()[0] == folder) {
                Some((digest, Kind::Parts)) if self.path(&digest).exists() => listed.left_over.push(file),
                Some((digest, Kind::Blob | Kind::Parts)) => {
                    listed.blobs.push((digest, self.size(&digest).unwrap_or_default()));
                }
                Some((digest, Kind::Beside)) if !self.has_name(&digest) => listed.left_over.push(file),
                Some((_, Kind::Beside)) => {}
                None => listed.foreign.push(file),
            }
        }
        Ok(())
    }

    /// Reads all bytes of a blob, and of what stands beside it. `None`: it is not there.
    pub(crate) fn examine(&self, digest: &BlobDigest) -> io::Result<Option<Examined>> {
        let (size, bytes) = match self.look_up(digest)? {
            Named::Nothing => return Ok(None),
            Named::NoBlob(_) => (0, Bytes::Damaged),
            Named::Blob(blob) => {
                let bytes = match hash(&blob) {
                    Ok(found) if found.digest == *digest => Bytes::Sound,
                    Ok(_) => Bytes::Damaged,
                    Err(error) if is_wrong(&error) => Bytes::Damaged,
                    Err(error) => Bytes::Unreadable(error.to_string()),
                };
                (blob.size(), bytes)
            }
        };
        let pieces = read_beside(&self.pieces_path(digest), PieceList::length(size))?;
        let fragments = read_beside(&self.fragments_path(digest), MAX_INDEX_BYTES)?;
        Ok(Some(Examined {
            size,
            bytes,
            has_wrong_pieces: pieces.is_some_and(|list| PieceList::parse(digest, size, &list).is_err()),
            has_wrong_fragments: fragments.is_some_and(|index| FragmentIndex::parse(digest, &index).is_none()),
        }))
    }
}

/// The folder of blobs of that name.
fn folder(name: &str) -> Option<u8> {
    let number = u8::from_str_radix(name, 16).ok()?;
    (format!("{number:02x}") == name).then_some(number)
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        // A file where a folder should be holds nothing.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// A file that stands beside a blob, if it is there; what cannot be read back is as good as other bytes.
fn read_beside(path: &Path, longest: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    // What is longer than it should be is wrong, however long it is.
    match File::open(path).and_then(|file| file.take(longest + 1).read_to_end(&mut bytes)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if !is_lost(&error) => Err(error),
        _ => Ok(Some(bytes)),
    }
}

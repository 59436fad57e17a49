//! The bytes of a blob that is in the store: `blobs/ab/<64 hex>`, a file of its own, or `blobs/ab/<64 hex>.parts/`, a folder
//! with its [`Layout`] and the files it lies in, `0` to `7`, each of which other blobs may link to as well.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use weir_shared::digest::BlobDigest;

use super::layout::{Extent, Layout, MAX_PARTS};
use super::{BlobError, BlobStore, is_lost};

/// What follows the digest in the name of a blob's folder.
pub(super) const SUFFIX: &str = ".parts";

/// The name of the layout in a blob's folder.
pub(super) const LAYOUT: &str = "layout";

/// Descriptors that an open blob takes at the most: its files, and its folder.
pub(crate) const MAX_DESCRIPTORS: usize = MAX_PARTS + 1;

/// A longer layout is not read: 20 bytes for each run, and at most one run for each 2 MiB of tar.
const MAX_LAYOUT_BYTES: u64 = 4 << 20;

/// A blob's bytes; they stay readable whatever happens to its name. Nothing is verified.
#[derive(Debug)]
pub struct StoredBlob {
    layout: Layout,
    parts: Vec<Part>,
    /// Its folder, when it has one. It is held so that no other file gets its inode meanwhile.
    folder: Option<File>,
}

/// What has a blob's name.
#[derive(Debug)]
pub(super) enum Named {
    Nothing,
    /// A folder that lacks a file, or whose layout is wrong; it is open.
    NoBlob(File),
    /// Its bytes may be wrong.
    Blob(StoredBlob),
}

/// One of the files that a blob's bytes lie in.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) file: File,
    pub(super) path: PathBuf,
}

impl StoredBlob {
    /// A blob that is a file and has no name in a store.
    ///
    /// # Errors
    /// The file's length cannot be found out.
    pub fn whole(file: File) -> io::Result<Self> {
        Self::in_file(file, PathBuf::new())
    }

    fn in_file(file: File, path: PathBuf) -> io::Result<Self> {
        let layout = Layout::whole(file.metadata()?.len());
        Ok(Self { layout, parts: vec![Part { file, path }], folder: None })
    }

    /// Bytes of the blob.
    pub(crate) fn size(&self) -> u64 {
        self.layout.size()
    }

    /// Fills the buffer with what is at an offset.
    ///
    /// # Errors
    /// What the files give; [`io::ErrorKind::UnexpectedEof`] beyond the blob's end, and where a file is shorter than it was.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut rest = buffer;
        for extent in self.layout.locate(offset..offset.saturating_add(rest.len() as u64)) {
            let (now, later) = rest.split_at_mut(extent.length as usize);
            self.part(extent)?.file.read_exact_at(now, extent.offset)?;
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Reads it from the front.
    pub(crate) fn reader(&self) -> impl Read + use<'_> {
        Reader { blob: self, at: 0 }
    }

    /// Files and folders that it holds open.
    pub(crate) fn descriptors(&self) -> usize {
        self.parts.len() + usize::from(self.folder.is_some())
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// What its name stands for, if it is still the same.
    fn named(&self) -> Option<&File> {
        self.folder.as_ref().or_else(|| self.parts.first().map(|part| &part.file))
    }

    fn part(&self, extent: Extent) -> io::Result<&Part> {
        self.parts.get(extent.part as usize).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

struct Reader<'a> {
    blob: &'a StoredBlob,
    at: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let end = self.at.saturating_add(buffer.len() as u64);
        let Some(extent) = self.blob.layout.locate(self.at..end).next() else { return Ok(0) };
        let read = self.blob.part(extent)?.file.read_at(&mut buffer[..extent.length as usize], extent.offset)?;
        if read == 0 && extent.length > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += read as u64;
        Ok(read)
    }
}

impl BlobStore {
    pub(super) fn parts_path(&self, digest: &BlobDigest) -> PathBuf {
        let mut path = self.path(digest).into_os_string();
        path.push(SUFFIX);
        path.into()
    }

    /// Whether anything has the blob's name.
    pub(super) fn has_name(&self, digest: &BlobDigest) -> bool {
        self.path(digest).exists() || self.parts_path(digest).exists()
    }

    /// Opens a blob. What has its name and cannot be one is removed.
    pub(super) fn open_stored(&self, digest: &BlobDigest) -> Result<StoredBlob, BlobError> {
        if let Named::Blob(blob) = self.look_up(digest)? {
            return Ok(blob);
        }
        // One may be taking the place of another just now. With the lock held each name stands for something whole.
        let names = self.names();
        let named = self.look_up(digest)?;
        drop(names);
        match named {
            Named::Nothing => Err(BlobError::Missing),
            Named::NoBlob(opened) => Err(self.discard(digest, &opened)),
            Named::Blob(blob) => Ok(blob),
        }
    }

    /// What has a blob's name, which stays as it is.
    pub(super) fn look_up(&self, digest: &BlobDigest) -> io::Result<Named> {
        let path = self.path(digest);
        if let Some(file) = found(File::open(&path))? {
            return Ok(Named::Blob(StoredBlob::in_file(file, path)?));
        }
        let path = self.parts_path(digest);
        let Some(folder) = found(File::open(&path))? else { return Ok(Named::Nothing) };
        // All that follows is of this folder, whatever has its name by then.
        let Some(layout) = read_layout(&folder, digest)? else { return Ok(Named::NoBlob(folder)) };
        let mut parts = Vec::with_capacity(layout.parts());
        for number in 0..layout.parts() {
            let number = number.to_string();
            let Some(file) = open_in(&folder, &number)? else { return Ok(Named::NoBlob(folder)) };
            parts.push(Part { file, path: path.join(number) });
        }
        Ok(Named::Blob(StoredBlob { layout, parts, folder: Some(folder) }))
    }

    /// The length of a blob. Its bytes are not looked at; but one of which a file is gone or was cut is not there.
    pub(crate) fn size(&self, digest: &BlobDigest) -> Result<u64, BlobError> {
        if let Some(size) = self.look_up_size(digest)? {
            return Ok(size);
        }
        let _names = self.names();
        self.look_up_size(digest)?.ok_or(BlobError::Missing)
    }

    fn look_up_size(&self, digest: &BlobDigest) -> io::Result<Option<u64>> {
        if let Some(metadata) = found(fs::metadata(self.path(digest)))? {
            return Ok(Some(metadata.len()));
        }
        let Some(folder) = found(File::open(self.parts_path(digest)))? else { return Ok(None) };
        let Some(layout) = read_layout(&folder, digest)? else { return Ok(None) };
        Ok(has_all(&folder, &layout)?.then(|| layout.size()))
    }

    /// Removes a blob whose bytes are wrong, unless something else has its name by now.
    pub(super) fn discard_stored(&self, digest: &BlobDigest, blob: &StoredBlob) -> BlobError {
        blob.named().map_or(BlobError::Corrupt, |opened| self.discard(digest, opened))
    }

    fn discard(&self, digest: &BlobDigest, opened: &File) -> BlobError {
        // Another request may have found it first, and a good one may stand there by now.
        let is_named = |path: &Path| found(is_same_file(opened, path)).map(Option::unwrap_or_default);
        let (path, folder) = (self.path(digest), self.parts_path(digest));
        let names = self.names();
        let unnamed = is_named(&path).and_then(|is_file| match is_file {
            true => fs::remove_file(&path).map(|()| None),
            false if is_named(&folder)? => self.unname(&folder),
            false => Ok(None),
        });
        drop(names);
        unnamed.and_then(|unnamed| delete(unnamed.as_deref())).map_or_else(BlobError::from, |()| BlobError::Corrupt)
    }

    /// Takes a folder its name, so that what is left of it is nothing but a leftover: where it is now, if there was one. It
    /// needs no room on the disk. With the lock held.
    pub(super) fn unname(&self, folder: &Path) -> io::Result<Option<PathBuf>> {
        let aside = self.aside();
        Ok(found(fs::rename(folder, &aside))?.map(|()| aside))
    }
}

/// Deletes what has no name any more.
pub(super) fn delete(unnamed: Option<&Path>) -> io::Result<()> {
    unnamed.map_or(Ok(()), |path| if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) })
}

/// `None`: there is no such thing.
pub(super) fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// A file in a folder, if there is one.
fn open_in(folder: &File, name: &str) -> io::Result<Option<File>> {
    match openat(folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        // The folder is none, or holds something else of that name.
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        opened => Ok(Some(opened?.into())),
    }
}

/// Whether each file of a blob's folder is as long as its layout says.
fn has_all(folder: &File, layout: &Layout) -> io::Result<bool> {
    for (number, end) in layout.ends().into_iter().enumerate() {
        let length = match statat(folder, number.to_string(), AtFlags::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            found => u64::try_from(found?.st_size).unwrap_or_default(),
        };
        if length < end {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The layout in a blob's folder; `None` when it is not there or wrong.
fn read_layout(folder: &File, digest: &BlobDigest) -> io::Result<Option<Layout>> {
    let Some(file) = open_in(folder, LAYOUT)? else { return Ok(None) };
    let mut bytes = Vec::new();
    match file.take(MAX_LAYOUT_BYTES + 1).read_to_end(&mut bytes) {
        Err(error) if !is_lost(&error) => Err(error),
        Err(_) => Ok(None),
        Ok(_) => Ok(Layout::parse(digest, &bytes)),
    }
}

/// Whether a path stands for an open file.
pub(super) fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    Ok(identity(&file.metadata()?) == identity(&fs::symlink_metadata(path)?))
}

/// A device and an inode.
fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

//! The spools of a repository. They are lost with the process: what is published needs none.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use tempfile::{NamedTempFile, TempPath};
use weir_protocol::digest::Sha256;
use weir_tarball::FolderPath;
use weir_upstream::{remove_siblings, without_path};

use super::bounds::Bounds;
use super::contents::{self, ArchiveTree};
use super::error::ArchiveError;
use super::index::{EntryKind, Index, SpooledFile};
use super::layout::Layout;
use super::unpack::unpack;
use super::whole::Original;

/// An unpacked archive: the contents of its files, and then its index. The file is removed with the last reference.
#[derive(Debug)]
pub(crate) struct Spool {
    path: TempPath,
    index: SpooledFile,
    /// The archive itself.
    pub(crate) original: Original,
    room: Room,
}

impl Spool {
    /// Opens a folder of the archive for a build.
    pub(crate) fn open<'a>(&self, folder: &'a FolderPath) -> io::Result<ArchiveTree<'a>> {
        let (spool, mut bytes) = (File::open(&self.path)?, Vec::new());
        contents::read_at(&spool, &self.index, &mut bytes)?;
        let index = Index::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok(ArchiveTree { spool: Arc::new(spool), index: Arc::new(index), folder })
    }

    /// A file of the archive, if it is there and has at most so many bytes.
    pub(crate) fn file(&self, path: &[u8], max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        let root = FolderPath::default();
        let (tree, mut bytes) = (self.open(&root)?, Vec::new());
        match tree.index.get(path) {
            Some(EntryKind::File { file, .. }) if file.size <= max_bytes => {
                contents::read_at(&tree.spool, file, &mut bytes)?;
                Ok(Some(bytes))
            }
            _ => Ok(None),
        }
    }
}

/// An archive's bytes, and how they become a folder.
type Key = (Sha256, Layout);

/// The spools of a repository. All methods that take an archive block.
pub(crate) struct SpoolStore {
    directory: PathBuf,
    emptied: Once,
    spools: Mutex<HashMap<Key, Arc<Spool>>>,
    /// The bytes of all spools on the disk, also of those that only a build uses.
    stored: Arc<AtomicU64>,
}

impl SpoolStore {
    /// The store in a directory. Before its first use, that is emptied: no spool is used after the end of its process.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, emptied: Once::new(), spools: Mutex::default(), stored: Arc::default() }
    }

    /// The directory, which exists.
    pub(crate) fn directory(&self) -> io::Result<&Path> {
        self.emptied.call_once(|| {
            if let Err(error) = remove(&self.directory) {
                let path = self.directory.display();
                tracing::warn!(%path, %error, "unpacked archives of an earlier run cannot be removed");
            }
        });
        fs::create_dir_all(&self.directory).map(|()| &*self.directory)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Spool>> {
        self.spools().get(key).cloned()
    }

    /// A file for a download. It has no name, so that it is removed with the process.
    pub(crate) fn temporary(&self) -> io::Result<File> {
        tempfile::tempfile_in(self.directory()?)
    }

    /// Unpacks an archive, whose bytes have this SHA-256.
    pub(crate) fn add(
        &self,
        key: Key,
        archive: impl Read,
        bounds: &Bounds,
        stop: &AtomicBool,
    ) -> Result<Arc<Spool>, ArchiveError> {
        self.add_with(key, archive, bounds, stop, |_| Ok(Original::Dropped))
    }

    /// The same. `original`: what becomes of the bytes, once they are unpacked.
    pub(crate) fn add_with(
        &self,
        key: Key,
        archive: impl Read,
        bounds: &Bounds,
        stop: &AtomicBool,
        original: impl FnOnce(&Spool) -> io::Result<Original>,
    ) -> Result<Arc<Spool>, ArchiveError> {
        let file = self.directory().and_then(NamedTempFile::new_in);
        let file = file.map_err(|error| ArchiveError::Disk(without_path(&error)))?;
        let file = BufWriter::with_capacity(256 << 10, file);
        let room = Room { stored: self.stored.clone(), bytes: 0, limit: bounds.max_spools };
        let mut out = Quota { file, room };
        let index = unpack(archive, &key.1, bounds, stop, &mut out)?.encode();
        let (offset, size, digest) = (out.room.bytes, index.len() as u64, *blake3::hash(&index).as_bytes());
        out.write_all(&index)?;
        let file = out.file.into_inner().map_err(|error| ArchiveError::Disk(without_path(error.error())))?;
        let index = SpooledFile { offset, size, digest };
        let mut spool = Spool { path: file.into_temp_path(), index, original: Original::Dropped, room: out.room };
        spool.original = original(&spool).map_err(|error| ArchiveError::Disk(without_path(&error)))?;
        if let Original::Stored(named, whole) = &spool.original {
            let (named, size) = (*named, whole.size());
            // Without room for both the files come first.
            if spool.room.take(size).is_err() {
                spool.room.give(size);
                tracing::warn!("no room is left for the archive besides its files: it is published as files only");
                spool.original = Original::Unfit(named);
            }
        }
        let spool = Arc::new(spool);
        self.spools().insert(key, spool.clone());
        Ok(spool)
    }

    /// Removes the spools that nothing follows any more, and returns them: their files go with the last reference. Running
    /// builds keep theirs.
    pub(crate) fn retain(&self, is_needed: impl Fn(&Key) -> bool) -> Vec<Arc<Spool>> {
        self.spools().extract_if(|key, _| !is_needed(key)).map(|(_, spool)| spool).collect()
    }

    pub(crate) fn remove(&self, key: &Key) -> Option<Arc<Spool>> {
        self.spools().remove(key)
    }

    /// The bytes of all spools on the disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// Removes the spools of the same repository at other URLs.
    pub(crate) fn remove_siblings(&self) {
        if remove_siblings(&self.directory, &["artifacts"]) > 0 {
            tracing::info!("removed unpacked archives of a former URL");
        }
    }

    /// Removes all spools, and the folder of the repository. Nothing may use them any more.
    pub(crate) fn remove_all(&self) {
        drop(self.retain(|_| false));
        let Some(folder) = self.directory.parent() else { return };
        if let Err(error) = remove(folder) {
            tracing::warn!(path = %folder.display(), %error, "the archives of a deleted repository cannot be removed");
        }
    }

    fn spools(&self) -> MutexGuard<'_, HashMap<Key, Arc<Spool>>> {
        self.spools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The bytes of a spool, as a part of those of all. It is given back with the spool.
#[derive(Debug)]
struct Room {
    stored: Arc<AtomicU64>,
    bytes: u64,
    limit: u64,
}

impl Room {
    fn take(&mut self, bytes: u64) -> Result<(), ArchiveError> {
        self.bytes += bytes;
        let stored = self.stored.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if stored > self.limit { Err(ArchiveError::SpoolsTooLarge(self.limit)) } else { Ok(()) }
    }

    fn give(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.stored.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.stored.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Writes a spool within the bound of all spools.
struct Quota<W> {
    file: W,
    room: Room,
}

impl<W: Write> Write for Quota<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.room.take(buffer.len() as u64)?;
        self.file.write_all(buffer).map_err(|error| ArchiveError::Disk(without_path(&error)))?;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

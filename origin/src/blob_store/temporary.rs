//! A blob that is being written.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::{NamedTempFile, TempDir};
use weir_shared::digest::BlobDigest;
use weir_shared::piece::{PieceHasher, PieceList};

use super::shared_parts::SharedParts;
use super::stored::{delete, found};
use super::{BlobStore, StoredBlob, TEMPORARY};
pub(super) use crate::data_dir::without_path;
use crate::failpoint::failpoint;
use crate::tarball::BlobSink;

const WRITE_BUFFER_BYTES: usize = 256 << 10;

/// A blob that is being written. Dropped without [`TemporaryBlob::finish`], it leaves nothing.
#[derive(Debug)]
pub struct TemporaryBlob<'a> {
    store: &'a BlobStore,
    /// What no other blob has.
    own: BufWriter<NamedTempFile>,
    own_bytes: u64,
    /// What an earlier blob has.
    shared: Option<SharedParts>,
    hasher: PieceHasher,
    /// What all bytes came to, once no more come.
    ended: Option<(BlobDigest, Option<PieceList>)>,
}

impl BlobStore {
    /// A place to write a blob whose digest is not known yet.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn temporary(&self) -> io::Result<TemporaryBlob<'_>> {
        let folder = self.root.join(TEMPORARY);
        fs::create_dir_all(&folder)?;
        let file = NamedTempFile::new_in(folder).map_err(|error| without_path(&error))?;
        let own = BufWriter::with_capacity(WRITE_BUFFER_BYTES, file);
        Ok(TemporaryBlob { store: self, own, own_bytes: 0, shared: None, hasher: PieceHasher::new(), ended: None })
    }

    /// The same for a blob that may have much in common with an earlier one: [`BlobSink::append_earlier`] stores nothing
    /// twice that is worth sharing.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn temporary_after(&self, earlier: &StoredBlob) -> io::Result<TemporaryBlob<'_>> {
        let temporary = self.temporary()?;
        let shared = SharedParts::of(earlier, &self.root.join(TEMPORARY))?;
        Ok(TemporaryBlob { shared, ..temporary })
    }
}

/// A blob whose bytes are on the disk, and which has no name yet. Dropped without [`WrittenBlob::keep`], it leaves nothing.
#[derive(Debug)]
pub struct WrittenBlob<'a> {
    store: &'a BlobStore,
    digest: BlobDigest,
    form: Form,
    list: Option<PieceList>,
}

#[derive(Debug)]
enum Form {
    Whole(NamedTempFile),
    /// A folder of files, most of which are links to those of other blobs.
    Parts(TempDir),
}

impl<'a> TemporaryBlob<'a> {
    /// Ends the writing: its bytes are on the disk when this returns, which may take a while. `digest` is the digest of what
    /// was written.
    ///
    /// # Errors
    /// It cannot be written, or `digest` is another one. Nothing is left of it then.
    pub fn finish(mut self, digest: &BlobDigest) -> io::Result<WrittenBlob<'a>> {
        let hasher = std::mem::take(&mut self.hasher);
        let (written, list) = self.ended.take().unwrap_or_else(|| hasher.finish());
        if written != *digest {
            return Err(io::Error::other("other bytes were written than those that were hashed"));
        }
        failpoint!("the blob is written");
        let (store, shared) = (self.store, self.shared.take().filter(SharedParts::is_used));
        let form = match shared {
            Some(shared) => Form::Parts(self.parts(shared, digest)?),
            None => Form::Whole(self.on_disk()?),
        };
        Ok(WrittenBlob { store, digest: *digest, form, list })
    }

    /// Both at once: [`TemporaryBlob::finish`], and [`WrittenBlob::keep`].
    ///
    /// # Errors
    /// As of the two.
    pub fn keep(self, digest: &BlobDigest) -> io::Result<()> {
        self.finish(digest)?.keep()
    }

    fn parts(self, shared: SharedParts, digest: &BlobDigest) -> io::Result<TempDir> {
        let own = self.own.into_inner().map_err(|error| without_path(error.error()))?;
        let parts = shared.finish(own, digest)?;
        sync_folder(parts.path())?;
        failpoint!("the shared blob's files are on the disk");
        Ok(parts)
    }

    /// Keeps what stands beside a blob.
    pub(super) fn keep_as(self, path: &Path) -> io::Result<()> {
        let folder = self.store.folder_of(path)?;
        let file = self.on_disk()?;
        file.persist(path).map_err(|error| without_path(&error.error))?;
        sync_folder(folder)
    }

    /// Its own bytes.
    fn on_disk(self) -> io::Result<NamedTempFile> {
        let file = self.own.into_inner().map_err(|error| without_path(error.error()))?;
        file.as_file().sync_all()?;
        failpoint!("the blob's bytes are on the disk");
        Ok(file)
    }
}

impl WrittenBlob<'_> {
    /// Gives the blob its name; when this returns, the name is on the disk as well. Its piece list is kept with it.
    ///
    /// # Errors
    /// The name cannot be written.
    pub fn keep(self) -> io::Result<()> {
        let Self { store, digest, form, list } = self;
        match form {
            Form::Parts(parts) => store.name_parts(&parts, &digest)?,
            Form::Whole(file) => store.name_whole(file, &digest)?,
        }
        failpoint!("the blob has its name on the disk");
        if let Some(list) = list {
            store.keep_pieces(&digest, &list);
        }
        Ok(())
    }
}

impl Write for TemporaryBlob<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.ended.is_some() {
            return Err(io::Error::other("the blob has ended"));
        }
        let written = self.own.write(bytes).map_err(|error| without_path(&error))?;
        self.hasher.update(&bytes[..written]);
        if let Some(shared) = &mut self.shared {
            shared.append_own(self.own_bytes, written as u64);
        }
        self.own_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.own.flush()
    }
}

impl BlobSink for TemporaryBlob<'_> {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn append_earlier(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let runs = self.shared.as_ref().map(|shared| shared.locate(offset, bytes.len() as u64)).unwrap_or_default();
        let mut rest = bytes;
        for run in runs {
            let (now, later) = rest.split_at(run.length as usize);
            if self.shared.as_mut().is_some_and(|shared| shared.append(run)) {
                self.hasher.update(now);
            } else {
                self.append(now)?;
            }
            rest = later;
        }
        self.append(rest)
    }

    fn end(&mut self) -> BlobDigest {
        let (digest, list) = std::mem::take(&mut self.hasher).finish();
        self.ended = Some((digest, list));
        digest
    }
}

impl BlobStore {
    fn name_parts(&self, parts: &TempDir, digest: &BlobDigest) -> io::Result<()> {
        let path = self.parts_path(digest);
        let folder = self.folder_of(&path)?;
        let names = self.names();
        let replaced = match renameat_with(CWD, parts.path(), CWD, &path, RenameFlags::EXCHANGE) {
            Ok(()) => None,
            // Nothing has the name; or the file system cannot exchange names, and a kill between the two leaves nothing of
            // that name: it is built again then, as any blob that is gone.
            Err(_) => {
                let replaced = self.unname(&path)?;
                fs::rename(parts.path(), &path)?;
                replaced
            }
        };
        // Either form of a blob takes the place of the other.
        found(fs::remove_file(self.path(digest)))?;
        drop(names);
        failpoint!("the shared blob has its name");
        sync_folder(folder)?;
        delete(replaced.as_deref())
    }

    fn name_whole(&self, file: NamedTempFile, digest: &BlobDigest) -> io::Result<()> {
        let path = self.path(digest);
        let folder = self.folder_of(&path)?;
        let names = self.names();
        file.persist(&path).map_err(|error| without_path(&error.error))?;
        let replaced = self.unname(&self.parts_path(digest))?;
        drop(names);
        failpoint!("the blob has its name");
        sync_folder(folder)?;
        delete(replaced.as_deref())
    }

    /// The folder of a blob's path, on the disk.
    fn folder_of<'p>(&self, path: &'p Path) -> io::Result<&'p Path> {
        let folder = path.parent().expect("a blob's path has a folder");
        // The folder may have been made just now by another thread, or by a process that was killed before it got to
        // this; a folder that is on the disk already costs next to nothing here.
        fs::create_dir_all(folder)?;
        sync_folder(&self.root)?;
        failpoint!("the blob's folder is on the disk");
        Ok(folder)
    }
}

/// A rename is durable once its folder is.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

//! A blob that is being written.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use tempfile::NamedTempFile;
use weir_shared::digest::BlobDigest;
use weir_shared::piece::PieceHasher;

use super::{BlobStore, TEMPORARY};
use crate::failpoint::failpoint;

const WRITE_BUFFER_BYTES: usize = 256 << 10;

/// A blob that is being written. Dropped without [`TemporaryBlob::keep`], it leaves nothing.
#[derive(Debug)]
pub(crate) struct TemporaryBlob<'a> {
    store: &'a BlobStore,
    file: BufWriter<NamedTempFile>,
    hasher: PieceHasher,
}

impl BlobStore {
    /// A place to write a blob whose digest is not known yet.
    pub(crate) fn temporary(&self) -> io::Result<TemporaryBlob<'_>> {
        let folder = self.root.join(TEMPORARY);
        fs::create_dir_all(&folder)?;
        let file = NamedTempFile::new_in(folder).map_err(|error| without_path(&error))?;
        let file = BufWriter::with_capacity(WRITE_BUFFER_BYTES, file);
        Ok(TemporaryBlob { store: self, file, hasher: PieceHasher::new() })
    }
}

impl TemporaryBlob<'_> {
    /// Gives the blob its name, after its bytes are on the disk; when this returns, the name is as well. Its piece list
    /// is kept with it. `digest` is the digest of what was written.
    pub(crate) fn keep(mut self, digest: &BlobDigest) -> io::Result<()> {
        let (store, path) = (self.store, self.store.path(digest));
        let (written, list) = std::mem::take(&mut self.hasher).finish();
        if written != *digest {
            return Err(io::Error::other("other bytes were written than those that were hashed"));
        }
        failpoint!("the blob is written");
        self.keep_as(&path)?;
        failpoint!("the blob has its name on the disk");
        if let Some(list) = list {
            store.keep_pieces(digest, &list);
        }
        Ok(())
    }

    /// The same under any path of a blob's folder.
    pub(super) fn keep_as(self, path: &Path) -> io::Result<()> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_all()?;
        failpoint!("the blob's bytes are on the disk");
        let folder = path.parent().expect("a blob's path has a folder");
        // The folder may have been made just now by another thread, or by a process that was killed before it got to
        // this; a folder that is on the disk already costs next to nothing here.
        fs::create_dir_all(folder)?;
        sync_folder(&self.store.root)?;
        failpoint!("the blob's folder is on the disk");
        let names = self.store.names();
        file.persist(path).map_err(|error| without_path(&error.error))?;
        drop(names);
        failpoint!("the blob has its name");
        sync_folder(folder)
    }
}

impl Write for TemporaryBlob<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A rename is durable once its folder is.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// tempfile's errors name the path, and these end up where paths have no business.
fn without_path(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

//! The cache's directory: one file per blob, named by its content. Every call blocks.
//!
//! ```text
//! <dir>/lock                      held by the one edge that uses the directory
//! <dir>/table.redb                the service table
//! <dir>/blobs/<2 hex>/<64 hex>    a blob
//! <dir>/incoming/fill-…           a blob that is being fetched; removed at start
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tempfile::NamedTempFile;
use weir_shared::digest::BlobDigest;

use crate::directory_lock::DirectoryLock;

const BLOBS: &str = "blobs";
const INCOMING: &str = "incoming";
const INCOMING_PREFIX: &str = "fill-";

/// Bytes that are read at a time to compare a blob with its name.
const VERIFY_CHUNK: usize = 1 << 20;

/// The directory.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    root: PathBuf,
    _lock: DirectoryLock,
}

/// A blob that lies in the directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Present {
    pub(crate) digest: BlobDigest,
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
}

/// A blob that is open. Evicting or replacing the file disturbs nobody who holds one.
#[derive(Debug, Clone)]
pub(crate) struct Blob {
    pub(crate) file: Arc<File>,
    pub(crate) length: u64,
}

impl Directory {
    /// Makes the directories that are missing.
    pub(crate) fn open(root: &Path, lock: DirectoryLock) -> io::Result<Self> {
        fs::create_dir_all(root.join(BLOBS))?;
        fs::create_dir_all(root.join(INCOMING))?;
        Ok(Self { root: root.to_owned(), _lock: lock })
    }

    fn path(&self, digest: &BlobDigest) -> PathBuf {
        let hex = digest.hex();
        self.root.join(BLOBS).join(&hex[..2]).join(&hex)
    }

    /// Removes what a process that died was fetching, and lists the blobs by their names and sizes, the oldest first.
    /// Whatever else lies there is left alone.
    pub(crate) fn scan(&self) -> io::Result<Vec<Present>> {
        for entry in fs::read_dir(self.root.join(INCOMING))? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(INCOMING_PREFIX) {
                fs::remove_file(entry.path())?;
            }
        }
        let mut present = Vec::new();
        for group in fs::read_dir(self.root.join(BLOBS))? {
            let group = group?;
            if !group.file_type()?.is_dir() {
                continue;
            }
            for entry in fs::read_dir(group.path())? {
                let entry = entry?;
                let name = entry.file_name();
                let digest = name.to_str().and_then(|name| format!("b3-{name}").parse().ok());
                let Some(digest) = digest.filter(|digest| self.path(digest) == entry.path()) else { continue };
                let metadata = entry.metadata()?;
                if metadata.is_file() {
                    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    present.push(Present { digest, size: metadata.len(), modified });
                }
            }
        }
        present.sort_by_key(|blob| blob.modified);
        Ok(present)
    }

    /// Opens a blob. It must have `size` bytes.
    pub(crate) fn blob(&self, digest: &BlobDigest, size: u64) -> io::Result<Blob> {
        let file = File::open(self.path(digest))?;
        let length = file.metadata()?.len();
        if length != size {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file has another size than the blob"));
        }
        Ok(Blob { file: file.into(), length })
    }

    pub(crate) fn remove(&self, digest: &BlobDigest) -> io::Result<()> {
        match fs::remove_file(self.path(digest)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// A file for a blob that is being fetched; removed when it is dropped.
    pub(crate) fn incoming(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new().prefix(INCOMING_PREFIX).tempfile_in(self.root.join(INCOMING))
    }

    /// Gives a fetched blob its name. Its bytes must be on disk before: a name never promises bytes that a power cut
    /// takes away.
    pub(crate) fn keep(&self, digest: &BlobDigest, incoming: NamedTempFile) -> io::Result<Blob> {
        let path = self.path(digest);
        fs::create_dir_all(path.parent().expect("the path of a blob has a parent"))?;
        let file = incoming.persist(&path).map_err(|error| error.error)?;
        Blob::of(file)
    }
}

impl Blob {
    /// A blob in a file that has no name, or none that matters.
    pub(crate) fn of(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Self { file: file.into(), length })
    }

    /// Whether its bytes are what the name says. Blocks for as long as it takes to read them all.
    pub(crate) fn is(&self, digest: &BlobDigest) -> io::Result<bool> {
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; VERIFY_CHUNK];
        let mut offset = 0;
        loop {
            match self.file.read_at(&mut chunk, offset) {
                Ok(0) => break,
                Ok(read) => {
                    hasher.update(&chunk[..read]);
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(offset == self.length && BlobDigest::from(hasher.finalize()) == *digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn open(root: &Path) -> Directory {
        Directory::open(root, DirectoryLock::take(root).unwrap().0).unwrap()
    }

    #[test]
    fn a_blob_is_kept_found_again_and_verified() {
        let dir = tempfile::tempdir().unwrap();
        let directory = open(dir.path());
        let digest = BlobDigest::of(b"bytes");
        let mut incoming = directory.incoming().unwrap();
        incoming.write_all(b"bytes").unwrap();
        assert!(directory.keep(&digest, incoming).unwrap().is(&digest).unwrap());

        // A process that dies leaves a temporary; strangers' files are nobody's business.
        let (_, left) = directory.incoming().unwrap().keep().unwrap();
        let strange = dir.path().join("blobs/zz");
        fs::create_dir(&strange).unwrap();
        fs::write(strange.join("note.txt"), "mine").unwrap();
        fs::write(strange.join(digest.hex()), "misplaced").unwrap();

        drop(directory);
        let directory = open(dir.path());
        let present = directory.scan().unwrap();
        assert_eq!(present.iter().map(|p| (p.digest, p.size)).collect::<Vec<_>>(), [(digest, 5)]);
        assert!(!left.exists() && strange.join("note.txt").exists() && strange.join(digest.hex()).exists());

        fs::write(directory.path(&digest), "bytEs").unwrap();
        assert!(!directory.blob(&digest, 5).unwrap().is(&digest).unwrap());
        fs::write(directory.path(&digest), "byte").unwrap();
        assert_eq!(directory.blob(&digest, 5).unwrap_err().kind(), io::ErrorKind::InvalidData);
        directory.remove(&digest).unwrap();
        directory.remove(&digest).unwrap();
        assert_eq!(directory.blob(&digest, 5).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

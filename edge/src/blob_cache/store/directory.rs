//! The cache's directory: one file per blob, named by its content. Every call blocks.
//!
//! ```text
//! <dir>/lock                      held by the one edge that uses the directory
//! <dir>/table.redb                the service table
//! <dir>/blobs/<2 hex>/<64 hex>    a blob
//! <dir>/small/<bytes>/            small blobs, in files of foyer's
//! <dir>/blobs.index               what is known of the blobs
//! <dir>/incoming/fill-…           a blob that is being fetched; removed at start
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use weir_shared::digest::BlobDigest;
use weir_shared::process::directory_lock::DirectoryLock;

use super::Blob;
use super::file_stamp::FileStamp;

const SMALL: &str = "small";
const BLOBS: &str = "blobs";
const INCOMING: &str = "incoming";
const INCOMING_PREFIX: &str = "fill-";

/// The directory.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    root: PathBuf,
    _lock: DirectoryLock,
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

    /// Where the index is.
    pub(super) fn index_path(&self) -> PathBuf {
        self.root.join("blobs.index")
    }

    /// The directory of the small blobs, `bytes` long in all; those of another length are removed.
    pub(super) fn small_path(&self, bytes: u64) -> io::Result<PathBuf> {
        let all = self.root.join(SMALL);
        let name = bytes.to_string();
        fs::create_dir_all(all.join(&name))?;
        for entry in fs::read_dir(&all)? {
            let entry = entry?;
            if entry.file_name() != name.as_str() {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(all.join(name))
    }

    /// Removes the directory of the small blobs, and gives back its space.
    pub(super) fn remove_small(&self) {
        if let Err(error) = fs::remove_dir_all(self.root.join(SMALL)) {
            tracing::warn!(%error, "the directory of the small blobs cannot be removed");
        }
    }

    /// Removes what a process that died was fetching. Whatever else lies there is left alone.
    pub(super) fn remove_leftovers(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join(INCOMING))? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(INCOMING_PREFIX) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The blobs whose names begin with this byte, in no order. Whatever else lies there is left alone.
    pub(super) fn group(&self, first: u8) -> io::Result<Vec<BlobDigest>> {
        let entries = match fs::read_dir(self.root.join(BLOBS).join(format!("{first:02x}"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut digests = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let digest: Option<BlobDigest> = name.to_str().and_then(|name| format!("b3-{name}").parse().ok());
            digests.extend(digest.filter(|digest| digest.as_bytes()[0] == first));
        }
        Ok(digests)
    }

    /// The bytes of a blob's file.
    pub(super) fn size(&self, digest: &BlobDigest) -> io::Result<u64> {
        let metadata = fs::symlink_metadata(self.path(digest))?;
        if metadata.is_file() { Ok(metadata.len()) } else { Err(io::Error::other("it is no file")) }
    }

    /// The state of a blob's file.
    pub(super) fn stamp(&self, digest: &BlobDigest) -> io::Result<FileStamp> {
        Ok(FileStamp::from(&fs::symlink_metadata(self.path(digest))?))
    }

    /// Opens a blob. It must have `size` bytes.
    pub(crate) fn blob(&self, digest: &BlobDigest, size: u64) -> io::Result<Blob> {
        let blob = Blob::of(File::open(self.path(digest))?)?;
        if blob.length() != size {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file has another size than the blob"));
        }
        Ok(blob)
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

/// Whether opening a file failed for want of descriptors or memory: a busy edge must not throw good blobs away.
pub(super) fn is_out_of_descriptors(error: &io::Error) -> bool {
    // The same numbers on every Unix.
    const TOO_MANY_IN_THE_SYSTEM: i32 = 23;
    const TOO_MANY_IN_THE_PROCESS: i32 = 24;
    error.kind() == io::ErrorKind::OutOfMemory
        || matches!(error.raw_os_error(), Some(TOO_MANY_IN_THE_SYSTEM | TOO_MANY_IN_THE_PROCESS))
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
        let misplaced = (digest.as_bytes()[0]).wrapping_add(1);
        let strange = dir.path().join(format!("blobs/{misplaced:02x}"));
        fs::create_dir(&strange).unwrap();
        fs::write(strange.join("note.txt"), "mine").unwrap();
        fs::write(strange.join(digest.hex()), "misplaced").unwrap();

        drop(directory);
        let directory = open(dir.path());
        directory.remove_leftovers().unwrap();
        let present = (0..=255).flat_map(|group| directory.group(group).unwrap()).collect::<Vec<_>>();
        assert_eq!(present, [digest]);
        assert_eq!(directory.size(&digest).unwrap(), 5);
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

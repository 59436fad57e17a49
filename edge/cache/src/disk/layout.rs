//! The directory layout of objects. All calls block.
//!
//! ```text
//! <dir>/objects/<2 hex>/<64 hex>    an object, named by its content
//! <dir>/objects/<2 hex>/.new-…      an object that is being written; the next start removes what a crash left
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_protocol::digest::ObjectDigest;
use weir_runtime::directory_lock::DirectoryLock;

const OBJECTS: &str = "objects";
const NEW: &str = ".new-";

/// The directories. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    root: Arc<Path>,
    /// The prefix of temporary files of this process.
    new: Arc<str>,
    _lock: DirectoryLock,
}

/// A file in a directory of objects.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ListedFile {
    /// An object and its size.
    Object(ObjectDigest, u64),
    /// A temporary file of an earlier process.
    Temporary(PathBuf),
}

impl Layout {
    /// The directories below `dir`, which `lock` locks. They are created when needed.
    pub(super) fn new(dir: &Path, lock: DirectoryLock) -> Self {
        Self { root: dir.join(OBJECTS).into(), new: format!("{NEW}{:x}-", fastrand::u64(..)).into(), _lock: lock }
    }

    pub(super) fn path(&self, digest: &ObjectDigest) -> PathBuf {
        let hex = digest.hex();
        self.folder(&hex[..2]).join(&hex)
    }

    /// The free bytes of the file system. `None`: it does not say.
    pub(super) fn free(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(&*self.root).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn folder(&self, hex: &str) -> PathBuf {
        self.root.join(hex)
    }

    /// Writes an object atomically, without fsync: bytes lost in a power cut are noticed on the next read.
    pub(super) fn write(&self, digest: &ObjectDigest, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(digest);
        let folder = path.parent().expect("the path of an object has a parent");
        let new = folder.join(format!("{}{:x}", self.new, fastrand::u64(..)));
        let mut file = match File::create_new(&new) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(folder)?;
                File::create_new(&new)?
            }
            made => made?,
        };
        let written = file.write_all(bytes).and_then(|()| fs::rename(&new, &path));
        // A failed temporary file would waste space.
        written.inspect_err(|_| drop(fs::remove_file(&new)))
    }

    /// The time since an object's file was written. `None`: it is missing, or the wall clock was set back.
    pub(super) fn age(&self, digest: &ObjectDigest) -> Option<Duration> {
        fs::metadata(self.path(digest)).ok()?.modified().ok()?.elapsed().ok()
    }

    /// Unlinks an object's file. A failure is logged; the next start tries again.
    pub(super) fn unlink(&self, digest: &ObjectDigest) {
        match fs::remove_file(self.path(digest)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(object = %digest, %error, "a cache file cannot be removed");
            }
            _ => {}
        }
    }

    /// Lists the objects whose digests start with this byte. Other files are ignored.
    ///
    /// # Errors
    /// The directory cannot be read completely.
    pub(super) fn list(&self, first: u8) -> io::Result<Vec<ListedFile>> {
        let folder = self.folder(&format!("{first:02x}"));
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(NEW) {
                found.extend((!name.starts_with(&*self.new)).then(|| ListedFile::Temporary(entry.path())));
                continue;
            }
            let digest = format!("b3-{name}").parse::<ObjectDigest>().ok();
            let Some(digest) = digest.filter(|digest| digest.as_bytes()[0] == first) else { continue };
            match entry.metadata() {
                Ok(metadata) if metadata.is_file() => found.push(ListedFile::Object(digest, metadata.len())),
                // It was evicted meanwhile, or is no file.
                _ => {}
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_listed_and_foreign_files_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path(), DirectoryLock::take(dir.path()).unwrap().0);
        let digest = ObjectDigest::of(b"bytes");
        let first = digest.as_bytes()[0];
        assert_eq!(layout.list(first).unwrap(), []);
        layout.write(&digest, b"bytes").unwrap();
        layout.write(&digest, b"bytes").unwrap();
        let folder = layout.path(&digest).parent().unwrap().to_owned();
        fs::write(folder.join(".new-abc"), "half").unwrap();
        fs::write(folder.join(format!("{}abc", layout.new)), "it is being written").unwrap();
        fs::write(folder.join("note.txt"), "mine").unwrap();
        let mut found = layout.list(first).unwrap();
        found.sort_by_key(|found| matches!(found, ListedFile::Temporary(_)));
        assert_eq!(found, [ListedFile::Object(digest, 5), ListedFile::Temporary(folder.join(".new-abc"))]);
        layout.unlink(&digest);
        layout.unlink(&digest);
        assert_eq!(layout.list(first).unwrap().len(), 1);
    }
}

//! What a folder of objects needs beyond [`LocalFileSystem`].
//!
//! `LocalFileSystem` with `fsync` writes each object to a new file, `<name>#<n>`, flushes it, renames it, and flushes
//! the folder; an error of any of these fails the put, and the next put of the object writes another new file. So no
//! object is readable under its name before its bytes are durable, and none is stated to be durable by a flush that
//! follows a failed one. Two things remain: a folder that exists is taken for a durable one, and a kill leaves
//! `<name>#<n>` behind.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use object_store::local::LocalFileSystem;
use weir_protocol::name::RepositoryName;

use super::object_location::{Area, StoredObject};

/// A file that is being written is younger.
const STAGED_FILE_AGE: Duration = Duration::from_secs(3600);

/// A folder of objects.
#[derive(Debug, Clone)]
pub(super) struct LocalFolder {
    root: PathBuf,
    /// The folders that are durable; at most two for each repository of this run.
    durable: Arc<Mutex<HashSet<PathBuf>>>,
}

impl LocalFolder {
    /// Opens a folder; without `create` it must exist. It blocks.
    pub(super) fn open(root: &Path, create: bool) -> io::Result<(Self, LocalFileSystem)> {
        if create {
            fs::create_dir_all(root)?;
        }
        let store = LocalFileSystem::new_with_prefix(root)?.with_fsync(true);
        root.parent().map_or(Ok(()), sync_folder)?;
        Ok((Self { root: root.to_owned(), durable: Arc::default() }, store))
    }

    /// Whether the folder exists: that of an unmounted volume may not.
    pub(super) fn exists(&self) -> bool {
        self.root.is_dir()
    }

    fn folder(&self, repository: &RepositoryName, area: Area) -> PathBuf {
        self.root.join(repository.as_str()).join(area.as_str())
    }

    /// Makes the folder of an area durable, once in each run: an earlier one may have been killed before it did.
    pub(super) async fn prepare(&self, repository: &RepositoryName, area: Area) -> io::Result<()> {
        let folder = self.folder(repository, area);
        let is_durable = |folder| self.durable.lock().unwrap_or_else(PoisonError::into_inner).contains(folder);
        if is_durable(&folder) {
            return Ok(());
        }
        let durable = self.durable.clone();
        let root = self.root.clone();
        tokio::task::spawn_blocking(move || {
            // Not in the place of a volume that is not mounted.
            fs::metadata(&root)?;
            fs::create_dir_all(&folder)?;
            // The entry of each is in the folder above it.
            folder.parent().map_or(Ok(()), sync_folder)?;
            sync_folder(&root)?;
            durable.lock().unwrap_or_else(PoisonError::into_inner).insert(folder);
            Ok(())
        })
        .await?
    }

    /// The objects of an area. Files of writes that were killed are removed.
    pub(super) async fn list(
        &self,
        repository: &RepositoryName,
        area: Area,
        now: SystemTime,
    ) -> io::Result<Vec<StoredObject>> {
        let (root, folder) = (self.root.clone(), self.folder(repository, area));
        tokio::task::spawn_blocking(move || {
            fs::metadata(root)?;
            list(&folder, now)
        })
        .await?
    }
}

fn list(folder: &Path, now: SystemTime) -> io::Result<Vec<StoredObject>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut objects = Vec::new();
    for entry in entries {
        let entry = entry?;
        let metadata = match entry.metadata() {
            // It was renamed or deleted since.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        let file_name = entry.file_name();
        let name = file_name.to_str().unwrap_or_default();
        if !name.contains('#') {
            objects.extend(StoredObject::named(name, metadata.len()));
        } else if now.duration_since(metadata.modified()?).is_ok_and(|age| age > STAGED_FILE_AGE) {
            // If it cannot be removed, the next listing tries again.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(objects)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

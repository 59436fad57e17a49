//! Local folders need more than [`LocalFileSystem`] does.
//!
//! With `fsync`, `LocalFileSystem` writes each object to a new file `<name>#<n>`, flushes it, renames it, and flushes
//! the folder. Any error fails the put, and the next put writes another new file. So an object is never readable
//! under its name before it is durable, and no flush after a failed one is trusted. Two things remain for this
//! module: existing folders may not be durable yet, and a kill leaves `<name>#<n>` behind.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use object_store::local::LocalFileSystem;
use weir_protocol::name::RepositoryName;
use weir_runtime::durable_file::sync_folder;

use super::object_location::{Area, StoredObject};

/// Younger files may still be being written.
const STAGED_FILE_AGE: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone)]
pub(crate) struct LocalFolder {
    root: PathBuf,
    /// Folders known to be durable; at most two for each repository.
    durable: Arc<Mutex<HashSet<PathBuf>>>,
}

impl LocalFolder {
    /// Opens a folder; without `create` it must exist. Blocks.
    pub(crate) fn open(root: &Path, create: bool) -> io::Result<(Self, LocalFileSystem)> {
        if create {
            fs::create_dir_all(root)?;
        }
        let store = LocalFileSystem::new_with_prefix(root)?.with_fsync(true);
        root.parent().map_or(Ok(()), sync_folder)?;
        Ok((Self { root: root.to_owned(), durable: Arc::default() }, store))
    }

    /// Whether the folder exists. It does not if its volume is not mounted.
    pub(crate) fn exists(&self) -> bool {
        self.root.is_dir()
    }

    fn folder(&self, repository: &RepositoryName, area: Area) -> PathBuf {
        self.root.join(repository.as_str()).join(area.as_str())
    }

    /// Makes the folder of an area durable, once in each run, because an earlier run may have been killed before it
    /// did.
    pub(crate) async fn prepare(&self, repository: &RepositoryName, area: Area) -> io::Result<()> {
        let folder = self.folder(repository, area);
        let is_durable = |folder| self.durable.lock().unwrap_or_else(PoisonError::into_inner).contains(folder);
        if is_durable(&folder) {
            return Ok(());
        }
        let durable = self.durable.clone();
        let root = self.root.clone();
        tokio::task::spawn_blocking(move || {
            // Never create the root in place of a volume that is not mounted.
            fs::metadata(&root)?;
            fs::create_dir_all(&folder)?;
            // The entry of a folder is stored in its parent.
            folder.parent().map_or(Ok(()), sync_folder)?;
            sync_folder(&root)?;
            durable.lock().unwrap_or_else(PoisonError::into_inner).insert(folder);
            Ok(())
        })
        .await?
    }

    /// Lists an area, and removes old files of killed writes.
    pub(crate) async fn list(
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
            // Renamed or deleted since.
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

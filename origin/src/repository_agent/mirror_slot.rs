//! A repository's mirror, opened when it is first needed. All of this blocks.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::data_dir::DataDir;
use crate::mirror::{Mirror, MirrorError};

/// Where a repository's mirror is, and the mirror once it was opened. A job that uses it keeps the data directory.
pub(super) struct MirrorSlot {
    path: PathBuf,
    opened: Mutex<Option<Arc<Mirror>>>,
    _data_dir: DataDir,
}

impl MirrorSlot {
    pub(super) fn new(path: PathBuf, data_dir: DataDir) -> Self {
        Self { path, opened: Mutex::new(None), _data_dir: data_dir }
    }

    /// Whether there is anything to open: nothing, before the first clone.
    pub(super) fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// The mirror. A disk that was full or read-only is tried again.
    pub(super) fn get(&self) -> Result<Arc<Mirror>, MirrorError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mirror) = opened.as_ref() {
            return Ok(mirror.clone());
        }
        let mirror = Arc::new(Mirror::open(&self.path)?);
        *opened = Some(mirror.clone());
        Ok(mirror)
    }

    /// Removes the mirrors of the same repository at other URLs, once this one holds what it should.
    pub(super) fn remove_others(&self) {
        let Some(siblings) = self.path.parent().and_then(|parent| std::fs::read_dir(parent).ok()) else { return };
        for sibling in siblings.flatten().map(|entry| entry.path()) {
            // A clone under way stands beside as `<name>.git` with something after it.
            let is_mirror = sibling.extension().is_some_and(|ending| ending == "git");
            if is_mirror && sibling != self.path && std::fs::remove_dir_all(&sibling).is_ok() {
                tracing::info!("the mirror of an earlier URL was removed");
            }
        }
    }
}

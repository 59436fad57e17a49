//! The lock of a root: one agent per root.

use std::fs::{self, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use weir_runtime::file_lock::FileLock;

use crate::error::{ReleaseError, disk};
use crate::modes::Modes;

/// How long a starting agent waits for a stopping one.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

const LOCK: &str = ".lock";

const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Held while anything may be written below the root.
#[derive(Debug)]
pub struct RootLock(Mutex<FileLock>);

impl RootLock {
    /// Creates the root if it is missing, and locks it. Blocks.
    ///
    /// # Errors
    /// Another agent uses the root, or it is not writable.
    pub fn acquire(root: &Path, modes: Modes) -> anyhow::Result<Self> {
        std::fs::create_dir_all(root).with_context(|| format!("cannot create the root {}", root.display()))?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match Self::try_acquire(root, modes)? {
                Some(lock) => return Ok(lock),
                None if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
                None => anyhow::bail!("another agent uses the root {}", root.display()),
            }
        }
    }

    /// Locks a root that exists; `None` while an agent uses it.
    ///
    /// # Errors
    /// It is not writable.
    pub fn try_acquire(root: &Path, modes: Modes) -> anyhow::Result<Option<Self>> {
        let file = try_file(root, modes).with_context(|| format!("cannot lock {}", root.join(LOCK).display()))?;
        Ok(file.map(|file| Self(Mutex::new(file))))
    }

    /// Locks the root again when somebody has deleted the file: another agent could start otherwise.
    ///
    /// # Errors
    /// Another agent did, or the root is not writable.
    pub fn restore(&self, root: &Path, modes: Modes) -> Result<(), ReleaseError> {
        let path = root.join(LOCK);
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let is_locked = |found: Metadata| file.as_file().metadata().is_ok_and(|locked| id(locked) == id(found));
        if fs::metadata(&path).is_ok_and(is_locked) {
            return Ok(());
        }
        fs::create_dir_all(root).map_err(disk("create", root))?;
        let again = try_file(root, modes).map_err(disk("lock", &path))?;
        *file = again.ok_or_else(|| disk("lock", &path)(io::Error::other("another agent uses it")))?;
        tracing::warn!(path = %path.display(), "the lock file was deleted, and was created again");
        Ok(())
    }
}

/// `None`: another process has the lock.
fn try_file(root: &Path, modes: Modes) -> io::Result<Option<FileLock>> {
    let file = match FileLock::try_take(&root.join(LOCK)) {
        Ok(file) => file,
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    };
    if modes.group_write {
        // Only the owner can, who did so before.
        let _ = rustix::fs::fchmod(file.as_file(), modes.file(false));
    }
    Ok(Some(file))
}

//! The lock of a root: one agent per root.

use std::fs::TryLockError;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use weir_runtime::file_lock::FileLock;

use super::modes::Modes;

/// How long a starting agent waits for a stopping one.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

const LOCK: &str = ".lock";

const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Held while anything may be written below the root.
#[derive(Debug)]
pub(crate) struct RootLock {
    _file: FileLock,
}

impl RootLock {
    /// Creates the root if it is missing, and locks it. Blocks.
    ///
    /// # Errors
    /// Another agent uses the root, or it is not writable.
    pub(crate) fn acquire(root: &Path, modes: Modes) -> anyhow::Result<Self> {
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
    pub(crate) fn try_acquire(root: &Path, modes: Modes) -> anyhow::Result<Option<Self>> {
        let path = root.join(LOCK);
        let file = match FileLock::try_take(&path) {
            Ok(file) => file,
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        };
        if modes.group_write {
            // Only the owner can, who did so before.
            let _ = rustix::fs::fchmod(file.as_file(), modes.file(false));
        }
        Ok(Some(Self { _file: file }))
    }
}

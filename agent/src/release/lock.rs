//! The lock of a root: one agent per root.

use std::fs::TryLockError;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use weir_runtime::file_lock::FileLock;

/// How long a starting agent waits for a stopping one.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

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
    pub(crate) fn acquire(root: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(root).with_context(|| format!("cannot create the root {}", root.display()))?;
        let path = root.join(".lock");
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match FileLock::try_take(&path) {
                Ok(file) => return Ok(Self { _file: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
                Err(TryLockError::WouldBlock) => {
                    anyhow::bail!("another agent uses the root {}", root.display());
                }
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
        }
    }
}

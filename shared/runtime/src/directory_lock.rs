//! Locks a directory for one process, as long as any part of that process uses it.

use std::convert::Infallible;
use std::fs::{self, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::file_lock::FileLock;

/// The lock. Every owner of open files in the directory holds a clone, and closes the files before it drops the clone.
#[derive(Debug, Clone)]
pub struct DirectoryLock {
    _inner: Arc<Inner>,
}

/// Fields are dropped in this order: the lock is free before [`Released`] resolves.
#[derive(Debug)]
struct Inner {
    _file: FileLock,
    _released: oneshot::Sender<Infallible>,
}

/// Resolves when the directory is free again.
#[derive(Debug)]
pub struct Released(oneshot::Receiver<Infallible>);

/// The directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process holds its lock.
    #[error("it is in use by another process; give each process its own directory")]
    InUse,
    /// The file system reported an error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl DirectoryLock {
    /// Locks a directory, which is created if missing. Does not wait.
    ///
    /// # Errors
    /// Another process holds the lock, or the directory cannot be created or written.
    pub fn take(dir: &Path) -> Result<(Self, Released), DirectoryError> {
        fs::create_dir_all(dir)?;
        let file = FileLock::try_take(&dir.join("lock")).map_err(|error| match error {
            TryLockError::WouldBlock => DirectoryError::InUse,
            TryLockError::Error(error) => DirectoryError::Io(error),
        })?;
        let (released, receiver) = oneshot::channel();
        Ok((Self { _inner: Arc::new(Inner { _file: file, _released: released }) }, Released(receiver)))
    }
}

impl Released {
    /// Waits until nobody holds the lock.
    pub async fn wait(self) {
        // Nothing is ever sent: it resolves when the sender is dropped.
        let _ = self.0.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_directory_is_free_once_released_resolves() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..100 {
            let (lock, released) = DirectoryLock::take(dir.path()).unwrap();
            let other = lock.clone();
            drop(lock);
            assert!(matches!(DirectoryLock::take(dir.path()), Err(DirectoryError::InUse)));
            std::thread::spawn(move || drop(other));
            released.wait().await;
        }
    }
}

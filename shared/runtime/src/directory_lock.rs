//! One process per directory: a lock that is held for as long as any part of the process uses the directory.

use std::convert::Infallible;
use std::fs::{self, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::file_lock::FileLock;

/// The lock. Whatever keeps files of the directory open keeps a clone of it, and closes them before it.
#[derive(Debug, Clone)]
pub struct DirectoryLock {
    _held: Arc<Held>,
}

/// Dropped from top to bottom: the lock is free before anybody is told so.
#[derive(Debug)]
struct Held {
    _file: FileLock,
    _telling: oneshot::Sender<Infallible>,
}

/// Tells when the directory is free again.
#[derive(Debug)]
pub struct Released(oneshot::Receiver<Infallible>);

/// The directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process holds its lock.
    #[error("it is in use by another process: each needs a directory of its own")]
    InUse,
    /// The file system says no.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl DirectoryLock {
    /// Takes the lock of a directory, which is made when it is not there. Does not wait.
    ///
    /// # Errors
    /// Another process has it, or the directory cannot be made or written.
    pub fn take(dir: &Path) -> Result<(Self, Released), DirectoryError> {
        fs::create_dir_all(dir)?;
        let file = FileLock::try_take(&dir.join("lock")).map_err(|error| match error {
            TryLockError::WouldBlock => DirectoryError::InUse,
            TryLockError::Error(error) => DirectoryError::Io(error),
        })?;
        let (telling, told) = oneshot::channel();
        Ok((Self { _held: Arc::new(Held { _file: file, _telling: telling }) }, Released(told)))
    }
}

impl Released {
    /// Waits until nobody holds the lock.
    pub async fn wait(self) {
        // Nothing is ever sent: this is about the end of the one who could.
        let _ = self.0.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_free_once_it_is_said_to_be() {
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

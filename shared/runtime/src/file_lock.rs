//! An exclusive lock on a file, released explicitly.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// An exclusive `flock` on a file, until it is dropped.
///
/// Closing the file would not release the lock: a child process that another thread is starting has a copy of every
/// descriptor until it calls `exec`, and the lock lasts as long as any copy. So it is unlocked explicitly.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks a file, which is created if missing. Does not wait.
    ///
    /// # Errors
    /// The lock is held already, or the file cannot be created or locked.
    pub fn try_take(path: &Path) -> Result<Self, TryLockError> {
        // Others may write to the directory: a link that they put there is an error.
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let file = match File::options().create(true).truncate(false).write(true).custom_flags(no_link).open(path) {
            // An existing file can be locked all the same.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
            opened => opened,
        };
        let file = file.map_err(TryLockError::Error)?;
        file.try_lock()?;
        Ok(Self(file))
    }
}

impl FileLock {
    /// The locked file.
    pub fn as_file(&self) -> &File {
        &self.0
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // If this fails, the lock ends with the last copy of the descriptor.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_free_even_if_a_child_process_has_a_copy_of_the_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = FileLock::try_take(&path).unwrap();
        let copy = lock.0.try_clone().unwrap();
        assert!(matches!(FileLock::try_take(&path), Err(TryLockError::WouldBlock)));
        drop(lock);
        FileLock::try_take(&path).unwrap();
        drop(copy);
    }
}

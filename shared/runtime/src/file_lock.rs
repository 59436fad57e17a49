//! A lock on a file that ends when its holder says so.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// A file this process alone holds (`flock`), until it is dropped.
///
/// Closing the file would not be enough: a child process that another thread is just starting has a copy of every
/// descriptor until it runs its program, and a lock lasts as long as any copy. So the lock is given back by name.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Takes the lock of a file, which is made when it is not there. Does not wait.
    ///
    /// # Errors
    /// Somebody else holds it, or the file cannot be made or locked.
    pub fn try_take(path: &Path) -> Result<Self, TryLockError> {
        let file = match File::options().create(true).truncate(false).write(true).open(path) {
            // One that is there can be locked all the same.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
            opened => opened,
        };
        let file = file.map_err(TryLockError::Error)?;
        file.try_lock()?;
        Ok(Self(file))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // What cannot be given back ends with its last copy.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_free_though_a_child_process_still_has_a_copy_of_the_descriptor() {
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

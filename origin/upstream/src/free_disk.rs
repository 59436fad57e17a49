//! The free space of the disk of the data directory.

use std::io;
use std::path::Path;

use bytesize::ByteSize;
use rustix::fs::Access;

use super::data_dir::DataDir;

/// Fails if the disk has less free space than this.
pub fn require_room(data_dir: &DataDir, min_free_bytes: u64) -> Result<(), String> {
    problem(free(data_dir.root()), ByteSize(min_free_bytes)).map_or(Ok(()), Err)
}

/// The free space, if the directory is writable.
pub fn free(directory: &Path) -> io::Result<ByteSize> {
    rustix::fs::access(directory, Access::WRITE_OK)?;
    let disk = rustix::fs::statvfs(directory)?;
    Ok(ByteSize(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// Why the disk accepts nothing new.
pub fn problem(free: io::Result<ByteSize>, min_free: ByteSize) -> Option<String> {
    match free {
        Err(error) => Some(format!("`data_dir` cannot be written: {error}")),
        Ok(free) if free < min_free || free == ByteSize(0) => {
            Some(format!("the disk of `data_dir` has {free} left, but builds need {min_free} (`min_free`)"))
        }
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_even_if_min_free_is_0() {
        let mib = ByteSize::mib;
        assert_eq!(problem(Ok(mib(64)), mib(64)), None);
        assert!(problem(Ok(mib(63)), mib(64)).unwrap().contains("63.0 MiB"));
        assert!(problem(Ok(mib(0)), mib(0)).is_some());
        let read_only = io::Error::from_raw_os_error(rustix::io::Errno::ROFS.raw_os_error());
        assert!(problem(Err(read_only), mib(0)).unwrap().contains("Read-only file system"));
        let dir = tempfile::tempdir().unwrap();
        assert!(free(dir.path()).unwrap() > mib(0));
        assert!(free(&dir.path().join("gone")).is_err());
    }
}

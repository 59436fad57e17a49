//! Creates directories, removes trees, syncs directories.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags};

use crate::confined_dir::ConfinedDir;
use crate::error::{ReleaseError, disk};

/// Creates a directory with this mode, less the umask. The bits of `group_write` are asked for, whatever the umask. An existing
/// one keeps its mode.
pub(crate) fn make_directory(path: &Path, mode: Mode) -> Result<(), ReleaseError> {
    if path.is_dir() {
        return Ok(());
    }
    let is_exact = mode.contains(Mode::WGRP);
    let mode = mode.as_raw_mode();
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) if !is_exact => Ok(()),
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)).map_err(disk("set the mode of", path)),
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(ReleaseError::InTheWay { path: path.to_owned(), found: "is not a folder".to_owned() })
        }
        Err(error) => Err(disk("create the directory", path)(error)),
    }
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), ReleaseError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(disk("sync", path))
}

/// Reads the beginning of a small file, with its time. Others may write to the folder: neither a link nor a pipe is followed.
pub(crate) fn read_file(path: &Path, max_bytes: u64) -> io::Result<(Vec<u8>, SystemTime)> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let (metadata, mut bytes) = (file.metadata()?, Vec::new());
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a file"));
    }
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok((bytes, metadata.modified()?))
}

/// Removes a file or a symlink, if it exists.
pub(crate) fn remove_file(path: &Path) -> Result<(), ReleaseError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a directory with its contents, or a file, if it exists.
pub fn remove_tree(path: &Path) -> Result<(), ReleaseError> {
    let removed = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => {
            ConfinedDir::open(path).and_then(|mut dir| dir.remove_contents()).and_then(|()| fs::remove_dir(path))
        }
        Ok(_) => fs::remove_file(path),
    };
    removed.map_err(disk("remove", path))
}

//! Reads and atomically replaces the symlink `current`.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::error::{ReleaseError, disk};
use crate::layout::RELEASES;
use crate::name::ReleaseName;
use crate::tree::{remove_file, sync_directory};

const CURRENT: &str = "current";
const CURRENT_NEW: &str = ".current.new";

/// The release that `current` points at; `None` when it or its target does not exist.
///
/// # Errors
/// `current` is not a symlink of an agent, or the disk fails.
pub(crate) fn read_link(service: &Path) -> Result<Option<ReleaseName>, ReleaseError> {
    let path = service.join(CURRENT);
    let in_the_way = |found: String| ReleaseError::InTheWay { path: path.clone(), found };
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(disk("look at", &path)(error)),
        Ok(metadata) if !metadata.is_symlink() => return Err(in_the_way("is not a symlink of an agent".to_owned())),
        Ok(_) => {}
    }
    let target = fs::read_link(&path).map_err(disk("read", &path))?;
    let name = target
        .strip_prefix(RELEASES)
        .ok()
        .and_then(Path::to_str)
        .and_then(|name| name.parse::<ReleaseName>().ok())
        .ok_or_else(|| in_the_way(format!("points at {}", target.display())))?;
    Ok(is_on_disk(&service.join(RELEASES).join(name.to_string()))?.then_some(name))
}

/// Whether a release is on disk. A disk that fails does not say that it is not.
pub(crate) fn is_on_disk(release: &Path) -> Result<bool, ReleaseError> {
    match fs::symlink_metadata(release) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map(|found| found.is_dir()).map_err(disk("look at", release)),
    }
}

/// Points `current` at a release, by renaming a new symlink over it.
///
/// # Errors
/// `current` is not a symlink of an agent, or the disk fails.
pub(crate) fn write_link(service: &Path, release: ReleaseName) -> Result<(), ReleaseError> {
    // It may have been replaced since the start.
    read_link(service)?;
    let (new, path) = (service.join(CURRENT_NEW), service.join(CURRENT));
    remove_file(&new)?;
    symlink(Path::new(RELEASES).join(release.to_string()), &new).map_err(disk("create", &new))?;
    fs::rename(&new, &path).map_err(disk("rename", &new))?;
    sync_directory(service)
}

/// Removes the temporary symlink of an earlier process.
pub(crate) fn remove_leftovers(service: &Path) -> Result<(), ReleaseError> {
    remove_file(&service.join(CURRENT_NEW))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_surely_not_there_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let on_disk = |name: &str| is_on_disk(&folder.path().join(name)).map_err(|error| error.to_string());
        assert_eq!([on_disk(""), on_disk("file"), on_disk("none")], [Ok(true), Ok(false), Ok(false)]);
        let error = on_disk(&"x".repeat(300)).unwrap_err();
        assert!(error.starts_with("cannot look at"), "{error}");
    }
}

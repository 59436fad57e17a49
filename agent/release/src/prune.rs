//! Removes old releases, and temporary files of an earlier process.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use crate::error::{ReleaseError, disk};
use crate::layout::{INCOMING, RELEASES};
use crate::name::ReleaseName;
use crate::tree::remove_tree;

/// The end of the names of releases that are being removed.
const REMOVED: &str = ".removed";

/// Removes releases, except the needed ones and the youngest others, `keep` in total, and what could not be removed before.
/// Returns the error of each that is still there.
pub(crate) fn prune(service: &Path, needed: &[ReleaseName], keep: usize) -> Result<Vec<ReleaseError>, ReleaseError> {
    let mut others = self::releases(service)?;
    others.retain(|(_, name)| !needed.contains(name));
    let releases = service.join(RELEASES);
    let mut errors = Vec::new();
    for entry in fs::read_dir(&releases).map_err(disk("list", &releases))? {
        let entry = entry.map_err(disk("list", &releases))?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") && name.as_encoded_bytes().ends_with(REMOVED.as_bytes()) {
            errors.extend(remove_tree(&entry.path()).err());
        }
    }
    for name in surplus(others, needed, keep.saturating_sub(needed.len())) {
        // Renamed first: a directory with a release's name is always complete. The number keeps it apart from one of the same
        // name that could not be removed.
        let removed = (0..).map(|number| releases.join(format!(".{name}.{number}{REMOVED}")));
        let removed = removed.into_iter().find(|path| !path.exists()).expect("there are fewer than numbers");
        let renamed = fs::rename(releases.join(name.to_string()), &removed).map_err(disk("rename", &removed));
        errors.extend(renamed.and_then(|()| remove_tree(&removed)).err());
    }
    Ok(errors)
}

/// The complete releases on disk, with the times at which they were made. Foreign directories are left out.
pub(crate) fn releases(service: &Path) -> Result<Vec<(SystemTime, ReleaseName)>, ReleaseError> {
    let releases = service.join(RELEASES);
    let mut found = Vec::new();
    for entry in fs::read_dir(&releases).map_err(disk("list", &releases))? {
        let entry = entry.map_err(disk("list", &releases))?;
        if let Some(name) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            let made = entry.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((made, name));
        }
    }
    Ok(found)
}

/// All but the youngest. Older copies of a digest go first, because they were found modified.
fn surplus(
    mut releases: Vec<(SystemTime, ReleaseName)>,
    needed: &[ReleaseName],
    keep: usize,
) -> impl Iterator<Item = ReleaseName> {
    let all: Vec<_> = releases.iter().map(|(_, name)| *name).chain(needed.iter().copied()).collect();
    let is_superseded = |name: &ReleaseName| all.iter().any(|other| other.digest() == name.digest() && other > name);
    releases.sort_unstable_by_key(|(made, name)| (!is_superseded(name), *made, *name));
    releases.into_iter().rev().skip(keep).map(|(_, name)| name)
}

/// Removes releases that are partly unpacked or removed, and incoming tarballs.
pub(crate) fn remove_leftovers(service: &Path) -> Result<(), ReleaseError> {
    let mut first = Ok(());
    for (folder, prefix) in [(RELEASES, "."), (INCOMING, "")] {
        let folder = service.join(folder);
        for entry in fs::read_dir(&folder).map_err(disk("list", &folder))? {
            let entry = entry.map_err(disk("list", &folder))?;
            if entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
                // One that cannot be removed keeps no other.
                first = first.and(remove_tree(&entry.path()));
            }
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weir_protocol::digest::TarballDigest;

    #[test]
    fn modified_copies_are_pruned_before_older_releases() {
        let name = |content: &[u8], number| ReleaseName::new(TarballDigest::of(content), number);
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let needed = [name(b"new", 2), name(b"new", 1)];
        let others = vec![(at(1), name(b"old", 0)), (at(9), name(b"new", 0))];
        assert_eq!(surplus(others, &needed, 1).collect::<Vec<_>>(), [name(b"new", 0)]);
    }
}

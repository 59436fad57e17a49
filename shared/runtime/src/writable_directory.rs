//! Checks a configured directory that a program creates when it starts.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::{Access, access, statvfs};

/// Checks that a path is a writable directory, or that one can be created there: its first missing component is created and
/// removed again.
///
/// # Errors
/// The path that is no directory or cannot be written, and the reason.
pub fn check(path: &Path) -> Result<(), String> {
    let mut missing = None;
    for path in ancestors(path) {
        let cannot = |what: &str, error: std::io::Error| format!("{} cannot be {what}: {error}", path.display());
        match fs::metadata(path) {
            Ok(found) if !found.is_dir() => return Err(format!("{} is not a directory", path.display())),
            Ok(_) => {
                access(path, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| cannot("written", error.into()))?;
                let created = missing.map_or(Ok(()), |first: &Path| {
                    fs::create_dir(first).and_then(|()| fs::remove_dir(first)).map_err(|error| (first, error))
                });
                return created.map_err(|(first, error)| format!("{} cannot be created: {error}", first.display()));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => missing = Some(path),
            Err(error) => return Err(cannot("used", error)),
        }
    }
    Ok(())
}

/// The size in bytes of the file system of a directory that exists or will be created; `None` if it is unknown.
pub fn capacity(path: &Path) -> Option<u64> {
    let of = ancestors(path).find_map(|path| statvfs(path).ok())?;
    Some(of.f_blocks.saturating_mul(of.f_frsize))
}

fn ancestors(path: &Path) -> impl Iterator<Item = &Path> {
    path.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_obstacle_is_named_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/c");
        assert_eq!(check(&deep), Ok(()));
        assert_eq!(check(dir.path()), Ok(()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(capacity(&deep).is_some_and(|bytes| bytes > 0));
        fs::write(dir.path().join("a"), "").unwrap();
        assert!(check(&deep).unwrap_err().contains("/a"));
        // Root may write by its mode, but nothing can be created there.
        let error = check(Path::new("/proc/weir/cache")).unwrap_err();
        assert!(error.contains("/proc"), "{error}");
    }
}

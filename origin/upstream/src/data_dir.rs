//! The data directory: its layout, and the lock that excludes other processes.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use weir_protocol::name::RepositoryName;
use weir_runtime::directory_lock::{DirectoryError, DirectoryLock, Released};

/// A locked data directory. The lock is held until the last clone is dropped, so each writer below the directory
/// keeps one.
#[derive(Debug, Clone)]
pub struct DataDir {
    root: PathBuf,
    /// The absolute path without symlinks, which some errors contain.
    real_root: PathBuf,
    _lock: DirectoryLock,
}

/// Why a data directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process has locked it.
    #[error("data_dir = \"{}\" is in use by another process", .0.display())]
    InUse(PathBuf),
    /// It cannot be created, locked or found.
    #[error("data_dir = \"{}\" cannot be used: {source}", path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl DataDir {
    /// Locks the directory, and creates it if it is missing.
    pub fn open(root: &Path) -> Result<(Self, Released), DataDirError> {
        let unusable = |source| DataDirError::Unusable { path: root.to_owned(), source };
        let (lock, released) = DirectoryLock::take(root).map_err(|error| match error {
            DirectoryError::InUse => DataDirError::InUse(root.to_owned()),
            DirectoryError::Io(source) => unusable(source),
        })?;
        let real_root = root.canonicalize().map_err(unusable)?;
        // Absolute, because other programs report absolute paths in their errors.
        let root = std::path::absolute(root).map_err(unusable)?;
        Ok((Self { root, real_root, _lock: lock }, released))
    }

    /// Removes the directory's path from a text that leaves the origin, such as an error of the file system.
    pub fn redact(&self, text: &str) -> String {
        // The longer path first, because it may contain the other.
        let mut roots = [&self.real_root, &self.root].map(|root| root.to_string_lossy());
        roots.sort_by_key(|root| std::cmp::Reverse(root.len()));
        let roots = roots.iter().filter(|root| root.len() > 1);
        roots.fold(text.to_owned(), |text, root| text.replace(&**root, "<data_dir>"))
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn mirrors(&self) -> PathBuf {
        self.root.join("mirrors")
    }

    /// The mirrors of repositories that are not `configured`, sorted by name. Nothing deletes them, because a mistake
    /// in the configuration must not cost a new clone.
    pub fn unused_mirrors(&self, configured: &HashSet<&str>) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.mirrors()).into_iter().flatten().flatten();
        let unused = entries.filter(|entry| !entry.file_name().to_str().is_some_and(|name| configured.contains(name)));
        let mut paths: Vec<PathBuf> = unused.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        paths.sort();
        paths
    }

    /// The mirror of a repository at a URL. Each URL has its own mirror, so that content of one upstream is never
    /// published as that of another.
    pub fn mirror(&self, repository: &RepositoryName, url: &str) -> PathBuf {
        self.of_upstream(repository, url, "git")
    }

    /// The unpacked archives of a repository at a URL.
    pub fn artifacts(&self, repository: &RepositoryName, url: &str) -> PathBuf {
        self.of_upstream(repository, url, "artifacts")
    }

    /// The unpacked tarballs that are parts of services.
    pub fn parts(&self) -> PathBuf {
        self.root.join("parts")
    }

    fn of_upstream(&self, repository: &RepositoryName, url: &str, ending: &str) -> PathBuf {
        let at = blake3::hash(url.as_bytes()).to_hex();
        self.mirrors().join(repository.as_str()).join(format!("{}.{ending}", &at[..16]))
    }
}

/// Removes the other directories with one of these endings beside a directory. Returns how many it removed.
pub fn remove_siblings(directory: &Path, endings: &[&str]) -> usize {
    let entries = directory.parent().and_then(|parent| std::fs::read_dir(parent).ok());
    let siblings = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    // What is under creation has a name such as `.<name>.git.new`.
    let is_removed = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        path != directory
            && ending.is_some_and(|ending| endings.contains(&ending))
            && std::fs::remove_dir_all(path).is_ok()
    };
    siblings.filter(is_removed).count()
}

/// Removes the path from an error of the file system. Temporary names differ each time, so an error with one would never
/// repeat.
pub fn without_path(error: &io::Error) -> io::Error {
    let text = error.to_string();
    let text = text.split_once(" at path ").map_or(text.as_str(), |(text, _)| text);
    error.raw_os_error().map_or_else(|| io::Error::new(error.kind(), text), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_process_gets_the_name_of_the_locked_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap().0;
        let kept = first.clone();
        drop(first);
        let error = DataDir::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&dir.path().display().to_string()) && error.contains("another process"), "{error}");
        drop(kept);
        DataDir::open(dir.path()).unwrap();
    }

    #[test]
    fn public_errors_contain_no_path() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap().0;
        let text = format!("cannot lock '{}'", data.mirrors().join("shop/x.git/packed-refs.lock").display());
        assert_eq!(data.redact(&text), "cannot lock '<data_dir>/mirrors/shop/x.git/packed-refs.lock'");

        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let data = DataDir::open(&link).unwrap().0;
        let text = format!("'{}' and '{}'", real.join("x").display(), link.join("y").display());
        assert_eq!(data.redact(&text), "'<data_dir>/x' and '<data_dir>/y'");
    }

    #[test]
    fn an_error_of_a_temporary_file_is_reported_without_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let error = tempfile::NamedTempFile::new_in(dir.path().join("gone")).unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
        let redacted = without_path(&error);
        assert_eq!(
            (redacted.kind(), redacted.to_string().as_str()),
            (io::ErrorKind::NotFound, "No such file or directory (os error 2)")
        );
    }

    #[test]
    fn a_relative_directory_is_masked_as_a_whole() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let relative = Path::new(".").join(dir.path().file_name().unwrap());
        let data = DataDir::open(&relative).unwrap().0;
        let whole = std::env::current_dir().unwrap().join(dir.path().file_name().unwrap());
        assert_eq!(data.redact(&format!("at {}", whole.join("x").display())), "at <data_dir>/x");
        assert_eq!(data.redact(&format!("at {}", data.mirrors().display())), "at <data_dir>/mirrors");
    }

    #[test]
    fn mirrors_that_nobody_configures_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap().0;
        assert!(data.unused_mirrors(&["shop"].into()).is_empty(), "no mirror at all");
        for name in ["shop", "old", "older"] {
            std::fs::create_dir_all(data.mirrors().join(name)).unwrap();
        }
        std::fs::write(data.mirrors().join("a-file"), "").unwrap();
        let unused = ["old", "older"].map(|name| data.mirrors().join(name));
        assert_eq!(data.unused_mirrors(&["shop"].into()), unused);
    }

    #[test]
    fn another_url_is_another_mirror() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap().0;
        let name: RepositoryName = "shop".parse().unwrap();
        assert_ne!(data.mirror(&name, "https://a/x"), data.mirror(&name, "https://b/x"));
        assert_eq!(data.mirror(&name, "https://a/x"), data.mirror(&name, "https://a/x"));
    }
}

//! Files and directories strictly below one directory.
//!
//! Every path is walked component by component from an open directory, following no symlink, so that neither a crafted
//! tarball nor somebody who changes the tree meanwhile can lead outside, and a path may be longer than the system takes
//! in one call.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Whatever the umask says, everybody may read a release.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// A directory, and the last directory below it that was worked in.
pub(super) struct Beneath {
    root: OwnedFd,
    last: Option<(Vec<u8>, OwnedFd)>,
}

/// Splits `a/b/c` into `a/b` and `c`.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// `a/b` and `c` joined.
pub(super) fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

impl Beneath {
    /// Everything below the directory at `path`, which is no symlink.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { root: rustix::fs::open(path, DIRECTORY | OFlags::RDONLY, Mode::empty())?, last: None })
    }

    /// Opens the directory at a path; the empty one is the root.
    fn directory(&mut self, path: &[u8]) -> io::Result<&OwnedFd> {
        if path.is_empty() {
            return Ok(&self.root);
        }
        if self.last.as_ref().is_none_or(|(last, _)| last != path) {
            let from_last = match &self.last {
                Some((last, fd)) => {
                    path.strip_prefix(last.as_slice()).and_then(|rest| rest.strip_prefix(b"/")).map(|rest| (fd, rest))
                }
                None => None,
            };
            let (base, rest) = from_last.unwrap_or((&self.root, path));
            let mut components = rest.split(|b| *b == b'/');
            let first = components.next().expect("a split has a first part");
            let mut at = open_directory(base, first)?;
            for component in components {
                at = open_directory(&at, component)?;
            }
            self.last = Some((path.to_vec(), at));
        }
        Ok(&self.last.as_ref().expect("set above").1)
    }

    /// The directory that a path is in, made with those above it where they are missing.
    fn parent(&mut self, path: &[u8]) -> io::Result<&OwnedFd> {
        let (parent, _) = split(path);
        if let Err(error) = self.directory(parent) {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            self.create_directory(parent)?;
        }
        self.directory(parent)
    }

    /// Makes a directory. It is an error when anything is there.
    pub(super) fn create_directory(&mut self, path: &[u8]) -> io::Result<()> {
        // What is missing above is made from the top: a path may have thousands of components.
        let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for ancestor in slashes.map(|at| &path[..at]).collect::<Vec<_>>() {
            match self.directory(ancestor) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.create_one_directory(ancestor)?,
                Err(error) => return Err(error),
            }
        }
        self.create_one_directory(path)
    }

    fn create_one_directory(&mut self, path: &[u8]) -> io::Result<()> {
        let (parent, name) = split(path);
        let parent = self.directory(parent)?;
        rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
        let directory = open_directory(parent, name)?;
        rustix::fs::fchmod(&directory, DIRECTORY_MODE)?;
        Ok(())
    }

    /// Makes a file with mode 0644 or 0755. It is an error when anything is there.
    pub(super) fn create_file(&mut self, path: &[u8], executable: bool) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.parent(path)?, split(path).1, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::fchmod(&file, file_mode(executable))?;
        Ok(file.into())
    }

    /// Makes a symlink. It is an error when anything is there.
    pub(super) fn create_symlink(&mut self, path: &[u8], target: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, self.parent(path)?, split(path).1)?)
    }

    /// What is at a path; `None` when nothing is.
    pub(super) fn stat(&mut self, path: &[u8]) -> io::Result<Option<Stat>> {
        let (parent, name) = split(path);
        let found = match self.directory(parent) {
            Ok(parent) => rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW),
            Err(error) => Err(Errno::from_io_error(&error).ok_or(error)?),
        };
        match found {
            Ok(stat) => Ok(Some(stat)),
            // A component is missing, or is no directory: nothing is at this path.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a regular file to read it.
    pub(super) fn open_file(&mut self, path: &[u8]) -> io::Result<File> {
        let (parent, name) = split(path);
        // NONBLOCK: a fifo that took the file's place must not stop us.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.directory(parent)?, name, flags, Mode::empty())?.into())
    }

    /// The target of a symlink.
    pub(super) fn read_link(&mut self, path: &[u8]) -> io::Result<Vec<u8>> {
        let (parent, name) = split(path);
        Ok(rustix::fs::readlinkat(self.directory(parent)?, name, Vec::new())?.into_bytes())
    }

    /// Everything below, a directory before what is in it. Ends early when `visit` says so, by `false`.
    pub(super) fn walk(&mut self, mut visit: impl FnMut(&[u8], bool) -> bool) -> io::Result<()> {
        let mut directories = vec![Vec::new()];
        while let Some(path) = directories.pop() {
            for entry in Dir::read_from(self.directory(&path)?)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                let child = join(&path, name);
                let is_directory = match entry.file_type() {
                    // Some file systems do not say it in the listing.
                    FileType::Unknown => self.stat(&child)?.is_some_and(|stat| is_type(&stat, FileType::Directory)),
                    file_type => file_type == FileType::Directory,
                };
                if !visit(&child, is_directory) {
                    return Ok(());
                }
                if is_directory {
                    directories.push(child);
                }
            }
        }
        Ok(())
    }

    /// Removes everything below.
    pub(super) fn remove_contents(&mut self) -> io::Result<()> {
        let mut files = Vec::new();
        let mut directories = Vec::new();
        self.walk(|path, is_directory| {
            if is_directory {
                directories.push(path.to_vec());
            } else {
                files.push(path.to_vec());
            }
            true
        })?;
        for path in files {
            let (parent, name) = split(&path);
            rustix::fs::unlinkat(self.directory(parent)?, name, AtFlags::empty())?;
        }
        // The walk has a directory before what is in it.
        for path in directories.into_iter().rev() {
            self.last = None;
            let (parent, name) = split(&path);
            rustix::fs::unlinkat(self.directory(parent)?, name, AtFlags::REMOVEDIR)?;
        }
        Ok(())
    }

    /// Waits until everything that was written to this file system is on disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::fs::syncfs(&self.root)?;
        #[cfg(not(target_os = "linux"))]
        rustix::fs::sync();
        Ok(())
    }
}

fn open_directory(at: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(at, name, DIRECTORY | OFlags::RDONLY, Mode::empty())?)
}

fn file_mode(executable: bool) -> Mode {
    Mode::from_raw_mode(if executable { 0o755 } else { 0o644 })
}

/// Whether a stat is of this type of file.
pub(super) fn is_type(stat: &Stat, file_type: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == file_type
}

/// Whether a stat has exactly the mode that a release gives.
pub(super) fn has_mode(stat: &Stat, executable: bool) -> bool {
    Mode::from_raw_mode(stat.st_mode) == file_mode(executable)
}

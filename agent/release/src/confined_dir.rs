//! File operations confined to one directory.
//!
//! Every path is walked component by component from an open directory without following symlinks. So neither a crafted
//! tarball nor concurrent changes can lead outside, and paths may be longer than PATH_MAX.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::modes::Modes;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory, with a cache of the last directory below it.
pub(crate) struct ConfinedDir {
    root: OwnedFd,
    modes: Modes,
    last: Option<(Vec<u8>, OwnedFd)>,
    /// The number of directories created.
    made: u64,
    /// Whether directories that cannot be read are left out.
    skips_unreadable: bool,
}

/// Splits `a/b/c` into `a/b` and `c`.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

pub(crate) fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

impl ConfinedDir {
    /// Opens the directory at `path`, which must not be a symlink.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::open_to_write(path, Modes::default())
    }

    /// The same, to create entries in it with these modes.
    pub(crate) fn open_to_write(path: &Path, modes: Modes) -> io::Result<Self> {
        let root = open_directory(rustix::fs::CWD, path)?;
        Ok(Self { root, modes, last: None, made: 0, skips_unreadable: false })
    }

    /// Visits what it can, and leaves out directories of other users.
    pub(crate) fn skip_unreadable(mut self) -> Self {
        self.skips_unreadable = true;
        self
    }

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

    /// The parent directory of a path, created if it is missing.
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

    /// Creates the parent directory of a path, if it is missing.
    pub(crate) fn create_parent(&mut self, path: &[u8]) -> io::Result<()> {
        self.parent(path).map(|_| ())
    }

    /// Creates a directory with its parents. It must not exist.
    pub(crate) fn create_directory(&mut self, path: &[u8]) -> io::Result<()> {
        // From the top and without recursion: a path may have thousands of components.
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
        let ((parent, name), mode, is_exact) = (split(path), self.modes.directory(), self.modes.group_write);
        let parent = self.directory(parent)?;
        rustix::fs::mkdirat(parent, name, mode)?;
        if is_exact {
            rustix::fs::fchmod(open_directory(parent, name)?, mode)?;
        }
        self.made += 1;
        Ok(())
    }

    /// The number of directories created, parents included.
    pub(crate) fn directories_made(&self) -> u64 {
        self.made
    }

    pub(crate) fn stat_root(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.root)?)
    }

    /// Creates a file. It must not exist.
    pub(crate) fn create_file(&mut self, path: &[u8], executable: bool) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = self.modes.file(executable);
        let file = rustix::fs::openat(self.parent(path)?, split(path).1, flags, mode)?;
        if self.modes.group_write {
            rustix::fs::fchmod(&file, mode)?;
        }
        Ok(file.into())
    }

    /// Creates a file that shares the blocks of another one. It must not exist, and does not after an error.
    #[cfg(target_os = "linux")]
    pub(crate) fn clone_file(&mut self, path: &[u8], executable: bool, of: &File) -> io::Result<()> {
        let file = self.create_file(path, executable)?;
        rustix::fs::ioctl_ficlone(&file, of).or_else(|error| {
            self.remove_file(path)?;
            Err(error.into())
        })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn clone_file(&mut self, _: &[u8], _: bool, _: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn remove_file(&mut self, path: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self.parent(path)?, split(path).1, AtFlags::empty())?)
    }

    /// Creates a hard link to the file with the same path in another directory. It must not exist.
    pub(crate) fn link_file(&mut self, path: &[u8], of: &mut Self) -> io::Result<()> {
        let (parent, name) = split(path);
        Ok(rustix::fs::linkat(of.directory(parent)?, name, self.parent(path)?, name, AtFlags::empty())?)
    }

    /// Creates a symlink. It must not exist.
    pub(crate) fn create_symlink(&mut self, path: &[u8], target: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, self.parent(path)?, split(path).1)?)
    }

    /// The metadata of a path; `None` when it does not exist.
    pub(crate) fn stat(&mut self, path: &[u8]) -> io::Result<Option<Stat>> {
        let (parent, name) = split(path);
        let found = match self.directory(parent) {
            Ok(parent) => rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW),
            Err(error) => Err(Errno::from_io_error(&error).ok_or(error)?),
        };
        match found {
            Ok(stat) => Ok(Some(stat)),
            // A missing component, or one that is no directory.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a regular file for reading.
    pub(crate) fn open_file(&mut self, path: &[u8]) -> io::Result<File> {
        let (parent, name) = split(path);
        // NONBLOCK: opening a FIFO in its place must not block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.directory(parent)?, name, flags, Mode::empty())?.into())
    }

    pub(crate) fn read_link(&mut self, path: &[u8]) -> io::Result<Vec<u8>> {
        let (parent, name) = split(path);
        Ok(rustix::fs::readlinkat(self.directory(parent)?, name, Vec::new())?.into_bytes())
    }

    /// Visits all entries, directories before their contents. Ends early when `visit` returns false.
    pub(crate) fn walk(&mut self, mut visit: impl FnMut(&[u8], bool) -> bool) -> io::Result<()> {
        // Pending directories are stored by name and parent length: in a deep tree, full paths would take most of the
        // memory.
        let mut waiting: Vec<(usize, Vec<u8>)> = vec![(0, Vec::new())];
        let mut path = Vec::new();
        while let Some((parent, name)) = waiting.pop() {
            path.truncate(parent);
            path = join(&path, &name);
            let skips = self.skips_unreadable && !path.is_empty();
            let directory = match self.directory(&path) {
                Err(error) if skips && error.kind() == io::ErrorKind::PermissionDenied => continue,
                opened => opened?,
            };
            for entry in list(directory)? {
                let (name, file_type) = entry?;
                let child = join(&path, &name);
                let is_directory = self.is_directory(&child, file_type)?;
                if !visit(&child, is_directory) {
                    return Ok(());
                }
                if is_directory {
                    waiting.push((path.len(), name));
                }
            }
        }
        Ok(())
    }

    /// The names in a directory in the order of a tarball: by their bytes, those of directories with a `/` at the end; with
    /// the bytes that they take, which must not be more than `most`.
    pub(crate) fn sorted_names(&mut self, path: &[u8], most: usize) -> io::Result<(Vec<Vec<u8>>, usize)> {
        let (mut names, mut bytes) = (Vec::new(), 0);
        for entry in list(self.directory(path)?)? {
            let (mut name, file_type) = entry?;
            if self.is_directory(&join(path, &name), file_type)? {
                name.push(b'/');
            }
            bytes += name.len() + size_of::<Vec<u8>>();
            if bytes > most {
                return Err(io::Error::other("a folder has too many names"));
            }
            names.push(name);
        }
        names.sort_unstable();
        Ok((names, bytes))
    }

    /// Some file systems do not report the type in listings.
    fn is_directory(&mut self, path: &[u8], file_type: FileType) -> io::Result<bool> {
        match file_type {
            FileType::Unknown => Ok(self.stat(path)?.is_some_and(|stat| is_type(&stat, FileType::Directory))),
            file_type => Ok(file_type == FileType::Directory),
        }
    }

    /// Removes all contents. Subdirectories are moved to the top before they are emptied, so that depth costs nothing.
    pub(crate) fn remove_contents(&mut self) -> io::Result<()> {
        self.last = None;
        let mut moved = 0u64;
        let mut directories = remove_files(&self.root)?;
        while let Some(name) = directories.pop() {
            let directory = open_directory(&self.root, &name)?;
            for below in remove_files(&directory)? {
                let mut is_permitted = false;
                directories.push(loop {
                    let top = format!(".removed-{moved}").into_bytes();
                    moved += 1;
                    match rustix::fs::renameat(&directory, &below, &self.root, &top) {
                        Ok(()) => break top,
                        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                        // Its entry for the parent changes.
                        Err(Errno::ACCESS)
                            if !std::mem::replace(&mut is_permitted, true)
                                && permit_owner(&directory, below.as_slice()).is_ok() => {}
                        Err(error) => return Err(error.into()),
                    }
                });
            }
            match rustix::fs::unlinkat(&self.root, &name, AtFlags::REMOVEDIR) {
                // It was empty, and another directory was moved to its name and removed.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until all files and directories below are on disk, and nothing else of the file system.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        let root = rustix::io::dup(&self.root)?;
        let mut walked = Self { root, modes: self.modes, last: None, made: 0, skips_unreadable: false };
        walked.walk(|path, is_directory| {
            result = if is_directory { self.sync_directory(path) } else { self.sync_file(path) };
            result.is_ok()
        })?;
        result?;
        self.sync_directory(b"")
    }

    fn sync_file(&mut self, path: &[u8]) -> io::Result<()> {
        match self.open_file(path) {
            // A symlink is an entry of its directory.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => Ok(()),
            opened => opened?.sync_all(),
        }
    }

    fn sync_directory(&mut self, path: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.directory(path)?)?)
    }
}

/// Starts to write a file to disk without waiting: many files then cost few journal commits when they are synced.
pub(crate) fn start_writing(file: &File) {
    // It is advice, and dirty pages are written before they are dropped. Without it a sync takes longer.
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

/// Opens a directory. A hook may have taken its permissions away: the owner gets them back.
fn open_directory(at: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    let open = || rustix::fs::openat(&at, name, DIRECTORY | OFlags::RDONLY, Mode::empty());
    Ok(match open() {
        Err(Errno::ACCESS) => permit_owner(&at, name).and_then(|()| open()),
        opened => opened,
    }?)
}

/// Lets the owner of a directory read, write and search it, which may have been the reason why something failed.
fn permit_owner(at: impl AsFd, name: impl Arg) -> rustix::io::Result<()> {
    let directory = rustix::fs::openat(at, name, DIRECTORY | OFlags::PATH, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&directory)?.st_mode);
    if mode.contains(Mode::RWXU) {
        return Err(Errno::ACCESS);
    }
    // By its descriptor, because what has its name may be replaced by a link; it cannot be read, and so has no other way.
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    rustix::fs::chmod(path, mode | Mode::RWXU).map_err(|_| Errno::ACCESS)
}

/// The entries of a directory without `.` and `..`.
fn list(directory: &OwnedFd) -> io::Result<impl Iterator<Item = io::Result<(Vec<u8>, FileType)>> + use<>> {
    Ok(Dir::read_from(directory)?.filter_map(|entry| match entry {
        Err(error) => Some(Err(error.into())),
        Ok(entry) => {
            let name = entry.file_name().to_bytes();
            (!matches!(name, b"." | b"..")).then(|| Ok((name.to_vec(), entry.file_type())))
        }
    }))
}

/// Removes everything but directories, whose names it returns.
fn remove_files(directory: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    // The mode may have been changed. When it cannot be restored, the removal may still work.
    let _ = rustix::fs::fchmod(directory, Mode::RWXU);
    let entries = list(directory)?.collect::<io::Result<Vec<_>>>()?;
    let mut directories = Vec::new();
    for (name, file_type) in entries {
        let is_directory = match file_type {
            FileType::Unknown => {
                is_type(&rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW)?, FileType::Directory)
            }
            file_type => file_type == FileType::Directory,
        };
        if is_directory {
            directories.push(name);
        } else {
            rustix::fs::unlinkat(directory, &name, AtFlags::empty())?;
        }
    }
    Ok(directories)
}

pub(crate) fn is_type(stat: &Stat, file_type: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == file_type
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_entries_are_visited_and_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().join("tree");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(temporary.path().join("outside"), "").unwrap();
        let mut dir = ConfinedDir::open(&root).unwrap();
        let deep = vec!["d"; 3000].join("/");
        let mut expected = Vec::new();
        // Names that the removal itself uses are among them.
        for path in ["a/b/c", "a/b/d", "a/e", ".removed-0/.removed-1/x", ".removed-2", "z/.removed-3/y/v"] {
            drop(dir.create_file(path.as_bytes(), false).unwrap());
            expected.push(path.to_owned());
        }
        drop(dir.create_file(format!("{deep}/file").as_bytes(), false).unwrap());
        dir.create_symlink(b"a/link", b"../../outside").unwrap();
        dir.create_symlink(b"a/to-directory", b"b").unwrap();
        dir.create_directory(b"empty").unwrap();
        assert_eq!(dir.directories_made(), 2 + 2 + 3 + 3000 + 1);
        let mut seen = Vec::new();
        dir.walk(|path, is_directory| {
            if !is_directory {
                seen.push(String::from_utf8(path.to_vec()).unwrap());
            }
            true
        })
        .unwrap();
        expected.extend([format!("{deep}/file"), "a/link".to_owned(), "a/to-directory".to_owned()]);
        expected.sort();
        seen.sort();
        assert_eq!(seen, expected);
        rustix::fs::chmod(root.join("a/b"), Mode::RUSR | Mode::XUSR).unwrap();
        dir.remove_contents().unwrap();
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
        assert!(temporary.path().join("outside").exists(), "no link is followed");
    }
}

//! Unpacks a verified tarball into a new directory.

use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use weir_protocol::entry_path::turning_points;

use crate::confined_dir::{ConfinedDir, is_type, start_writing};
use crate::file_system_sync::{FileSystemSync, MIN_ENTRIES};
use crate::modes::Modes;
use crate::tar_reader::{EntryKind, TarError, TarReader};
use crate::unchanged::ReleaseBefore;

/// The longest path of an entry, in bytes.
const MAX_PATH_BYTES: usize = 64 << 10;

/// The limits of a tarball.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Entries of any kind, created parent directories included.
    pub max_files: u64,
    /// Bytes of all files.
    pub max_bytes: u64,
}

/// What was unpacked.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// False: the files were synced, but an error may have been reported before, so they have to be compared.
    pub(crate) is_on_disk: bool,
    /// How long the sync took.
    pub(crate) sync: Duration,
}

/// Unpacks into the empty directory `into`. Files that are unchanged may be taken of the release `before`. After an error the caller
/// removes the directory.
///
/// # Errors
/// The tarball is malformed or hostile, or the disk fails.
pub(crate) fn unpack(
    tarball: impl Read,
    into: &Path,
    limits: Limits,
    modes: Modes,
    mut before: Option<ReleaseBefore<'_>>,
) -> Result<Unpacked, TarError> {
    // Before the first write: it gets the errors from now on.
    let file_system = FileSystemSync::open(into);
    let mut reader = TarReader::new(tarball);
    let cannot_write = |path: &[u8], error| TarError::cannot_write(into, path, error);
    let mut dir = ConfinedDir::open_to_write(into, modes).map_err(|error| cannot_write(b"", error))?;
    let (mut files, mut bytes) = (0u64, 0u64);
    let mut has_turning_points = false;
    while let Some(entry) = reader.next()? {
        let path = &entry.path;
        let refused = |reason| TarError::refused(path, reason);
        files += u64::from(entry.kind != EntryKind::Directory);
        if path.len() > MAX_PATH_BYTES {
            return Err(refused("the path is too long"));
        }
        let done = match &entry.kind {
            EntryKind::Directory => dir.create_directory(path),
            EntryKind::Symlink { target } => {
                has_turning_points |= turning_points(path, target).is_none_or(|turns| !turns.is_empty());
                dir.create_symlink(path, target)
            }
            EntryKind::File { size, executable } => {
                bytes = bytes.saturating_add(*size);
                if bytes > limits.max_bytes {
                    return Err(refused("the tarball's files are larger than `max_tarball_bytes`"));
                }
                let position = reader.position();
                let taken = match &mut before {
                    Some(before) => before.take(&mut dir, path, *executable, position, *size),
                    None => Ok(false),
                };
                taken.and_then(|taken| match taken {
                    true => Ok(()),
                    false => write_file(&mut dir, path, *executable, reader.contents()),
                })
            }
        };
        done.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => refused("the name exists already"),
            _ if is_not_a_directory(&error) => refused("a file or a symlink is in place of a directory"),
            _ => cannot_write(path, error),
        })?;
        if files + dir.directories_made() > limits.max_files {
            return Err(refused("the tarball has more entries than `max_files`"));
        }
    }
    if has_turning_points {
        check_symlinks(into, &mut dir)?;
    }
    let began = Instant::now();
    let unpacked = |is_on_disk| Unpacked { is_on_disk, sync: began.elapsed() };
    let entries = files + dir.directories_made();
    let whole = file_system.filter(|_| entries >= MIN_ENTRIES);
    let is_compared = whole.is_some();
    if whole.is_some_and(FileSystemSync::finish) {
        return Ok(unpacked(true));
    }
    dir.sync().map_err(|error| cannot_write(b"", error))?;
    Ok(unpacked(!is_compared))
}

fn write_file(dir: &mut ConfinedDir, path: &[u8], executable: bool, mut contents: impl Read) -> io::Result<()> {
    let mut file = dir.create_file(path, executable)?;
    io::copy(&mut contents, &mut file)?;
    start_writing(&file);
    Ok(())
}

/// Checks all symlinks once all entries exist, because the entries that a target passes through may come after it.
fn check_symlinks(root: &Path, dir: &mut ConfinedDir) -> Result<(), TarError> {
    let mut result = Ok(());
    ConfinedDir::open(root)?.walk(|path, is_directory| {
        result = if is_directory { Ok(()) } else { check_symlink(path, dir) };
        result.is_ok()
    })?;
    result
}

fn check_symlink(path: &[u8], dir: &mut ConfinedDir) -> Result<(), TarError> {
    fn is_link(dir: &mut ConfinedDir, path: &[u8]) -> io::Result<bool> {
        Ok(dir.stat(path)?.is_some_and(|stat| is_type(&stat, FileType::Symlink)))
    }
    if !is_link(dir, path)? {
        return Ok(());
    }
    for turn in turning_points(path, &dir.read_link(path)?).unwrap_or_default() {
        let slashes = turn.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for end in slashes.chain([turn.len()]) {
            if is_link(dir, &turn[..end])? {
                return Err(TarError::refused(path, "the symlink may leave the release"));
            }
        }
    }
    Ok(())
}

fn is_not_a_directory(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::NOTDIR | Errno::LOOP))
}

//! Unpacks a verified tarball into a new directory.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use weir_protocol::entry_path::turning_points;

use crate::confined_dir::{ConfinedDir, is_type};
use crate::file_system_sync::{FileSystemSync, MIN_ENTRIES};
use crate::tar_reader::{EntryKind, TarError, TarFile, TarReader, rewound};
use crate::writers::{Unpacking, Writers};

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

/// Unpacks into the empty directory `into`. After an error the caller removes the directory.
///
/// # Errors
/// The tarball is malformed or hostile, or the disk fails.
pub(crate) fn unpack(from: &Unpacking<'_>, limits: Limits) -> Result<Unpacked, TarError> {
    // Before the first write: it gets the errors from now on.
    let file_system = FileSystemSync::open(from.into);
    let cannot_write = |error| TarError::cannot_write(from.into, b"", error);
    let mut dir = ConfinedDir::open_to_write(from.into, from.modes).map_err(cannot_write)?;
    let Entries { count, has_turning_points } = from.with_writers(|writers| write(from, limits, &mut dir, writers))?;
    if has_turning_points {
        check_symlinks(from.into, &mut dir)?;
    }
    let began = Instant::now();
    let unpacked = |is_on_disk| Unpacked { is_on_disk, sync: began.elapsed() };
    let whole = file_system.filter(|_| count >= MIN_ENTRIES);
    let is_compared = whole.is_some();
    if whole.is_some_and(FileSystemSync::finish) {
        return Ok(unpacked(true));
    }
    dir.sync().map_err(cannot_write)?;
    Ok(unpacked(!is_compared))
}

/// What a tarball has.
struct Entries {
    /// With the directories that have no entry.
    count: u64,
    /// Whether symlinks have to be checked when all are there.
    has_turning_points: bool,
}

/// Makes directories and symlinks in their order, and leaves files to the writers.
fn write(from: &Unpacking<'_>, limits: Limits, dir: &mut ConfinedDir, to: &mut Writers) -> Result<Entries, TarError> {
    let mut reader = TarReader::new(rewound(from.tarball)?);
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
            EntryKind::File { size, .. } => {
                bytes = bytes.saturating_add(*size);
                if bytes > limits.max_bytes {
                    return Err(refused("the tarball's files are larger than `max_tarball_bytes`"));
                }
                dir.create_parent(path)
            }
        };
        done.map_err(|error| TarError::of_entry(from.into, path, error))?;
        if files + dir.directories_made() > limits.max_files {
            return Err(refused("the tarball has more entries than `max_files`"));
        }
        if let EntryKind::File { size, executable } = entry.kind {
            let file = TarFile { path: entry.path, executable, position: reader.position(), size };
            if !to.write(file) {
                break;
            }
        }
    }
    Ok(Entries { count: files + dir.directories_made(), has_turning_points })
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

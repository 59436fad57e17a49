//! Compares a verified tarball with the files unpacked from it.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::FileType;
use rustix::io::Errno;
use weir_protocol::entry_path::percent_encode;

use crate::confined_dir::{ConfinedDir, is_type};
use crate::modes::{Modes, ReleaseModes};
use crate::tar_reader::{Entry, EntryKind, TarError, TarReader};

/// The first difference found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path, percent-encoded where it is not text.
    pub path: String,
    /// The kind of difference.
    pub what: &'static str,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.path, self.what)
    }
}

/// Compares contents, types, permissions and symlink targets, and looks for missing and extra entries. `None`: no
/// difference.
///
/// # Errors
/// The tarball is malformed, or the disk fails.
pub(crate) fn compare(tarball: impl Read, with: &Path, modes: Modes) -> Result<Option<Difference>, TarError> {
    let difference = |path: &[u8], what| Some(Difference { path: percent_encode(path), what });
    let mut dir = match ConfinedDir::open(with) {
        Ok(dir) => dir,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(difference(b".", "the release is missing"));
        }
        Err(error) if is_damage(&error) => return Ok(difference(b".", UNREADABLE)),
        Err(error) => return Err(error.into()),
    };
    let Some(modes) = modes.of_release(&dir.stat_root()?) else {
        return Ok(difference(b".", "its mode was changed"));
    };
    let mut reader = TarReader::new(tarball);
    // Hashes, because paths may be long and each has parents.
    let mut expected = HashSet::new();
    while let Some(entry) = reader.next()? {
        match compare_entry(&entry, &mut reader, &mut dir, modes) {
            Ok(None) => {}
            Ok(Some(what)) => return Ok(difference(&entry.path, what)),
            Err(CompareError::Release(error)) if is_damage(&error) => return Ok(difference(&entry.path, UNREADABLE)),
            Err(CompareError::Release(error) | CompareError::Tarball(error)) => return Err(error.into()),
        }
        // Parents count as expected, also when the tarball does not name them.
        let ends = entry.path.iter().enumerate().rev().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for end in ends {
            if !expected.insert(blake3::hash(&entry.path[..end])) {
                break;
            }
        }
        expected.insert(blake3::hash(&entry.path));
    }
    let mut extra = None;
    let walked = dir.walk(|path, _| {
        if !expected.contains(&blake3::hash(path)) {
            extra = Some(path.to_vec());
        }
        extra.is_none()
    });
    match walked {
        Err(error) if is_damage(&error) => return Ok(difference(b".", UNREADABLE)),
        walked => walked?,
    }
    Ok(extra.and_then(|path| difference(&path, "it is not in the tarball")))
}

const UNREADABLE: &str = "it cannot be read";

/// Whether an I/O error says nothing about files: another process may have used up what it needs.
pub(crate) fn is_exhaustion(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some() && !is_damage(error)
}

enum CompareError {
    Tarball(io::Error),
    Release(io::Error),
}

/// Whether an I/O error means damaged files rather than exhausted resources.
fn is_damage(error: &io::Error) -> bool {
    let damage =
        [Errno::IO, Errno::ACCESS, Errno::PERM, Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::ISDIR, Errno::BADMSG];
    Errno::from_io_error(error).is_some_and(|errno| damage.contains(&errno))
}

fn compare_entry<R: Read>(
    entry: &Entry,
    reader: &mut TarReader<R>,
    dir: &mut ConfinedDir,
    modes: ReleaseModes,
) -> Result<Option<&'static str>, CompareError> {
    let Some(stat) = dir.stat(&entry.path).map_err(CompareError::Release)? else {
        return Ok(Some("it is missing"));
    };
    Ok(match &entry.kind {
        EntryKind::Directory if !is_type(&stat, FileType::Directory) => Some("it is no directory"),
        EntryKind::Directory => (!modes.is_of_directory(&stat)).then_some("its mode was changed"),
        EntryKind::Symlink { .. } if !is_type(&stat, FileType::Symlink) => Some("it is no symlink"),
        EntryKind::Symlink { target } => {
            let found = dir.read_link(&entry.path).map_err(CompareError::Release)?;
            (found != *target).then_some("its target was changed")
        }
        EntryKind::File { .. } if !is_type(&stat, FileType::RegularFile) => Some("it is no file"),
        EntryKind::File { executable, .. } if !modes.is_of_file(&stat, *executable) => Some("its mode was changed"),
        EntryKind::File { size, .. } if u64::try_from(stat.st_size) != Ok(*size) => Some("its size was changed"),
        EntryKind::File { .. } => {
            let file = dir.open_file(&entry.path).map_err(CompareError::Release)?;
            (!equal(reader.contents(), file)?).then_some("its contents were changed")
        }
    })
}

/// Whether an entry and a file have the same contents.
fn equal(mut tarball: impl Read, mut file: impl Read) -> Result<bool, CompareError> {
    const PART: usize = 64 << 10;
    let (mut a, mut b) = (Vec::with_capacity(PART), Vec::with_capacity(PART));
    loop {
        a.clear();
        b.clear();
        tarball.by_ref().take(PART as u64).read_to_end(&mut a).map_err(CompareError::Tarball)?;
        file.by_ref().take(PART as u64).read_to_end(&mut b).map_err(CompareError::Release)?;
        if a != b {
            return Ok(false);
        }
        if a.is_empty() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken(Errno);

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
    }

    #[test]
    fn an_unreadable_file_is_a_difference() {
        let error = equal(&b"a"[..], Broken(Errno::IO)).err();
        assert!(matches!(error, Some(CompareError::Release(error)) if is_damage(&error)));
        let error = equal(&b"a"[..], Broken(Errno::MFILE)).err();
        assert!(
            matches!(error, Some(CompareError::Release(error)) if !is_damage(&error)),
            "exhausted resources are no damage"
        );
        assert!(matches!(equal(Broken(Errno::IO), &b"a"[..]), Err(CompareError::Tarball(_))));
    }
}

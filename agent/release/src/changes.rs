//! The paths that differ between two releases, for hooks.

use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use rustix::fs::{FileType, Mode, Stat};
use serde::Serialize;
use tempfile::NamedTempFile;
use weir_protocol::entry_path::percent_encode;

use crate::confined_dir::{ConfinedDir, is_type};

/// The changes that are kept in memory besides the file.
const MAX_FIRST: usize = 1_000;

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    Added,
    Changed,
    Removed,
}

/// One line of the file: a file or a symlink. Directories are not listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileChange {
    pub change: ChangeKind,
    /// Percent-encoded where it is not printable text.
    pub path: String,
}

/// The differences between two releases.
#[derive(Debug)]
pub struct Changes {
    /// One JSON object per line. It is removed when this is dropped.
    pub file: NamedTempFile,
    /// How many there are.
    pub total: u64,
    /// The first ones, at most 1,000.
    pub first: Vec<FileChange>,
}

/// Writes the differences into a new file in `incoming`. Without `before`, or when it is gone, all paths are added. Reads
/// the files of both that have the same size.
pub(crate) fn changes(before: Option<&Path>, after: &Path, incoming: &Path) -> io::Result<Changes> {
    let file = NamedTempFile::with_prefix_in("changes-", incoming)?;
    let mut out = BufWriter::new(file);
    let (mut total, mut first) = (0, Vec::new());
    compare(before, after, |change, path| {
        let change = FileChange { change, path: percent_encode(path) };
        serde_json::to_writer(&mut out, &change)?;
        out.write_all(b"\n")?;
        total += 1;
        if first.len() < MAX_FIRST {
            first.push(change);
        }
        Ok(())
    })?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(Changes { file, total, first })
}

fn compare(
    before: Option<&Path>,
    after: &Path,
    mut report: impl FnMut(ChangeKind, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let open = |path| match ConfinedDir::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    };
    let mut old = before.map_or(Ok(None), open)?;
    let mut new = ConfinedDir::open(after)?;
    each_file(after, |path| match &mut old {
        None => report(ChangeKind::Added, path),
        Some(old) => match old.stat(path).or_else(|error| if is_denied(&error) { Ok(None) } else { Err(error) })? {
            Some(stat) if !is_type(&stat, FileType::Directory) => {
                if differs(path, old, &stat, &mut new)? {
                    report(ChangeKind::Changed, path)
                } else {
                    Ok(())
                }
            }
            _ => report(ChangeKind::Added, path),
        },
    })?;
    let Some(before) = before.filter(|_| old.is_some()) else { return Ok(()) };
    each_file(before, |path| match new.stat(path) {
        Ok(Some(stat)) if !is_type(&stat, FileType::Directory) => Ok(()),
        Ok(_) => report(ChangeKind::Removed, path),
        // It is there, in a folder that a hook gave away.
        Err(error) if is_denied(&error) => Ok(()),
        Err(error) => Err(error),
    })
}

/// Visits everything but directories.
fn each_file(root: &Path, mut visit: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut result = Ok(());
    ConfinedDir::open(root)?.skip_unreadable().walk(|path, is_directory| {
        if !is_directory {
            result = visit(path);
        }
        result.is_ok()
    })?;
    result
}

fn differs(path: &[u8], old: &mut ConfinedDir, was: &Stat, new: &mut ConfinedDir) -> io::Result<bool> {
    let Some(is) = new.stat(path)? else { return Ok(true) };
    if was.st_nlink > 1 && (was.st_dev, was.st_ino) == (is.st_dev, is.st_ino) {
        return Ok(false);
    }
    if FileType::from_raw_mode(was.st_mode) != FileType::from_raw_mode(is.st_mode) {
        return Ok(true);
    }
    if is_type(&is, FileType::Symlink) {
        return Ok(old.read_link(path)? != new.read_link(path)?);
    }
    let executable = |stat: &Stat| Mode::from_raw_mode(stat.st_mode).contains(Mode::XUSR);
    if executable(was) != executable(&is) || was.st_size != is.st_size {
        return Ok(true);
    }
    match (old.open_file(path), new.open_file(path)) {
        (Ok(old), Ok(new)) => Ok(!equal(old, new)?),
        // Its mode was changed, at least.
        (Err(error), _) | (_, Err(error)) if is_denied(&error) => Ok(true),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// A hook may have given a file to another user, or taken its permissions away.
fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn equal(mut a: impl Read, mut b: impl Read) -> io::Result<bool> {
    const PART: u64 = 64 << 10;
    let (mut left, mut right) = (Vec::new(), Vec::new());
    loop {
        left.clear();
        right.clear();
        a.by_ref().take(PART).read_to_end(&mut left)?;
        b.by_ref().take(PART).read_to_end(&mut right)?;
        if left != right || left.is_empty() {
            return Ok(left == right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn every_kind_of_change_is_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for release in ["old", "new"] {
            fs::create_dir_all(at(release).join("sub")).unwrap();
            fs::write(at(release).join("same"), "same").unwrap();
            fs::write(at(release).join("run"), "run").unwrap();
            symlink("same", at(release).join("link")).unwrap();
        }
        fs::write(at("old/text"), "one").unwrap();
        fs::write(at("new/text"), "two").unwrap();
        fs::set_permissions(at("new/run"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::remove_file(at("new/link")).unwrap();
        symlink("text", at("new/link")).unwrap();
        // A directory in place of a file, and the other way round.
        fs::write(at("old/turned"), "").unwrap();
        fs::create_dir(at("new/turned")).unwrap();
        fs::write(at("new/turned/in"), "").unwrap();
        fs::create_dir(at("old/back")).unwrap();
        fs::write(at("new/back"), "").unwrap();
        fs::write(at("old/sub/gone"), "").unwrap();
        fs::write(at("new/sub").join(std::ffi::OsStr::from_bytes(b"odd\n\xff")), "").unwrap();

        let changes = changes(Some(&at("old")), &at("new"), dir.path()).unwrap();
        let text = fs::read_to_string(changes.file.path()).unwrap();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                r#"{"change":"added","path":"back"}"#,
                r#"{"change":"added","path":"sub/odd%0A%FF"}"#,
                r#"{"change":"added","path":"turned/in"}"#,
                r#"{"change":"changed","path":"link"}"#,
                r#"{"change":"changed","path":"run"}"#,
                r#"{"change":"changed","path":"text"}"#,
                r#"{"change":"removed","path":"sub/gone"}"#,
                r#"{"change":"removed","path":"turned"}"#,
            ]
        );
        assert_eq!((changes.total, changes.first.len()), (8, 8));
        // Without an older release, everything is new.
        let all = super::changes(Some(&at("pruned")), &at("new"), dir.path()).unwrap();
        assert!(all.total == 7 && all.first.iter().all(|change| change.change == ChangeKind::Added), "{all:?}");
        assert_eq!(super::changes(None, &at("new"), dir.path()).unwrap().total, 7);
    }
}

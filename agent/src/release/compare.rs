//! Compares a verified tarball with the files that were unpacked from it.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::FileType;
use weir_shared::entry_path::percent_encode;

use super::beneath::{Beneath, has_mode, is_type};
use super::tar_reader::{Entry, Kind, TarError, TarReader};

/// The first difference that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Where; what is not text percent-encoded.
    pub(crate) path: String,
    /// What is the matter there.
    pub(crate) what: &'static str,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.path, self.what)
    }
}

/// Contents, types, modes, targets of links, what is missing and what is there besides. `None`: they are equal.
///
/// # Errors
/// The tarball is not one, or the disk fails.
pub(super) fn compare(tarball: impl Read, with: &Path) -> Result<Option<Difference>, TarError> {
    let difference = |path: &[u8], what| Some(Difference { path: percent_encode(path), what });
    let mut beneath = match Beneath::open(with) {
        Ok(beneath) => beneath,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(difference(b".", "the release is missing"));
        }
        Err(error) => return Err(error.into()),
    };
    let mut reader = TarReader::new(tarball);
    let mut expected = HashSet::new();
    while let Some(entry) = reader.next()? {
        if let Some(what) = compare_entry(&entry, &mut reader, &mut beneath)? {
            return Ok(difference(&entry.path, what));
        }
        // The directories above stand for themselves, also where the tarball does not name them.
        let ends = entry.path.iter().enumerate().rev().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for end in ends {
            if !expected.insert(entry.path[..end].to_vec()) {
                break;
            }
        }
        expected.insert(entry.path);
    }
    let mut extra = None;
    beneath.walk(|path, _| {
        if !expected.contains(path) {
            extra = Some(path.to_vec());
        }
        extra.is_none()
    })?;
    Ok(extra.and_then(|path| difference(&path, "it is not in the tarball")))
}

fn compare_entry<R: Read>(
    entry: &Entry,
    reader: &mut TarReader<R>,
    beneath: &mut Beneath,
) -> Result<Option<&'static str>, TarError> {
    let Some(stat) = beneath.stat(&entry.path)? else { return Ok(Some("it is missing")) };
    Ok(match &entry.kind {
        Kind::Directory if !is_type(&stat, FileType::Directory) => Some("it is no directory"),
        Kind::Directory => (!has_mode(&stat, true)).then_some("its mode was changed"),
        Kind::Symlink { .. } if !is_type(&stat, FileType::Symlink) => Some("it is no symlink"),
        Kind::Symlink { target } => (beneath.read_link(&entry.path)? != *target).then_some("its target was changed"),
        Kind::File { .. } if !is_type(&stat, FileType::RegularFile) => Some("it is no file"),
        Kind::File { executable, .. } if !has_mode(&stat, *executable) => Some("its mode was changed"),
        Kind::File { size, .. } if u64::try_from(stat.st_size) != Ok(*size) => Some("its size was changed"),
        Kind::File { .. } => {
            let file = beneath.open_file(&entry.path)?;
            (!equal(reader.contents(), file)?).then_some("its contents were changed")
        }
    })
}

/// Whether two readers have the same bytes to the end.
fn equal(mut one: impl Read, mut other: impl Read) -> io::Result<bool> {
    const PART: usize = 64 << 10;
    let (mut a, mut b) = (Vec::with_capacity(PART), Vec::with_capacity(PART));
    loop {
        a.clear();
        b.clear();
        one.by_ref().take(PART as u64).read_to_end(&mut a)?;
        other.by_ref().take(PART as u64).read_to_end(&mut b)?;
        if a != b {
            return Ok(false);
        }
        if a.is_empty() {
            return Ok(true);
        }
    }
}

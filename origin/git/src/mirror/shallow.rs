//! Shallow commits: those whose parents a mirror lacks, because its upstream is a shallow clone.
//!
//! A walk over the history ends at them. An upstream may declare only newly fetched commits as shallow: of a stored
//! commit it would hide existing parents, and for an unknown commit no upstream would send the parents later.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use gix::ObjectId;

/// The file that lists shallow commits, in a mirror and in a quarantine.
pub(super) const FILE: &str = "shallow";

/// Copies the mirror's list to a quarantine, where the fetch changes it.
pub(super) fn copy(mirror: &Path, quarantine: &Path) -> io::Result<()> {
    ignore_missing(fs::copy(mirror.join(FILE), quarantine.join(FILE)).map(drop))
}

/// Reduces a quarantine's list to the mirror's entries and newly fetched commits. `both`: the mirror with the
/// quarantine.
pub(super) fn merge(mirror: &gix::Repository, both: &gix::Repository, quarantine: &Path) -> io::Result<()> {
    let (mut commits, reported) = (read(&mirror.git_dir().join(FILE))?, read(&quarantine.join(FILE))?);
    commits.extend(reported.into_iter().filter(|id| both.has_object(*id) && !mirror.has_object(*id)));
    if commits.is_empty() {
        return ignore_missing(fs::remove_file(quarantine.join(FILE)));
    }
    let lines: String = commits.iter().map(|id| format!("{id}\n")).collect();
    fs::write(quarantine.join(FILE), lines)
}

/// Replaces the mirror's list by the quarantine's.
pub(super) fn install(quarantine: &Path, mirror: &Path) -> io::Result<()> {
    let list = quarantine.join(FILE);
    ignore_missing(fs::File::open(&list).and_then(|file| file.sync_all()))?;
    ignore_missing(fs::rename(list, mirror.join(FILE)))
}

fn read(file: &Path) -> io::Result<BTreeSet<ObjectId>> {
    let text = match fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        text => text?,
    };
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| ObjectId::from_hex(line).map_err(|error| io::Error::other(error.to_string()))).collect()
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

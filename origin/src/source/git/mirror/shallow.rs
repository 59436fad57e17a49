//! Commits whose parents a mirror goes without, because its upstream is a shallow clone.
//!
//! Whoever goes through the history ends at them. So the upstream's word is taken of commits alone that come with it. Of one
//! that the mirror has, it would hide the parents; of one that is still to come, no upstream would send them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use gix::ObjectId;

/// Where they are listed, in a mirror and in a quarantine.
pub(super) const FILE: &str = "shallow";

/// Lists in a quarantine those of the mirror, for the upstream to change.
pub(super) fn copy(mirror: &Path, quarantine: &Path) -> io::Result<()> {
    ignore_missing(fs::copy(mirror.join(FILE), quarantine.join(FILE)).map(drop))
}

/// Keeps of a quarantine's list what may be reported, once it was fetched: what the mirror knows, and what came. `both`: the mirror
/// with what came.
pub(super) fn merge(mirror: &gix::Repository, both: &gix::Repository, quarantine: &Path) -> io::Result<()> {
    let (mut kept, reported) = (read(&mirror.git_dir().join(FILE))?, read(&quarantine.join(FILE))?);
    kept.extend(reported.into_iter().filter(|id| both.has_object(*id) && !mirror.has_object(*id)));
    if kept.is_empty() {
        return ignore_missing(fs::remove_file(quarantine.join(FILE)));
    }
    let lines: String = kept.iter().map(|id| format!("{id}\n")).collect();
    fs::write(quarantine.join(FILE), lines)
}

/// Lists in the mirror what a quarantine does.
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

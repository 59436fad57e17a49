//! Whether the file of what operators defined is where it must be.
//!
//! It is made before the database of publications, so that one without the other is a loss: a copy that was put back by
//! halves, a file that somebody deleted. An origin that began anew then would take what agents follow for deleted.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use super::store::Store;
use crate::data_dir::DataDir;

/// Whether there was one. Of what cannot be looked at others tell.
pub(crate) fn is_lost(root: &Path) -> bool {
    let is_gone = DataDir::catalog_in(root).try_exists().is_ok_and(|is_there| !is_there);
    is_gone && DataDir::state_in(root).try_exists().is_ok_and(|is_there| is_there)
}

/// Refuses to go on without it, or with one that lost every byte.
///
/// # Errors
/// It is gone or empty: what is to be done.
pub fn ensure_there(root: &Path) -> anyhow::Result<()> {
    let path = DataDir::catalog_in(root);
    let is_empty = fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == 0);
    let wrong = match (is_empty, is_lost(root)) {
        (true, _) => "is empty",
        (_, true) => "is not there, although state.redb is",
        _ => return Ok(()),
    };
    bail!(
        "{} {wrong}: what operators defined would be taken for deleted. Put back a copy of it; or, when there is none or \
         operators never defined anything, run `weir-origin new-catalog --config FILE`",
        path.display()
    )
}

/// Makes an empty one in a data directory, where there is none or one without a byte: what operators defined before is
/// withdrawn when the origin starts.
///
/// # Errors
/// An origin runs on the directory, there is one, or it cannot be written.
pub fn begin_anew(root: &Path) -> anyhow::Result<()> {
    let (data_dir, _) = DataDir::open(root)?;
    let path = data_dir.catalog();
    match fs::metadata(&path) {
        Ok(found) => {
            ensure!(found.len() == 0, "{} is there: move it away first if it is to be given up", path.display());
            fs::remove_file(&path).with_context(|| format!("{} cannot be removed", path.display()))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {}
        Err(error) => return Err(error).with_context(|| format!("{} cannot be looked at", path.display())),
    }
    Store::open(data_dir).with_context(|| format!("{} cannot be made", path.display()))?;
    Ok(())
}

//! Which LFS objects a tarball needs.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use gix::Repository;
use weir_shared::commit_id::CommitId;
use weir_shared::entry_path;

use super::size::Size;
use super::walk::{EntryContent, walk};
use super::{Limits, Selection, TarballError, folder};
use crate::lfs::LfsFile;

/// The objects that the tarball of a selection at a commit needs, each once. They are none unless the selection asks for
/// them.
///
/// # Errors
/// As of [`super::build`]: a tarball that would be too large is refused before anything is fetched.
pub fn lfs_files(
    repo: &Repository,
    commit: &CommitId,
    selection: &Selection,
    limits: &Limits,
    interrupt: &AtomicBool,
) -> Result<Vec<LfsFile>, TarballError> {
    if !selection.lfs {
        return Ok(Vec::new());
    }
    let folder = folder::find(repo, commit, &selection.folder)?;
    let (mut size, mut files) = (Size::new(limits), HashMap::new());
    walk(repo, folder, selection, (limits, interrupt), &mut |entry| {
        size.add(&entry)?;
        if let EntryContent::Lfs { pointer, .. } = entry.kind {
            files.entry(pointer).or_insert_with(|| entry_path::percent_encode(&entry.path));
        }
        Ok(())
    })?;
    let mut files: Vec<_> = files.into_iter().map(|(pointer, path)| LfsFile { path, pointer }).collect();
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

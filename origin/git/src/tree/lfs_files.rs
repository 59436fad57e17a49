//! The LFS objects of a tarball.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use gix::Repository;
use weir_protocol::commit_id::CommitId;
use weir_protocol::entry_path;
use weir_tarball::{EntryKind, Limits, Selection, TarballError, walk};

use super::contents::{GitFile, GitTree};
use crate::lfs::LfsFile;

/// The LFS objects of a selection at a commit, each once. Empty if the selection excludes LFS.
///
/// # Errors
/// Those of [`weir_tarball::build`]: a tarball that exceeds its limits is refused before any object is fetched.
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
    let tree = GitTree { repository: repo.clone(), commit: commit.clone(), selection, lfs: None };
    let mut files = HashMap::new();
    walk(&tree, selection, (limits, interrupt), &mut |entry| {
        if let EntryKind::File { file: GitFile::Lfs(pointer), .. } = entry.kind {
            files.entry(pointer).or_insert_with(|| entry_path::percent_encode(&entry.path));
        }
        Ok(())
    })?;
    let mut files: Vec<_> = files.into_iter().map(|(pointer, path)| LfsFile { path, pointer }).collect();
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

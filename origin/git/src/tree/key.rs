//! The content key of a folder at a commit.

use gix::Repository;
use weir_protocol::commit_id::CommitId;
use weir_protocol::name::RepositoryName;
use weir_tarball::{ContentKey, Selection, TarballError};

use super::folder;

/// The key of a selection at a commit. Reads one tree per component of the folder's path, which takes microseconds, or with hostile attributes a second.
///
/// # Errors
/// The folder does not exist or the mirror is damaged.
pub fn content_key(
    repo: &Repository,
    commit: &CommitId,
    repository: &RepositoryName,
    selection: &Selection,
) -> Result<ContentKey, TarballError> {
    let folder = folder::find(repo, commit, &selection.folder)?;
    Ok(ContentKey::new(repository, selection, |key| {
        key.field(folder.tree.as_slice());
        key.field(&[u8::from(folder.export_ignored)]);
        key.list(folder.attribute_files.iter().flat_map(|(path, id)| [path.as_bytes(), id.as_slice()]));
    }))
}

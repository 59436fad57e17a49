//! Why a release could not be put on disk.

use std::io;
use std::path::{Path, PathBuf};

use super::state::StateError;
use super::tar_reader::TarError;

/// Why a release could not be put on disk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReleaseError {
    /// Something that is not ours stands where the link should.
    #[error("{} is not a symlink that this agent made ({found}); move it away", path.display())]
    InTheWay { path: PathBuf, found: String },
    /// The disk.
    #[error("cannot {doing} {}: {source}", path.display())]
    Disk { doing: &'static str, path: PathBuf, source: io::Error },
    /// The tarball.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// The state file of another version.
    #[error("{}: {source}", path.display())]
    State { path: PathBuf, source: StateError },
}

/// Says what was being done to which path when the disk failed.
pub(super) fn disk(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReleaseError {
    let path = path.to_owned();
    move |source| ReleaseError::Disk { doing, path, source }
}

//! Why a release could not be written.

use std::io;
use std::path::{Path, PathBuf};

use weir_protocol::digest::TarballDigest;

use super::tar_reader::TarError;

/// Why a release could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReleaseError {
    /// `current` is not a symlink of an agent.
    #[error("{} is not a symlink of this agent ({found}); move it away", path.display())]
    InTheWay { path: PathBuf, found: String },
    #[error("cannot {operation} {}: {source}", path.display())]
    Disk { operation: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Tar(#[from] TarError),
    /// A rollback to a release that was pruned, or removed by somebody.
    #[error("the release {digest} is not on disk any more: choose another one, or `weir-agent unpin` the service")]
    NotKept { digest: TarballDigest },
}

/// An I/O error with the operation and the path.
pub(super) fn disk(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReleaseError {
    let path = path.to_owned();
    move |source| ReleaseError::Disk { operation, path, source }
}

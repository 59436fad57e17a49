//! Why a release could not be written.

use std::io;
use std::path::{Path, PathBuf};

use weir_protocol::digest::TarballDigest;

use crate::tar_reader::TarError;

/// Why a release could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// Something that no agent has made is where its files belong.
    #[error("{} is in the way: it {found}; move it away", path.display())]
    InTheWay {
        /// Where it is.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// The disk does not do what it should.
    #[error("cannot {operation} {}: {source}", path.display())]
    Disk {
        /// A verb.
        operation: &'static str,
        /// What it was about.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The tarball cannot be unpacked.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// The pin cannot be read: whether the service stays where it is would be a guess.
    #[error("{0}")]
    Pin(String),
    /// A rollback to a release that was pruned, or removed or changed by somebody.
    #[error(
        "the release {digest} is no longer on disk as it was, and no edge has it: choose another one, or `weir-agent unpin` \
         the service"
    )]
    NotKept {
        /// Its digest.
        digest: TarballDigest,
    },
}

/// An I/O error with the operation and the path.
pub(crate) fn disk(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReleaseError {
    let path = path.to_owned();
    move |source| ReleaseError::Disk { operation, path, source }
}

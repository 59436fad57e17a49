//! Why LFS objects could not be had.

use std::time::Duration;

use crate::source::git::lfs::LfsWriteError;
use crate::source::git::lfs::batch::BatchError;
use crate::source::git::mirror::MirrorError;

/// Why LFS objects could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LfsError {
    /// There is no API to be asked at such a URL.
    #[error(
        "the LFS objects cannot be asked for at `{url}`: that is done over https:// (and http://) only. Over SSH it would \
         take `git-lfs-authenticate`, which is not supported: use the repository's https:// URL, or `lfs = false`"
    )]
    NoApi {
        /// Without user info.
        url: String,
    },
    /// An object is larger than is taken.
    #[error("the LFS object of `{path}` has {size} bytes, more than `[upstreams] max_lfs_object` = {limit} allows")]
    TooLarge {
        /// Below the folder.
        path: String,
        /// By its pointer.
        size: u64,
        /// [`max_lfs_object`](crate::source::Upstream::max_lfs_object).
        limit: u64,
    },
    /// The upstream's API cannot be asked.
    #[error("the LFS objects cannot be asked for: {0}")]
    Api(MirrorError),
    /// There is no API where it should be.
    #[error("the upstream has no LFS API for this repository, or shows it to others only: {0}")]
    NotFound(String),
    /// What it answers cannot be used.
    #[error("the LFS objects cannot be asked for: {0}")]
    Answer(#[from] BatchError),
    /// It does not give an object.
    #[error("the upstream does not give the LFS object of `{path}`: {reason}")]
    Refused {
        /// Below the folder.
        path: String,
        /// In its own words.
        reason: String,
    },
    /// It is not where the API says that it is.
    #[error(
        "the LFS object of `{path}` is not where the upstream's API says that it is: the answer there was {status}"
    )]
    Withheld {
        /// Below the folder.
        path: String,
        /// What was answered there.
        status: u16,
    },
    /// It is said to be where no storage is asked.
    #[error(
        "the LFS object of `{path}` is said to be at `{host}`, which has no public address: name that host in `redirects` \
         of the repository (in the configuration file), or in `[upstreams] hosts`"
    )]
    NotPublic {
        /// Below the folder.
        path: String,
        /// Where.
        host: String,
    },
    /// An object cannot be downloaded.
    #[error("the LFS object of `{path}` cannot be fetched: {cause}")]
    Download {
        /// Below the folder.
        path: String,
        /// What went wrong.
        cause: MirrorError,
    },
    /// An object comes too slowly.
    #[error(
        "the LFS object of `{path}` cannot be fetched: {bytes} bytes of it came within {} s, and `[upstreams] min_rate` \
         = {min_rate} in a second",
        .within.as_secs()
    )]
    TooSlow {
        /// Below the folder.
        path: String,
        /// That came.
        bytes: u64,
        /// In which time.
        within: Duration,
        /// [`min_rate`](crate::source::Upstream::min_rate).
        min_rate: u64,
    },
    /// What came is not the object, or cannot be stored.
    #[error("the LFS object of `{path}` is not kept: {cause}")]
    Object {
        /// Below the folder.
        path: String,
        /// What is wrong with it.
        cause: LfsWriteError,
    },
}

impl LfsError {
    /// How long the upstream, or a storage, asks to be left alone, a day at the most.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Api(cause) | Self::Download { cause, .. } => cause.retry_after(),
            _ => None,
        }
    }

    /// Whether somebody asked to stop.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Api(MirrorError::Interrupted) | Self::Download { cause: MirrorError::Interrupted, .. })
    }

    /// Whether other objects cannot be had either: it is not about one of them alone.
    pub(super) fn is_fatal(&self) -> bool {
        match self {
            Self::NoApi { .. } | Self::Api(_) | Self::NotFound(_) | Self::Answer(_) => true,
            Self::Object { cause, .. } => matches!(cause, LfsWriteError::Store(_)),
            Self::Download { .. } => self.is_interrupted() || self.retry_after().is_some(),
            Self::TooLarge { .. }
            | Self::Refused { .. }
            | Self::Withheld { .. }
            | Self::NotPublic { .. }
            | Self::TooSlow { .. } => false,
        }
    }
}

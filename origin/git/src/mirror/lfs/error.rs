use std::time::Duration;

use weir_upstream::UpstreamError;

use crate::lfs::LfsWriteError;
use crate::lfs::batch::BatchError;

/// Why LFS objects could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum LfsError {
    /// The upstream's URL has no LFS API.
    #[error(
        "`{url}` has no LFS API: it needs https:// (or http://). `git-lfs-authenticate` over SSH is not supported: use the \
         repository's https:// URL, or set `lfs = false`"
    )]
    NoApi {
        /// The upstream's URL, without user info.
        url: String,
    },
    /// The object exceeds the size limit.
    #[error("the LFS object of `{path}` has {size} bytes, but `[upstreams] max_lfs_object` = {limit}")]
    TooLarge {
        /// The path below the folder.
        path: String,
        /// The size in the pointer, in bytes.
        size: u64,
        /// [`max_lfs_object`](weir_upstream::UpstreamsConfig::max_lfs_object).
        limit: u64,
    },
    /// A request to the upstream's LFS API failed.
    #[error("the request to the LFS API failed: {0}")]
    Api(UpstreamError),
    /// The upstream has no LFS API at its URL.
    #[error("the upstream has no LFS API for this repository, or hides it without the right credentials: {0}")]
    NotFound(String),
    /// The response of the LFS API is invalid.
    #[error("the request to the LFS API failed: {0}")]
    Answer(#[from] BatchError),
    /// The upstream does not provide the object.
    #[error("the upstream does not provide the LFS object of `{path}`: {reason}")]
    Refused {
        /// The path below the folder.
        path: String,
        /// The upstream's message.
        reason: String,
    },
    /// The location of an object returned a client error.
    #[error("the LFS object of `{path}` is not at the URL from the LFS API: the response there was {status}")]
    Withheld {
        /// The path below the folder.
        path: String,
        /// The HTTP status.
        status: u16,
    },
    /// The location of an object has no public address.
    #[error(
        "the LFS object of `{path}` is at `{host}`, which has no public address: add that host to `redirects` of the \
         repository (in the configuration file), or to `[upstreams] hosts`"
    )]
    NotPublic {
        /// The path below the folder.
        path: String,
        /// The host.
        host: String,
    },
    /// The download failed.
    #[error("the LFS object of `{path}` cannot be fetched: {cause}")]
    Download {
        /// The path below the folder.
        path: String,
        /// The cause.
        cause: UpstreamError,
    },
    /// The download is slower than the minimum rate.
    #[error(
        "the LFS object of `{path}` cannot be fetched: it was too slow, {bytes} bytes in {} s; `[upstreams] min_rate` = \
         {min_rate} bytes per second",
        .within.as_secs()
    )]
    TooSlow {
        /// The path below the folder.
        path: String,
        /// The received bytes.
        bytes: u64,
        /// The time in which they were received.
        within: Duration,
        /// [`min_rate`](weir_upstream::UpstreamsConfig::min_rate).
        min_rate: u64,
    },
    /// The object does not match its pointer, or cannot be stored.
    #[error("the LFS object of `{path}` is not stored: {cause}")]
    Object {
        /// The path below the folder.
        path: String,
        /// The cause.
        cause: LfsWriteError,
    },
}

impl LfsError {
    /// The `Retry-After` of the upstream or a storage, up to a day.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Api(cause) | Self::Download { cause, .. } => cause.retry_after(),
            _ => None,
        }
    }

    /// Whether the fetch was interrupted.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Api(UpstreamError::Interrupted) | Self::Download { cause: UpstreamError::Interrupted, .. })
    }

    /// Whether the error concerns all objects.
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

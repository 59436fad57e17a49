//! Fetches a tarball into a file and verifies it.

mod decode;
mod delta;
mod download;
mod frames;
mod problem;
mod tarball_headers;
mod until_dropped;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_protocol::digest::TarballDigest;
use weir_protocol::manifest::Manifest;
use weir_protocol::observed::Transfer;

pub(crate) use decode::Coding;
pub(crate) use delta::{Dictionary, is_delta};
pub(crate) use download::Download;
pub(crate) use frames::{Missing, Plan, compose};
pub(crate) use problem::problem_detail;
pub(crate) use tarball_headers::{InvalidHeader, TarballHeaders, coding, content_length, retry_after};
pub(crate) use until_dropped::UntilDropped;

use crate::edge_client::RequestError;

/// The minimum rate of a download in bytes per second, after its first minute: a slow edge must not keep the agent from
/// trying another one.
const MIN_RATE: u64 = 1 << 10;

/// How long the minimum rate does not apply.
const SLOW_START: Duration = Duration::from_secs(60);

/// A download below this many bytes per second lets others go first that wait, once it has run for [`TRICKLES_AFTER`].
const TRICKLE_RATE: u64 = 64 << 10;

/// How long a download may be slow while others wait.
const TRICKLES_AFTER: Duration = Duration::from_secs(600);

/// The most bytes of an encoded body: no coding expands a tarball much, but empty frames can go on for ever.
pub(crate) fn max_encoded_bytes(max_bytes: u64) -> u64 {
    max_bytes.saturating_add(max_bytes / 64).saturating_add(64 << 10)
}

fn is_too_slow(bytes: u64, elapsed: Duration) -> bool {
    elapsed > SLOW_START && bytes < MIN_RATE.saturating_mul(elapsed.as_secs())
}

fn trickles(bytes: u64, elapsed: Duration) -> bool {
    elapsed >= TRICKLES_AFTER && bytes < TRICKLE_RATE.saturating_mul(elapsed.as_secs())
}

/// Whether a download is to be interrupted that has received so many bytes in this time. `may_yield`: now, for others that wait.
pub(crate) fn check_rate(bytes: u64, elapsed: Duration, may_yield: impl FnOnce() -> bool) -> Result<(), FetchError> {
    if is_too_slow(bytes, elapsed) {
        return Err(FetchError::Slow);
    }
    if trickles(bytes, elapsed) && may_yield() {
        return Err(FetchError::Yielded);
    }
    Ok(())
}

/// A verified tarball.
pub(crate) struct Tarball {
    pub(crate) file: File,
    pub(crate) digest: TarballDigest,
    pub(crate) transfer: Transfer,
    /// Its frames, if it was composed of some.
    pub(crate) manifest: Option<Manifest>,
}

/// Why there is no verified tarball.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The body is incomplete.
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the tarball cannot be decoded: {0}")]
    Decode(std::io::Error),
    /// Another answer than the requested part of the body.
    #[error("the edge did not send the requested frames")]
    NoFrames,
    #[error("the tarball's digest is {found}, expected {expected}")]
    Mismatch { expected: TarballDigest, found: TarballDigest },
    /// The download is below the minimum rate.
    #[error("the download is slower than {MIN_RATE} bytes per second")]
    Slow,
    /// It trickles, and others wait: it goes on when they have had their turn.
    #[error("the slow download was interrupted, because others were waiting")]
    Yielded,
    #[error("the tarball is larger than `max_tarball_bytes` = {0}")]
    TooLarge(u64),
    #[error("the tarball cannot be written to {}: {error}", directory.display())]
    Disk { directory: PathBuf, error: std::io::Error },
}

impl FetchError {
    pub(crate) fn disk(directory: &Path) -> impl Fn(std::io::Error) -> Self {
        move |error| Self::Disk { directory: directory.to_owned(), error }
    }

    /// The error of a delta. Its size says nothing about the tarball, so that it counts as wrong.
    pub(crate) fn of_delta(self) -> Self {
        match self {
            Self::TooLarge(_) => Self::Decode(std::io::Error::other("the delta is too large")),
            error => error,
        }
    }

    /// Whether the bytes that arrived before it are of use.
    fn is_interruption(&self) -> bool {
        matches!(self, Self::Request(_) | Self::Slow | Self::Yielded)
    }

    /// Whether the bytes were wrong, so that a second download may succeed.
    pub(crate) fn is_corrupt(&self) -> bool {
        matches!(self, Self::Decode(_) | Self::Mismatch { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_has_a_minimum_rate() {
        assert!(!is_too_slow(1, SLOW_START));
        assert!(is_too_slow(1, SLOW_START + Duration::from_secs(1)));
        assert!(!is_too_slow(MIN_RATE * 3600, Duration::from_secs(3600)));
        assert!(is_too_slow(MIN_RATE * 3600 - 1, Duration::from_secs(3600)));
        assert!(!trickles(1, TRICKLES_AFTER - Duration::from_secs(1)) && trickles(1, TRICKLES_AFTER));
        let hour = Duration::from_secs(3600);
        assert!(trickles(TRICKLE_RATE * 3600 - 1, hour) && !trickles(TRICKLE_RATE * 3600, hour));
        let checked = |bytes, others_wait| check_rate(bytes, hour, || others_wait);
        assert!(matches!(checked(MIN_RATE * 3600 - 1, true), Err(FetchError::Slow)));
        assert!(matches!(checked(MIN_RATE * 3600, true), Err(FetchError::Yielded)));
        assert!(checked(MIN_RATE * 3600, false).is_ok() && checked(TRICKLE_RATE * 3600, true).is_ok());
        assert!(max_encoded_bytes(0) >= 1 << 10 && max_encoded_bytes(u64::MAX) == u64::MAX);
    }
}

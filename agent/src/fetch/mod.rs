//! Fetches a tarball into a file and verifies it. Nothing that failed to verify leaves this module.

mod answer;
mod decode;
mod problem;

use std::fs::File;
use std::path::PathBuf;

use bytes::Bytes;
use tokio::sync::mpsc;
use weir_shared::digest::TarballDigest;

pub(crate) use answer::{Answer, AnswerError, coding, retry_after};
use decode::Coding;
pub(crate) use problem::problem_detail;

use crate::edge_client::{RequestError, ResponseBody};
use crate::metrics::Metrics;

/// Parts of a body between the network and the disk; each is at most as large as the edge's frames.
const PARTS_BETWEEN: usize = 16;

/// A tarball whose bytes are those of its digest.
pub(crate) struct Tarball {
    pub(crate) file: File,
    pub(crate) digest: TarballDigest,
}

/// Why there is no verified tarball.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The body did not come to its end.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The body cannot be decoded.
    #[error("the tarball cannot be decoded: {0}")]
    Decode(std::io::Error),
    /// The bytes are not those of the digest.
    #[error("the tarball's digest is {found} and should be {expected}")]
    Mismatch { expected: TarballDigest, found: TarballDigest },
    /// It is larger than the limit.
    #[error("the tarball is larger than `max_tarball_bytes` = {0}")]
    TooLarge(u64),
    /// The disk.
    #[error("the tarball cannot be written: {0}")]
    Disk(std::io::Error),
}

impl FetchError {
    /// Whether the bytes were wrong, so that other ones from the same edge may be right.
    pub(crate) fn is_of_the_bytes(&self) -> bool {
        matches!(self, Self::Decode(_) | Self::Mismatch { .. })
    }
}

/// Reads a body to its end, decodes it, writes the tarball to a file without a name in `incoming`, and verifies it.
pub(crate) async fn fetch(
    mut body: ResponseBody,
    coding: Coding,
    digest: TarballDigest,
    incoming: PathBuf,
    max_bytes: u64,
    metrics: &Metrics,
) -> Result<Tarball, FetchError> {
    let (parts, received) = mpsc::channel::<Bytes>(PARTS_BETWEEN);
    // Decoding and hashing are work for a thread of their own.
    let writer = tokio::task::spawn_blocking(move || decode::write(received, coding, &incoming, max_bytes));
    let received = async {
        while let Some(part) = body.chunk().await? {
            metrics.fetched_bytes.inc_by(part.len() as u64);
            if parts.send(part).await.is_err() {
                // The writer gave up; it says why.
                break;
            }
        }
        Ok::<_, RequestError>(())
    }
    .await;
    drop(parts);
    let written = writer.await.map_err(|error| FetchError::Disk(std::io::Error::other(error)))?;
    received?;
    let (file, found, size) = written?;
    metrics.tarball_bytes.inc_by(size);
    if found != digest {
        return Err(FetchError::Mismatch { expected: digest, found });
    }
    Ok(Tarball { file, digest })
}

//! Fetches one blob from its origin: resumed where it broke off, verified before it is anybody's.

mod incoming;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming as Body;
use weir_shared::digest::BlobDigest;

use self::incoming::{Incoming, Received};
use super::store::Store;
use crate::metrics::{CacheMetrics, OriginMetrics, VerifiedAt};
use crate::origin_client::{BODY_IDLE_TIMEOUT, BlobRequest, OriginError, OriginId, Origins};

/// How often a fill asks the origin before it gives up: once, and to resume what broke off.
const MAX_ATTEMPTS: u32 = 3;

/// The pause before a fill resumes.
const RESUME_PAUSE: Duration = Duration::from_millis(200);

/// Which blob, and where it can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The blob.
    pub(crate) digest: BlobDigest,
    /// Its bytes, as its descriptor says.
    pub(crate) size: u64,
    /// The origin of its service.
    pub(crate) origin: Option<OriginId>,
}

/// Why a blob cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum FillError {
    /// The origin does not have it: the descriptor is out of date.
    #[error("the origin does not have the blob")]
    NotFound,
    /// The origin cannot be asked.
    #[error(transparent)]
    Origin(OriginError),
    /// The transfer broke off, and could not be resumed.
    #[error("the blob's transfer broke off: {0}")]
    Broken(String),
    /// What the origin sends is not what its name says, twice.
    #[error("the origin's bytes are not the blob's")]
    Corrupt,
    /// The edge's disk failed.
    #[error("the edge's disk failed: {0}")]
    Disk(String),
    /// It takes longer than a request waits.
    #[error("the blob is still on its way")]
    TooSlow,
    /// Too many blobs are on their way.
    #[error("too many blobs are on their way")]
    Full,
    /// The task that fetched it ended without a result.
    #[error("the fill ended without a result")]
    Abandoned,
}

impl FillError {
    /// The value of a metric's label.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            FillError::NotFound => "not_found",
            FillError::Origin(_) => "origin_failed",
            FillError::Broken(_) => "broken",
            FillError::Corrupt => "corrupt",
            FillError::Disk(_) => "disk_failed",
            FillError::TooSlow => "too_slow",
            FillError::Full => "full",
            FillError::Abandoned => "abandoned",
        }
    }
}

impl From<OriginError> for FillError {
    fn from(error: OriginError) -> Self {
        match error {
            OriginError::NotFound => FillError::NotFound,
            error => FillError::Origin(error),
        }
    }
}

impl From<io::Error> for FillError {
    fn from(error: io::Error) -> Self {
        FillError::Disk(error.to_string())
    }
}

/// What a fill works with.
pub(super) struct Fetch<'a> {
    pub(super) origins: &'a Origins,
    pub(super) store: &'a Arc<Store>,
    pub(super) metrics: &'a CacheMetrics,
    pub(super) origin_metrics: &'a OriginMetrics,
}

impl Fetch<'_> {
    /// Fetches and verifies a blob. Wrong bytes are asked for once more, past any cache on the way.
    pub(super) async fn blob(&self, wanted: Wanted) -> Result<Received, FillError> {
        for no_cache in [false, true] {
            let received = match self.bytes(wanted, no_cache).await {
                Ok(received) if received.digest == wanted.digest => return Ok(received),
                Ok(received) => received,
                Err(FillError::Corrupt) => continue,
                Err(error) => return Err(error),
            };
            self.metrics.verify_failed(VerifiedAt::Origin);
            tracing::warn!(blob = %wanted.digest, got = %received.digest, "an origin sent wrong bytes for a blob");
            let _ = tokio::task::spawn_blocking(move || drop(received)).await;
        }
        Err(FillError::Corrupt)
    }

    async fn bytes(&self, wanted: Wanted, no_cache: bool) -> Result<Received, FillError> {
        let mut incoming = Incoming::begin(self.store);
        let mut attempt = 1;
        loop {
            match self.attempt(wanted, no_cache, &mut incoming).await {
                Ok(()) => return Ok(incoming.finish().await?),
                // It broke off behind its last byte: there is nothing left to ask for.
                Err(FillError::Broken(_)) if incoming.written() == wanted.size => return Ok(incoming.finish().await?),
                Err(error) if attempt == MAX_ATTEMPTS || !is_worth_resuming(&error) => return Err(error),
                Err(error) => {
                    tracing::debug!(blob = %wanted.digest, %error, at = incoming.written(), "a fill is resumed");
                    attempt += 1;
                    tokio::time::sleep(RESUME_PAUSE).await;
                }
            }
        }
    }

    /// One request: from where the bytes that are there end.
    async fn attempt(&self, wanted: Wanted, no_cache: bool, incoming: &mut Incoming) -> Result<(), FillError> {
        let offset = incoming.written();
        let response = self.origins.blob(&wanted.digest, wanted.origin, BlobRequest { offset, no_cache }).await?;
        if offset > 0 && !continues_at(&response, offset) {
            if response.status() != StatusCode::OK {
                self.metrics.verify_failed(VerifiedAt::Origin);
                tracing::warn!(blob = %wanted.digest, offset, "an origin sent another part of a blob than was asked for");
                return Err(FillError::Corrupt);
            }
            incoming.start_over().await?;
        }
        let mut body = response.into_body();
        while let Some(frame) = next_frame(&mut body).await? {
            self.origin_metrics.received(frame.len());
            if incoming.written() + frame.len() as u64 > wanted.size {
                self.metrics.verify_failed(VerifiedAt::Origin);
                tracing::warn!(blob = %wanted.digest, size = wanted.size, "an origin sent too many bytes for a blob");
                return Err(FillError::Corrupt);
            }
            incoming.write(frame).await?;
        }
        if incoming.written() < wanted.size {
            return Err(FillError::Broken("it ended early".to_owned()));
        }
        Ok(())
    }
}

fn is_worth_resuming(error: &FillError) -> bool {
    let unreached =
        |error: &OriginError| matches!(error, OriginError::Unreachable { .. } | OriginError::TimedOut { .. });
    matches!(error, FillError::Broken(_)) || matches!(error, FillError::Origin(error) if unreached(error))
}

fn continues_at<T>(response: &http::Response<T>, offset: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    response.status() == StatusCode::PARTIAL_CONTENT
        && range.is_some_and(|range| range.starts_with(&format!("bytes {offset}-")))
}

async fn next_frame(body: &mut Body) -> Result<Option<bytes::Bytes>, FillError> {
    loop {
        match tokio::time::timeout(BODY_IDLE_TIMEOUT, body.frame()).await {
            Err(_) => return Err(FillError::Broken(format!("nothing came for {BODY_IDLE_TIMEOUT:?}"))),
            Ok(None) => return Ok(None),
            Ok(Some(Err(error))) => return Err(FillError::Broken(error.to_string())),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

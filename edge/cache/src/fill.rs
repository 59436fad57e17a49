//! A fill: one object fetched in full, and verified by its digest before any byte is served. [`Fetch`] knows who is asked.
//!
//! Objects are small, so a failed fill is retried from the start.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;
use weir_protocol::request_id::RequestId;
use weir_runtime::bounds::Bound;

use super::budget::MemoryBudget;
use super::metrics::{CacheMetrics, Tier};
use super::source::CACHE_STATUS;
use crate::cdn_loop::CdnLoop;
use crate::origin_error::OriginError;

/// Attempts per fill, each with all origins that may have the object.
const MAX_ATTEMPTS: u32 = 3;

/// The back-off before the second attempt, ± 50 %; doubled before each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);

/// The minimum rate of a fill in bytes per second. It is low, because many fills share a slow line, and an abandoned
/// one wastes what it has transferred.
const MIN_RATE: u64 = 256;

/// The longest `Cache-Status` of a shield that is passed on, in bytes.
const MAX_CACHE_STATUS: usize = 1024;

/// Bytes that are hashed at a time while an object arrives: enough to use the processor well.
const HASH_CHUNK: usize = 64 << 10;

/// A known origin: the number that it has where origins are asked.
pub type OriginId = usize;

/// An object, and the origin to fetch it from.
#[derive(Debug, Clone)]
pub struct ObjectRequest {
    /// The repository it belongs to.
    pub repository: RepositoryName,
    /// Its digest.
    pub digest: ObjectDigest,
    /// Its size.
    pub size: Size,
    /// The owner of its service; `None`: any origin.
    pub origin: Option<OriginId>,
    /// The edges that have requested it from one another.
    pub passed: CdnLoop,
    /// The id of the request that needs it. A fill that several requests share has that of the first.
    pub request_id: Option<RequestId>,
}

/// Fills with equal keys are one. The number of edges that a request has passed is part of the key: edges that request
/// from one another would wait for each other's fills for ever, if a fill could be joined from further along the chain.
pub(crate) type FillKey = (RepositoryName, ObjectDigest, usize);

impl ObjectRequest {
    pub(super) fn key(&self) -> FillKey {
        (self.repository.clone(), self.digest, self.passed.hops())
    }
}

/// Who is asked for an object that is not in the cache. The cache does not know how.
pub trait Fetch: Send + Sync {
    /// Whether other edges are asked before the origins.
    fn has_shields(&self) -> bool;

    /// The running fills, over all origins and shields.
    fn fills(&self) -> Bound;

    /// Fetches an object from the first that has it. [`Attempt::receive`] takes in each response.
    fn fetch<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Filled, FillError>>;
}

/// An attempt to fetch an object.
#[derive(Clone, Copy)]
pub struct Attempt<'a> {
    /// The object.
    pub request: &'a ObjectRequest,
    /// Caches on the path are bypassed: the bytes before were corrupt.
    pub no_cache: bool,
    filler: &'a Filler,
}

/// An object that was filled and verified.
#[derive(Debug)]
pub struct Filled {
    pub(super) bytes: Bytes,
    /// The `Cache-Status` of the shield that sent it.
    pub(super) upstream: Option<HeaderValue>,
}

/// What is known of the size of an object, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Size {
    /// It has so many.
    Exactly(u64),
    /// It has no more.
    AtMost(u64),
}

impl Size {
    pub(super) fn limit(self) -> u64 {
        match self {
            Size::Exactly(bytes) | Size::AtMost(bytes) => bytes,
        }
    }

    fn allows(self, bytes: u64) -> bool {
        match self {
            Size::Exactly(exactly) => bytes == exactly,
            Size::AtMost(most) => bytes <= most,
        }
    }
}

/// Why a fill fails. Errors of the edge's own disk are not among them.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FillError {
    /// The origin does not have the object: the descriptor is out of date.
    #[error("the origin does not have an object of this version")]
    NotFound,
    /// The request to it failed.
    #[error(transparent)]
    Origin(OriginError),
    /// The response broke off.
    #[error("the origin's response was cut off: {0}")]
    Broken(String),
    /// The body stalled, or was below the minimum rate.
    #[error("the origin sent an object below the minimum rate")]
    Slow,
    /// The bytes do not match the digest.
    #[error("the origin sent bytes that do not match the digest")]
    Corrupt,
    /// The manifest contradicts the descriptor.
    #[error("the origin's manifest cannot be used: {0}")]
    BadManifest(String),
    /// Too many fills or waiters.
    #[error("too many fills or waiters")]
    Overloaded,
    /// The first byte did not arrive in time.
    #[error("the fill timed out")]
    TimedOut,
    /// The edge is stopping, or the fill panicked.
    #[error("the fill was abandoned")]
    Abandoned,
}

impl FillError {
    fn label(&self) -> &'static str {
        match self {
            FillError::NotFound => "not_found",
            FillError::Origin(_) => "origin_failed",
            FillError::Broken(_) => "broken",
            FillError::Slow => "slow",
            FillError::Corrupt | FillError::BadManifest(_) => "corrupt",
            FillError::Overloaded | FillError::TimedOut | FillError::Abandoned => "abandoned",
        }
    }

    /// The back-off before the next attempt, `waited` after the first one started; `None`: give up. `chance`, from 0 to
    /// 1, adds jitter.
    fn backoff(&self, attempts: u32, waited: Duration, max_wait: Duration, chance: f64) -> Option<Duration> {
        if attempts >= MAX_ATTEMPTS {
            return None;
        }
        match self {
            FillError::Origin(OriginError::Refused { retry_after: Some(after), .. }) => {
                let backoff = after.checked_add(FIRST_BACKOFF.mul_f64(chance))?;
                (waited.checked_add(backoff)? <= max_wait).then_some(backoff)
            }
            FillError::Origin(OriginError::BadResponse { .. }) => None,
            FillError::Origin(_) | FillError::Broken(_) | FillError::Slow | FillError::Corrupt => {
                Some((FIRST_BACKOFF * 2_u32.pow(attempts - 1)).mul_f64(0.5 + chance))
            }
            _ => None,
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

pub(super) struct Filler {
    pub(super) fetch: Arc<dyn Fetch>,
    pub(super) budget: Arc<MemoryBudget>,
    /// How long a body may stall.
    pub(super) idle: Duration,
    /// How long clients wait for an object. A longer `Retry-After` ends the fill.
    pub(super) max_wait: Duration,
    pub(super) metrics: CacheMetrics,
}

impl Filler {
    /// Fetches an object from the next tier and verifies it.
    pub(super) async fn fill(&self, request: &ObjectRequest) -> Result<Filled, FillError> {
        let started = Instant::now();
        let filled = self.attempts(request, started).await;
        let result = filled.as_ref().map_or_else(FillError::label, |_| "ok");
        self.metrics.filled(result, started.elapsed());
        if let Err(error) = &filled {
            let request_id = request.request_id.as_ref().map(tracing::field::display);
            tracing::warn!(object = %request.digest, repository = %request.repository, %error, request_id, "a fill failed");
        }
        filled
    }

    async fn attempts(&self, request: &ObjectRequest, started: Instant) -> Result<Filled, FillError> {
        let mut no_cache = false;
        for attempt in 1.. {
            let error = match self.fetch.fetch(Attempt { request, no_cache, filler: self }).await {
                Ok(filled) => return Ok(filled),
                Err(error) => error,
            };
            let backoff = error.backoff(attempt, started.elapsed(), self.max_wait, fastrand::f64());
            let Some(backoff) = backoff else { return Err(error) };
            self.metrics.retried(error.label());
            // After corrupt bytes, caches on the path are bypassed.
            no_cache |= matches!(error, FillError::Corrupt);
            tokio::time::sleep(backoff).await;
        }
        Err(FillError::Abandoned)
    }

    async fn read(
        &self,
        mut body: Incoming,
        request: &ObjectRequest,
        received: impl Fn(usize),
    ) -> Result<Vec<u8>, FillError> {
        let most = usize::try_from(request.size.limit()).unwrap_or(usize::MAX);
        let (mut bytes, mut hasher, mut hashed) = (Vec::with_capacity(most), blake3::Hasher::new(), 0);
        while let Some(frame) = timeout(self.idle, body.frame()).await.map_err(|_| FillError::Slow)? {
            let frame = frame.map_err(|error| FillError::Broken(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            received(data.len());
            if bytes.len() + data.len() > most {
                return Err(self.corrupt(request));
            }
            bytes.extend_from_slice(&data);
            if bytes.len() - hashed >= HASH_CHUNK {
                hasher.update(&bytes[hashed..]);
                hashed = bytes.len();
            }
            // Does not wait for the end of the stream, which a proxy may send late.
            if request.size == Size::Exactly(bytes.len() as u64) {
                break;
            }
        }
        hasher.update(&bytes[hashed..]);
        if ObjectDigest::from(hasher.finalize()) != request.digest || !request.size.allows(bytes.len() as u64) {
            return Err(self.corrupt(request));
        }
        bytes.shrink_to_fit();
        Ok(bytes)
    }

    fn corrupt(&self, request: &ObjectRequest) -> FillError {
        self.metrics.verify_failed(Tier::Origin);
        tracing::warn!(object = %request.digest, "an origin sent bytes that do not match the digest of an object");
        FillError::Corrupt
    }
}

impl Attempt<'_> {
    /// Sends a request, by awaiting its `response`, and takes in the object. `received` counts bytes that have arrived.
    ///
    /// # Errors
    /// The request failed, or its response is too slow, broken or not the object.
    pub async fn receive(
        &self,
        response: impl Future<Output = Result<Response<Incoming>, OriginError>>,
        received: impl Fn(usize),
    ) -> Result<Filled, FillError> {
        let most = self.request.size.limit();
        // Reserved before the request: an unread response blocks others on the same connection.
        let reservation = self.filler.budget.reserve(most).await.ok_or(FillError::TimedOut)?;
        let (head, body) = response.await?.into_parts();
        let in_all = self.filler.idle + Duration::from_secs(most / MIN_RATE);
        let bytes =
            timeout(in_all, self.filler.read(body, self.request, received)).await.unwrap_or(Err(FillError::Slow))?;
        let upstream = head.headers.get(CACHE_STATUS).filter(|value| value.len() <= MAX_CACHE_STATUS).cloned();
        Ok(Filled { bytes: reservation.attach(bytes), upstream })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(after: u64) -> FillError {
        let retry_after = Some(Duration::from_secs(after));
        FillError::Origin(OriginError::Refused { status: 503, kind: String::new(), detail: String::new(), retry_after })
    }

    #[test]
    fn retries_honour_retry_after_within_the_wait() {
        let seconds = Duration::from_secs;
        let backoff = |error: &FillError, attempts, waited| error.backoff(attempts, waited, seconds(60), 0.0);
        assert_eq!(backoff(&refused(2), 1, seconds(58)), Some(seconds(2)));
        assert_eq!(backoff(&refused(2), 1, seconds(59)), None);
        assert_eq!(backoff(&refused(u64::MAX), 1, seconds(0)), None);
        assert_eq!(backoff(&FillError::NotFound, 1, seconds(0)), None);
        assert!(backoff(&FillError::Slow, 2, seconds(59)) > backoff(&FillError::Slow, 1, seconds(59)));
    }

    proptest! {
        #[test]
        fn attempts_are_bounded(chance in 0.0f64..=1.0, attempts in 1u32..10) {
            let backoff = FillError::Corrupt.backoff(attempts, Duration::ZERO, Duration::from_secs(60), chance);
            prop_assert_eq!(backoff.is_some(), attempts < MAX_ATTEMPTS);
            prop_assert!(backoff.is_none_or(|backoff| backoff <= FIRST_BACKOFF * 4));
        }
    }
}

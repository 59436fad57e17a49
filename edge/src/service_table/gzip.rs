//! Has gzip representations made: each once, whoever asks, and not again at once where it failed.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use weir_shared::digest::TarballDigest;
use weir_shared::encoding::Encoding;
use weir_shared::name::ServiceName;
use weir_shared::process::shutdown::Drain;

use super::lookup::{Found, Lookup};
use crate::metrics::TableMetrics;
use crate::origin_client::{OriginError, OriginId, Origins};
use crate::single_flight::SingleFlight;

/// How long a request waits for gzip to be made. The making goes on, and finds whoever asks again.
const GZIP_WAIT: Duration = Duration::from_secs(30);

/// Representations that origins are making for this edge at a time.
const MAX_GZIPS: usize = 64;

/// How long after a failure the origin is not asked again for the same representation.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// Failures that are remembered.
const MAX_FAILURES: u64 = 10_000;

/// Why there is no gzip representation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GzipError {
    /// Its origin does not make it: it has dropped the version, or is of an older release.
    #[error("the origin does not make it")]
    Unsupported,
    /// Its origin cannot make it now, or cannot be asked.
    #[error("{0}")]
    Failed(String),
    /// It takes longer than a request waits.
    #[error("it is still being made")]
    TooSlow,
    /// Origins are making as many as they may for this edge.
    #[error("too many are being made")]
    Full,
}

impl GzipError {
    /// The value of a metric's label.
    fn label(&self) -> &'static str {
        match self {
            GzipError::Unsupported => "unsupported",
            GzipError::Failed(_) => "failed",
            GzipError::TooSlow => "too_slow",
            GzipError::Full => "full",
        }
    }
}

type Key = (ServiceName, TarballDigest);

/// Has gzip representations made.
#[derive(Clone)]
pub(crate) struct Gzips {
    lookup: Lookup,
    origins: Arc<Origins>,
    flights: SingleFlight<Key, Result<(), GzipError>>,
    failures: Cache<Key, GzipError>,
    metrics: TableMetrics,
}

impl Gzips {
    pub(crate) fn new(lookup: Lookup, origins: Arc<Origins>, metrics: TableMetrics, drain: &Drain) -> Self {
        let failures = Cache::builder().max_capacity(MAX_FAILURES).time_to_live(FAILURE_PAUSE).build();
        Self { lookup, origins, flights: SingleFlight::new(MAX_GZIPS, drain), failures, metrics }
    }

    /// Has gzip made of a version. Afterwards, whoever looks the version up finds it with that representation.
    ///
    /// # Errors
    /// Why it was not made, or not soon enough.
    pub(crate) async fn make(&self, service: &ServiceName, found: &Found) -> Result<(), GzipError> {
        let key = (service.clone(), found.version.descriptor().publication().digest);
        if let Some(failure) = self.failures.get(&key) {
            return Err(failure);
        }
        let Some(owner) = found.origin else { return Err(GzipError::Failed("its origin is not known".to_owned())) };
        let seat = self.flights.join(&key, || self.clone().ask(key.clone(), owner)).map_err(|_| {
            self.metrics.gzip(GzipError::Full.label());
            GzipError::Full
        })?;
        let made = tokio::time::timeout(GZIP_WAIT.saturating_sub(seat.under_way()), seat.result()).await;
        made.map_err(|_| GzipError::TooSlow)?.map_err(|error| GzipError::Failed(error.to_string()))?
    }

    /// Questions to origins that are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.flights.len()
    }

    /// How many there may be.
    pub(crate) fn limit(&self) -> usize {
        MAX_GZIPS
    }

    async fn ask(self, key: Key, owner: OriginId) -> Result<(), GzipError> {
        let made = self.have_made(&key, owner).await;
        self.metrics.gzip(made.as_ref().map_or_else(GzipError::label, |()| "made"));
        if let Err(error) = &made {
            tracing::info!(service = %key.0, digest = %key.1, %error, "there is no gzip representation");
            self.failures.insert(key, error.clone());
        }
        made
    }

    async fn have_made(&self, (service, digest): &Key, owner: OriginId) -> Result<(), GzipError> {
        let descriptor = self.origins.gzip(service, digest, owner).await.map_err(|error| match error {
            OriginError::NotFound => GzipError::Unsupported,
            error => GzipError::Failed(error.to_string()),
        })?;
        if descriptor.representation(Encoding::Gzip).is_none() {
            return Err(GzipError::Failed("the origin answered without it".to_owned()));
        }
        self.lookup.take_forms(owner, descriptor).await.map_err(|error| GzipError::Failed(error.reason()))
    }
}

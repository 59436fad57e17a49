//! The blob cache: content-addressed blobs in memory and on disk, bounded in bytes and entries.
//!
//! A blob is handed out as bytes in memory or an open file, verified since this process began; one that is not there is fetched
//! by one task, whoever asks. What is held is the [`store`]'s, how it is fetched is the [`fill`]'s.

mod decoders;
mod fill;
mod reader;
mod store;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use weir_shared::digest::BlobDigest;
use weir_shared::process::shutdown::Drain;

use self::decoders::Decoders;
use self::fill::Fetch;
use self::store::Store;
use crate::clock::Clock;
use crate::config::CacheConfig;
use crate::metrics::Metrics;
use crate::origin_client::Origins;
use crate::single_flight::SingleFlight;

pub(crate) use decoders::Decoding;
pub(crate) use fill::{FillError, Wanted};
pub(crate) use reader::{decoded, stored};
pub(crate) use store::{Blob, Directory, Holding};

/// How long a request waits for a blob.
const FILL_WAIT: Duration = Duration::from_secs(60);

/// How long a fill may take: an origin that sends a little now and then does not hold its place for ever.
const FILL_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// Blobs that are being fetched, or that wait for their turn, at a time.
const MAX_QUEUED_FILLS: usize = 1024;

/// The cache.
#[derive(Clone)]
pub(crate) struct BlobCache {
    inner: Arc<Inner>,
    flights: SingleFlight<BlobDigest, Result<Obtained, FillError>>,
}

struct Inner {
    store: Arc<Store>,
    fills: Semaphore,
    decoders: Decoders,
    origins: Arc<Origins>,
    metrics: Metrics,
}

/// A blob, and where it came from.
#[derive(Debug, Clone)]
pub(crate) struct Obtained {
    /// The blob, open.
    pub(crate) blob: Blob,
    /// How it was obtained.
    pub(crate) source: Source,
}

/// Where a blob came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// It was there.
    Disk,
    /// It was fetched.
    Origin {
        /// It is kept.
        stored: bool,
        /// Somebody else had begun to fetch it.
        collapsed: bool,
    },
}

/// What the cache holds, for `/status`.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Use {
    #[serde(flatten)]
    holding: Holding,
    being_fetched: usize,
}

impl BlobCache {
    /// The cache over a directory, with the bounds of `config`; what lies there is taken up. Blocks.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn open(
        directory: Directory,
        config: &CacheConfig,
        origins: Arc<Origins>,
        clock: Clock,
        metrics: Metrics,
        drain: &Drain,
    ) -> io::Result<Self> {
        let store = Arc::new(Store::open(directory, config, clock, metrics.cache.clone())?);
        store::start(&store, config.scrub, drain);
        let inner = Inner {
            store,
            fills: Semaphore::new(config.fills.min(Semaphore::MAX_PERMITS)),
            decoders: Decoders::new(config.decoders, metrics.cache.decoders.clone(), &metrics.cache.decoders_limit),
            origins,
            metrics,
        };
        Ok(Self { inner: Arc::new(inner), flights: SingleFlight::new(MAX_QUEUED_FILLS, drain) })
    }

    /// A blob: verified since this process began, or, with `verify_again`, since this was called.
    ///
    /// # Errors
    /// It is not there and cannot be fetched, or not soon enough.
    pub(crate) async fn get(&self, wanted: Wanted, verify_again: bool) -> Result<Obtained, FillError> {
        if !verify_again && let Some(blob) = self.inner.store.verified(wanted.digest, wanted.size).await {
            return Ok(Obtained { blob, source: Source::Disk });
        }
        let inner = self.inner.clone();
        let seat = self.flights.join(&wanted.digest, || inner.obtain(wanted)).map_err(|_| FillError::Full)?;
        let collapsed = seat.collapsed;
        if collapsed {
            self.inner.metrics.cache.collapsed_fills.inc();
        }
        let _waiting = Waiting::new(&self.inner.metrics.cache.fill_waiters);
        let mut obtained = tokio::time::timeout(FILL_WAIT, seat.result())
            .await
            .map_err(|_| FillError::TooSlow)?
            .map_err(|_| FillError::Abandoned)??;
        if let Source::Origin { collapsed: shared, .. } = &mut obtained.source {
            *shared = collapsed;
        }
        Ok(obtained)
    }

    /// A place for a decoder; `None` when all are taken.
    pub(crate) fn decoding(&self) -> Option<Decoding> {
        self.inner.decoders.begin()
    }

    /// Writes what the next process should know of the blobs. Nothing may be under way any more.
    pub(crate) async fn close(&self) {
        store::finish(&self.inner.store).await;
    }

    /// Ends what would go on writing to the directory, as a crash would.
    pub(crate) async fn stop(&self) {
        store::stop(&self.inner.store).await;
    }

    /// What the cache holds.
    pub(crate) fn usage(&self) -> Use {
        Use { holding: self.inner.store.holding(), being_fetched: self.flights.len() }
    }

    /// What sets the gauges that describe the cache's use. It does not keep the cache alive.
    pub(crate) fn gauge_setter(&self) -> impl Fn() + Send + Sync + use<> {
        let store = Arc::downgrade(&self.inner.store);
        move || {
            if let Some(store) = store.upgrade() {
                store.set_gauges();
            }
        }
    }
}

impl Inner {
    /// The blob from disk, verified now, or else from its origin.
    async fn obtain(self: Arc<Self>, wanted: Wanted) -> Result<Obtained, FillError> {
        if let Some(blob) = self.store.verify(wanted.digest, wanted.size).await {
            return Ok(Obtained { blob, source: Source::Disk });
        }
        let _permit = self.fills.acquire().await.map_err(|_| FillError::Abandoned)?;
        let begun = Instant::now();
        let filled = self.clone().fill(wanted).await;
        let result = filled.as_ref().map_or_else(FillError::label, |_| "ok");
        self.metrics.cache.filled(result, begun.elapsed());
        match &filled {
            Ok(_) => tracing::debug!(blob = %wanted.digest, bytes = wanted.size, "a blob was fetched"),
            Err(error) => tracing::warn!(blob = %wanted.digest, %error, "a blob could not be fetched"),
        }
        filled
    }

    async fn fill(self: Arc<Self>, wanted: Wanted) -> Result<Obtained, FillError> {
        let room = self.store.reserve(wanted.size).await?;
        let fetch = Fetch {
            origins: &self.origins,
            store: &self.store,
            metrics: &self.metrics.cache,
            origin_metrics: &self.metrics.origin,
        };
        let received = tokio::time::timeout(FILL_DEADLINE, fetch.blob(wanted)).await;
        let received = received.map_err(|_| FillError::Broken("it took too long".to_owned()))??;
        let store = self.store.clone();
        let kept = tokio::task::spawn_blocking(move || store.keep(received.digest, received.file, room));
        let (blob, stored) = kept.await.map_err(|_| FillError::Abandoned)??;
        Ok(Obtained { blob, source: Source::Origin { stored, collapsed: false } })
    }
}

/// Counts a request that waits, until it is dropped.
struct Waiting<'a>(&'a prometheus::IntGauge);

impl<'a> Waiting<'a> {
    fn new(gauge: &'a prometheus::IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

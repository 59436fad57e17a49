//! The blob cache: content-addressed files, bounded in bytes. The page cache is its memory.
//!
//! A blob is handed out as an open file that was verified since this process began; one that is not there is fetched
//! by one task, whoever asks. A smaller, faster tier would stand before [`BlobCache::get`]; following a fill before it
//! ends would begin in [`incoming`].

mod decoders;
mod directory;
mod eviction;
mod fill;
mod incoming;
mod reader;
mod room;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use weir_shared::digest::BlobDigest;
use weir_shared::process::shutdown::Drain;

use self::decoders::Decoders;
use self::eviction::{Accounting, Evicted};
use self::fill::Fetch;
use self::incoming::Received;
use self::room::{Room, Rooms};
use crate::clock::Clock;
use crate::config::CacheConfig;
use crate::metrics::{Dropped, Metrics, VerifiedAt};
use crate::origin_client::Origins;
use crate::single_flight::SingleFlight;

pub(crate) use decoders::Decoding;
pub(crate) use directory::{Blob, Directory};
pub(crate) use fill::{FillError, Wanted};
pub(crate) use reader::{decoded, stored};

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
    directory: Directory,
    accounting: Mutex<Accounting>,
    /// Held while files are named or deleted, so that the accounting and the directory change together. Taken before
    /// `accounting`, and only on threads that may block.
    naming: Mutex<()>,
    fills: Semaphore,
    rooms: Rooms,
    decoders: Decoders,
    origins: Arc<Origins>,
    clock: Clock,
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
    bytes: u64,
    limit_bytes: u64,
    blobs: usize,
    being_fetched: usize,
    oldest_idle_seconds: Option<u64>,
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
        let limit = config.disk.as_u64();
        let mut accounting = Accounting::new(limit);
        let now = clock.now();
        for present in directory.scan()? {
            accounting.insert(present.digest, present.size, false, now);
        }
        let surplus = accounting.shrink();
        let inner = Inner {
            directory,
            accounting: Mutex::new(accounting),
            naming: Mutex::default(),
            fills: Semaphore::new(config.fills.min(Semaphore::MAX_PERMITS)),
            rooms: Rooms::of(limit),
            decoders: Decoders::new(config.decoders, metrics.cache.decoders.clone(), &metrics.cache.decoders_limit),
            origins,
            clock,
            metrics,
        };
        inner.delete(&surplus, Dropped::Size);
        Ok(Self { inner: Arc::new(inner), flights: SingleFlight::new(MAX_QUEUED_FILLS, drain) })
    }

    /// A blob: verified since this process began, or, with `verify_again`, since this was called.
    ///
    /// # Errors
    /// It is not there and cannot be fetched, or not soon enough.
    pub(crate) async fn get(&self, wanted: Wanted, verify_again: bool) -> Result<Obtained, FillError> {
        if !verify_again && let Some(blob) = self.inner.verified(wanted).await {
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

    /// What the cache holds.
    pub(crate) fn usage(&self) -> Use {
        let now = self.inner.clock.now();
        let accounting = self.inner.accounting();
        Use {
            bytes: accounting.used(),
            limit_bytes: accounting.limit(),
            blobs: accounting.len(),
            being_fetched: self.flights.len(),
            oldest_idle_seconds: accounting.oldest_use().map(|used| now.since(used).as_secs()),
        }
    }

    /// What sets the gauges that describe the cache's use. It does not keep the cache alive.
    pub(crate) fn gauge_setter(&self) -> impl Fn() + Send + Sync + use<> {
        let inner = Arc::downgrade(&self.inner);
        move || {
            if let Some(inner) = inner.upgrade() {
                inner.set_gauges();
            }
        }
    }
}

impl Inner {
    fn set_gauges(&self) {
        let now = self.clock.now();
        let accounting = self.accounting();
        let gauges = &self.metrics.cache;
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        gauges.bytes.set(number(accounting.used()));
        gauges.limit_bytes.set(number(accounting.limit()));
        gauges.entries.set(number(accounting.len() as u64));
        let idle = accounting.oldest_use().map_or(0, |used| now.since(used).as_secs());
        gauges.oldest_idle_seconds.set(number(idle));
    }

    /// The blob, when it is there and was verified. What is wrong with its file is found out by [`Inner::obtain`].
    async fn verified(self: &Arc<Self>, wanted: Wanted) -> Option<Blob> {
        let now = self.clock.now();
        self.accounting().touch(&wanted.digest, now).filter(|slot| slot.verified)?;
        let inner = self.clone();
        let opened = tokio::task::spawn_blocking(move || inner.directory.blob(&wanted.digest, wanted.size)).await;
        opened.ok()?.ok()
    }

    /// The blob from disk, verified now, or else from its origin.
    async fn obtain(self: Arc<Self>, wanted: Wanted) -> Result<Obtained, FillError> {
        let inner = self.clone();
        let on_disk = tokio::task::spawn_blocking(move || inner.verify(wanted)).await;
        if let Some(blob) = on_disk.map_err(|_| FillError::Abandoned)?? {
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
        let room = Room::reserve(self.clone(), wanted.size).await?;
        let fetch = Fetch {
            origins: &self.origins,
            directory: &self.directory,
            metrics: &self.metrics.cache,
            origin_metrics: &self.metrics.origin,
        };
        let received = tokio::time::timeout(FILL_DEADLINE, fetch.blob(wanted)).await;
        let received = received.map_err(|_| FillError::Broken("it took too long".to_owned()))??;
        let inner = self.clone();
        let kept = tokio::task::spawn_blocking(move || inner.keep(received, room));
        kept.await.map_err(|_| FillError::Abandoned)?
    }

    /// Compares a blob's file with its name. What is wrong is dropped. Blocks.
    ///
    /// # Errors
    /// Nothing can be said of the file: it stays.
    fn verify(&self, wanted: Wanted) -> Result<Option<Blob>, FillError> {
        let digest = wanted.digest;
        if self.accounting().touch(&digest, self.clock.now()).is_none() {
            return Ok(None);
        }
        let why = match self.directory.blob(&digest, wanted.size) {
            Ok(blob) => match blob.is(&digest) {
                Ok(true) => {
                    self.accounting().verified(&digest);
                    return Ok(Some(blob));
                }
                Ok(false) => "its bytes have changed".to_owned(),
                Err(error) => error.to_string(),
            },
            Err(error) if says_nothing_of_the_file(&error) => return Err(error.into()),
            Err(error) => error.to_string(),
        };
        let _naming = self.naming();
        // Nothing is wrong with one that was evicted meanwhile.
        let Some(dropped) = self.accounting().remove(&digest) else { return Ok(None) };
        self.metrics.cache.verify_failed(VerifiedAt::Disk);
        tracing::warn!(blob = %digest, why, "a blob on disk is damaged; it is dropped and fetched again");
        self.unlink(&[dropped], Dropped::Corrupt);
        Ok(None)
    }

    /// Gives a blob that was fetched its name, when it fits at all. Blocks.
    fn keep(&self, received: Received, room: Room) -> Result<Obtained, FillError> {
        let digest = received.digest;
        if !room.is_reserved() {
            let blob = Blob::of(received.file.into_file())?;
            return Ok(Obtained { blob, source: Source::Origin { stored: false, collapsed: false } });
        }
        received.file.as_file().sync_all()?;
        let _naming = self.naming();
        let blob = self.directory.keep(&digest, received.file)?;
        let mut accounting = self.accounting();
        room.release_in(&mut accounting);
        accounting.insert(digest, blob.length, true, self.clock.now());
        Ok(Obtained { blob, source: Source::Origin { stored: true, collapsed: false } })
    }

    /// Deletes the files of blobs that the accounting has forgotten. Blocks.
    fn delete(&self, dropped: &[Evicted], why: Dropped) {
        if !dropped.is_empty() {
            let _naming = self.naming();
            self.unlink(dropped, why);
        }
    }

    fn unlink(&self, dropped: &[Evicted], why: Dropped) {
        for Evicted { digest, size } in dropped {
            match self.directory.remove(digest) {
                Ok(()) => self.metrics.cache.dropped(why, *size),
                Err(error) => tracing::warn!(blob = %digest, %error, "a blob cannot be deleted"),
            }
        }
    }

    fn accounting(&self) -> std::sync::MutexGuard<'_, Accounting> {
        // The accounting's own operations do not panic half-way.
        self.accounting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn naming(&self) -> std::sync::MutexGuard<'_, ()> {
        self.naming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether opening a file failed for want of descriptors or memory: a busy edge must not throw good blobs away.
fn says_nothing_of_the_file(error: &io::Error) -> bool {
    // The same numbers on every Unix.
    const TOO_MANY_IN_THE_SYSTEM: i32 = 23;
    const TOO_MANY_IN_THE_PROCESS: i32 = 24;
    error.kind() == io::ErrorKind::OutOfMemory
        || matches!(error.raw_os_error(), Some(TOO_MANY_IN_THE_SYSTEM | TOO_MANY_IN_THE_PROCESS))
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

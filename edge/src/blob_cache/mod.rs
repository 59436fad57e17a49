//! The blob cache: content-addressed blobs in memory and on disk, bounded in bytes and entries.
//!
//! A blob is handed out as bytes in memory or as an open file that is as it was when this process verified it; one that
//! is not there is fetched by one task, whoever asks, and handed out as it comes. What is held is the [`store`]'s, how it
//! is fetched is the [`fill`]'s, how it is read meanwhile is [`followed`]'s and afterwards [`held`]'s; [`past_disk`]
//! serves what the disk cannot take, or cannot give back.

mod decoders;
mod fill;
mod followed;
mod held;
mod past_disk;
mod reader;
mod store;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prometheus::IntCounter;
use tokio::sync::Semaphore;
use weir_shared::digest::BlobDigest;
use weir_shared::process::bounds::Bound;
use weir_shared::process::serve::Body;
use weir_shared::process::shutdown::Drain;

use self::decoders::Decoders;
use self::fill::{Bounds, Filler, Progress, Running, Upstream};
use self::followed::{Followed, Passing};
use self::held::Held;
use self::past_disk::PastDisk;
use self::reader::{BlobBody, CHUNK, Chunks, DECODED_CHUNK};
use self::store::Store;
use crate::clock::Clock;
use crate::config::CacheConfig;
use crate::metrics::{Dropped, Metrics, Tier};
use crate::origin_client::Origins;
use crate::service_table::PurgeMode;

pub(crate) use decoders::Decoding;
pub(crate) use fill::{FillError, Wanted};
#[cfg(fuzzing)]
pub use store::fuzz_index;
pub(crate) use store::{Blob, Directory, DiskTrouble, HeldBlob, Holding, Purged};

/// Blobs that are being fetched, or that wait for their turn, at a time.
const MAX_QUEUED_FILLS: usize = 1024;

/// How many times as long as an origin may be silent a fill may stand still before nobody new waits for it.
const LOCK_AGE_IN_SILENCES: u32 = 2;

/// The cache.
#[derive(Clone)]
pub(crate) struct BlobCache {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<Store>,
    filler: Arc<Filler>,
    running: Running,
    past_disk: Arc<PastDisk>,
    decoders: Decoders,
    /// How long a request waits for its first byte, wherever that comes from.
    wait: Duration,
}

/// A blob, and where it came from.
pub(crate) struct Obtained {
    content: Content,
    /// How it was obtained.
    pub(crate) source: Source,
}

/// The bytes of a blob, as far as they are there: at least the first that was asked for.
enum Content {
    Memory(Bytes),
    Held(Held),
    Followed(Followed),
    Passing(Passing),
}

/// Where a blob came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// It was there, in memory.
    Memory,
    /// It was there, on disk.
    Disk,
    /// It is fetched.
    Origin {
        /// It is to be kept.
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
        let Metrics { cache, origin, .. } = metrics;
        let store = Arc::new(Store::open(directory, config, clock, cache.clone())?);
        store::start(&store, config.scrub, drain);
        let decoders = Decoders::new(config.decoders, cache.decoders.clone(), &cache.decoders_limit);
        let bounds = Bounds {
            fills: MAX_QUEUED_FILLS,
            waiters: config.waiters,
            waiters_per_fill: config.waiters_per_fill,
            lock_age: config.fill_idle * LOCK_AGE_IN_SILENCES,
        };
        let running = Running::new(bounds, clock, cache.clone(), drain);
        cache.fills_limit.set(i64::try_from(config.fills).unwrap_or(i64::MAX));
        let (idle, patience) = (config.fill_idle, config.fill_wait);
        let upstream = Upstream { origins, metrics: cache, origin_metrics: origin, clock, idle, patience };
        let upstream = Arc::new(upstream);
        let past_disk = PastDisk::new(upstream.clone(), config.past_disk, config.fill_wait);
        let permits = Semaphore::new(config.fills.min(Semaphore::MAX_PERMITS));
        let filler = Arc::new(Filler { store: store.clone(), upstream, permits });
        let wait = config.fill_wait;
        let inner = Inner { store, filler, running, past_disk: past_disk.into(), decoders, wait };
        Ok(Self { inner: inner.into() })
    }

    /// A blob that lies in memory: without I/O, without waiting.
    pub(crate) fn at_hand(&self, digest: &BlobDigest, size: u64) -> Option<Obtained> {
        self.inner.store.at_hand(digest, size).map(Obtained::in_memory)
    }

    /// A blob from the byte `first` on: verified since this process began, or, with `verify_again`, since this was
    /// called. One that is on its way is handed out as soon as that byte is there and verified.
    ///
    /// # Errors
    /// It is not there and cannot be fetched, or not soon enough.
    pub(crate) async fn get(&self, wanted: Wanted, first: u64, verify_again: bool) -> Result<Obtained, FillError> {
        // Over all of it: a disk may be silent, too.
        let obtained = tokio::time::timeout(self.inner.wait, self.obtain(wanted, first, verify_again)).await;
        obtained.unwrap_or(Err(FillError::TooSlow))
    }

    async fn obtain(&self, wanted: Wanted, first: u64, verify_again: bool) -> Result<Obtained, FillError> {
        let inner = &self.inner;
        if !verify_again && let Some((blob, tier)) = inner.store.verified(wanted.digest, wanted.size).await {
            return Ok(self.held(wanted, blob, tier));
        }
        let filler = inner.filler.clone();
        let mut seat = inner.running.join(wanted, |announcer| async move { filler.fill(wanted, announcer).await })?;
        // What is whole when it is asked for waits only to be named: that is a hit like any other.
        let is_hit = seat.watcher.now().is_whole();
        let progress = seat.watcher.answered(first).await;
        let from = |held, stored| if is_hit { held } else { Source::Origin { stored, collapsed: seat.collapsed } };
        let (content, source) = match progress {
            Progress::Held(blob, tier) => return Ok(self.held(wanted, blob, tier)),
            Progress::InMemory { bytes, stored } => (Content::Memory(bytes), from(Source::Memory, stored)),
            Progress::Arriving { file, .. } => {
                let (watcher, past_disk) = (seat.watcher.clone(), inner.past_disk.clone());
                (Content::Followed(Followed { wanted, file, watcher, past_disk }), from(Source::Disk, true))
            }
            Progress::PastDisk { why, .. } => {
                drop(seat);
                let through = Box::new(inner.past_disk.serve(wanted, first, why).await?);
                let source = Source::Origin { stored: false, collapsed: false };
                (Content::Passing(Passing { wanted, through, past_disk: inner.past_disk.clone() }), source)
            }
            Progress::Failed { error, .. } => return Err(error),
            Progress::Queued | Progress::Asked => return Err(FillError::Abandoned),
        };
        Ok(Obtained { content, source })
    }

    /// Has a blob fetched that is not there, for nobody yet, and waits until that has ended.
    pub(crate) async fn warm(&self, wanted: Wanted) {
        let inner = &self.inner;
        if inner.store.verified(wanted.digest, wanted.size).await.is_some() {
            return;
        }
        let filler = inner.filler.clone();
        let fill = |announcer| async move { filler.fill(wanted, announcer).await };
        // When it cannot be had now, whoever asks for it tries again, and is told why.
        if let Ok(mut seat) = inner.running.join(wanted, fill) {
            seat.watcher.ended().await;
        }
    }

    /// A blob that is there, found in `tier`. One that was read from the disk just now is in memory by then, and came from
    /// the disk.
    fn held(&self, wanted: Wanted, blob: Blob, tier: Tier) -> Obtained {
        let source = if tier == Tier::Memory { Source::Memory } else { Source::Disk };
        let content = match blob {
            Blob::Memory(bytes) => Content::Memory(bytes),
            blob => {
                let (store, past_disk) = (self.inner.store.clone(), self.inner.past_disk.clone());
                Content::Held(Held { wanted, blob, store, past_disk })
            }
        };
        Obtained { content, source }
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

    /// Drops blobs, or has them verified again before their next use. Blocks.
    pub(crate) fn purge(&self, digests: &[BlobDigest], mode: PurgeMode) -> Purged {
        match mode {
            PurgeMode::Hard => self.inner.store.forget(digests, Dropped::Purged),
            PurgeMode::Soft => self.inner.store.distrust(digests),
        }
    }

    /// The tier that a blob is held in: `memory`, `small` or `file`.
    pub(crate) fn tier(&self, digest: &BlobDigest) -> Option<&'static str> {
        self.inner.store.tier(digest)
    }

    /// How a blob is held, without using it. Looks at its file. Blocks.
    pub(crate) fn look_at(&self, digest: &BlobDigest, size: u64) -> Option<HeldBlob> {
        self.inner.store.look_at(digest, size)
    }

    /// Whether a blob is being fetched, or verified.
    pub(crate) fn is_on_its_way(&self, digest: &BlobDigest) -> bool {
        self.inner.running.is_under_way(digest)
    }

    /// Why the disk did not take the last blob; `None` when it did.
    pub(crate) fn disk_failure(&self) -> Option<String> {
        self.inner.store.disk_failure()
    }

    /// What is used of each bound that has no metric of its own, and the bound.
    pub(crate) fn bounds(&self) -> [Bound; 2] {
        let (verifications, most) = self.inner.store.verifications();
        [
            ("queued_fills", self.inner.running.len() as u64, MAX_QUEUED_FILLS as u64),
            ("verifications", verifications as u64, most as u64),
        ]
    }

    /// What the cache holds.
    pub(crate) fn usage(&self) -> Use {
        Use { holding: self.inner.store.holding(), being_fetched: self.inner.running.len() }
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

impl Obtained {
    fn in_memory(bytes: Bytes) -> Self {
        Self { content: Content::Memory(bytes), source: Source::Memory }
    }

    /// Part of the blob, as it is stored; it begins with the byte that was asked for.
    pub(crate) fn stored(self, part: Range<u64>, sent: &IntCounter) -> Body {
        if let Content::Memory(bytes) = &self.content
            && let Some(bytes) = reader::slice(bytes, &part)
        {
            sent.inc_by(bytes.len() as u64);
            return Body::Full(bytes);
        }
        let length = part.end - part.start;
        Body::stream(reader::stored(self.content.chunks(part, CHUNK), length, sent.clone()))
    }

    /// The whole blob, decoded from zstd on the way; it must give exactly `length` bytes. `decoding` is given back with
    /// the body.
    pub(crate) fn decoded(self, size: u64, length: u64, decoding: Decoding, sent: IntCounter) -> BlobBody {
        reader::decoded(self.content.chunks(0..size, DECODED_CHUNK), length, decoding, sent)
    }
}

impl Content {
    fn chunks(self, part: Range<u64>, chunk: u64) -> Chunks {
        match self {
            Content::Memory(bytes) => reader::chunks(&Blob::Memory(bytes), part, chunk),
            Content::Held(held) => Box::pin(held.chunks(part, chunk)),
            Content::Followed(followed) => Box::pin(followed.chunks(part, chunk)),
            Content::Passing(passing) => Box::pin(passing.chunks(part, chunk)),
        }
    }
}

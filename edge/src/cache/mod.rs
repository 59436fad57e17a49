//! The object cache: immutable objects, named by their content, in memory and on disk, and the bodies that are made of them.
//!
//! An object is looked for in [`memory`], then on [`disk`], then at its origin by [`fetch`]: whoever needs it meanwhile waits
//! for the same flight ([`waiter`]). A [`body`] is the frames of a [`representation`] in a row. Nothing leaves here that was
//! not verified since it arrived, or since it was read from disk.

mod body;
mod budget;
mod disk;
mod fetch;
mod manifests;
mod memory;
mod metrics;
mod purge;
mod representation;
mod slots;
mod waiter;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use prometheus::Registry;
use tokio::task::spawn_blocking;
use weir_protocol::descriptor::Representation;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::manifest::Manifest;
use weir_runtime::bounds::Bound;
use weir_runtime::directory_lock::DirectoryLock;
use weir_runtime::shutdown::Drain;

use self::body::{FrameReader, part};
use self::budget::Budget;
use self::disk::Disk;
use self::fetch::Fetcher;
use self::manifests::Manifests;
use self::memory::Memory;
pub(crate) use self::metrics::CacheMetrics;
use self::metrics::{Dropped, Usage};
use self::representation::Frames;
use self::slots::Slots;
use self::waiter::{Flights, MAX_FLIGHTS, Waiter};
use crate::clock::Clock;
use crate::config::CacheConfig;
use crate::origin_client::Origins;

pub(crate) use self::body::{Delivery, ReadyBody};
pub(crate) use self::fetch::FetchError;
use self::fetch::ObjectRequest;
pub(crate) use self::metrics::Tier;
pub(crate) use self::representation::BodyRequest;
pub(crate) use self::slots::Slot;

/// Frames of one body that are fetched at a time before anybody asks for it: most of the slots are left to clients.
const PREFETCHED_AT_A_TIME: usize = 4;

/// Fetches under way beyond which no poll begins one: it would stand before those for which somebody waits.
const ANNOUNCED_BEHIND: usize = 64;

/// The cache. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    memory: Memory,
    disk: Arc<Disk>,
    budget: Arc<Budget>,
    in_flight: u64,
    manifests: Manifests,
    flights: Flights,
    fetcher: Fetcher,
    decoders: Slots,
    encoders: Slots,
    wait: Duration,
    /// Grows with each object that is purged.
    purges: AtomicU64,
    metrics: CacheMetrics,
    drain: Drain,
}

/// An object that is here, and where it came from.
#[derive(Debug, Clone)]
struct Loaded {
    bytes: Bytes,
    source: Source,
}

type Outcome = Result<Loaded, FetchError>;

/// An object that is here, or is waited for.
enum Loading {
    Done(Loaded),
    Waiting(Waiter),
}

impl Loading {
    async fn result(self) -> Outcome {
        match self {
            Loading::Done(loaded) => Ok(loaded),
            Loading::Waiting(waiter) => waiter.result().await,
        }
    }
}

/// Where an object, or the beginning of a body, came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// It was in memory.
    Memory,
    /// It was on disk.
    Disk,
    /// It was fetched.
    Origin {
        /// It is stored.
        stored: bool,
        /// Somebody else had begun to fetch it.
        collapsed: bool,
    },
}

impl Source {
    /// Where a body came from whose manifest and first frame came from two.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Source::Origin { stored, collapsed }, Source::Origin { stored: too, collapsed: also }) => {
                Source::Origin { stored: stored && too, collapsed: collapsed || also }
            }
            (origin @ Source::Origin { .. }, _) | (_, origin @ Source::Origin { .. }) => origin,
            (Source::Memory, Source::Memory) => Source::Memory,
            (Source::Disk, _) | (_, Source::Disk) => Source::Disk,
        }
    }
}

impl Cache {
    /// The cache below a directory, which `lock` is of. What lies there is looked for at once and counted in the background.
    ///
    /// # Errors
    /// A metric is registered already.
    pub(crate) fn open(
        config: &CacheConfig,
        lock: DirectoryLock,
        origins: Arc<Origins>,
        clock: Clock,
        registry: &Registry,
        drain: &Drain,
    ) -> prometheus::Result<Self> {
        let metrics = CacheMetrics::register(registry)?;
        let slots = origins.all().iter().map(|_| Slots::new(config.fetches)).collect();
        let (memory, in_flight) = (config.memory.as_u64(), config.in_flight.as_u64());
        let budget = Arc::new(Budget::new(memory, in_flight, config.fetch_wait));
        let fetcher = Fetcher {
            origins,
            budget: budget.clone(),
            slots,
            idle: config.fetch_idle,
            patience: config.fetch_wait,
            metrics: metrics.clone(),
        };
        let inner = Inner {
            memory: Memory::new(memory, metrics.memory_evictions.clone()),
            disk: Disk::open(&config.dir, lock, config.disk.as_u64(), clock, metrics.clone(), drain),
            budget,
            in_flight,
            manifests: Manifests::new(),
            flights: Flights::new(config.waiters, metrics.clone(), drain),
            fetcher,
            decoders: Slots::new(config.decoders),
            encoders: Slots::new(config.encoders),
            wait: config.fetch_wait,
            purges: AtomicU64::new(0),
            metrics,
            drain: drain.clone(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A part of a stored body that lies in memory, as far as it begins: without I/O, without waiting. `request` is made only
    /// when it is needed.
    pub(crate) fn open_in_memory(
        &self,
        stored: &Representation,
        range: &Range<u64>,
        request: impl FnOnce() -> BodyRequest,
    ) -> Option<ReadyBody> {
        if stored.frames == 1 {
            let bytes = self.in_memory(&stored.digest)?;
            return part(&bytes, range).ok().map(ReadyBody::Part);
        }
        let request = request();
        let frames = Frames::Many(self.known_manifest(&request).ok()??);
        let slices = frames.slices(range, false);
        let mut frames = Box::new(FrameReader::new(self.clone(), request, frames, slices, false));
        frames.begin_in_memory()?;
        let length = Some(range.end - range.start);
        Some(ReadyBody::Frames { frames, delivery: Delivery::Stored, slot: None, length })
    }

    /// What a delivery needs for as long as it lasts; an error when all slots are taken. Nobody waits for one.
    ///
    /// # Errors
    /// [`FetchError::Overloaded`].
    pub(crate) fn slot(&self, delivery: Delivery) -> Result<Option<Slot>, FetchError> {
        let slots = match delivery {
            Delivery::Stored => return Ok(None),
            Delivery::Decoded => &self.inner.decoders,
            Delivery::Gzip => &self.inner.encoders,
        };
        slots.try_take().map(Some).ok_or(FetchError::Overloaded)
    }

    /// A part of a body, or of the tar when it is decoded: once its first frame is here. With `verify_again` each frame is
    /// verified although that was done before.
    ///
    /// # Errors
    /// The manifest or the first frame cannot be had, or not soon enough.
    pub(crate) async fn open_body(
        &self,
        request: BodyRequest,
        delivery: Delivery,
        slot: Option<Slot>,
        range: Range<u64>,
        verify_again: bool,
    ) -> Result<(ReadyBody, Source), FetchError> {
        let begin = async {
            let (frames, listed) = self.frames(&request, verify_again).await?;
            let is_stored = delivery == Delivery::Stored;
            if !is_stored && !frames.are_decodable() {
                return Err(FetchError::BadManifest("a frame holds more of the tar than a frame may".to_owned()));
            }
            let slices = frames.slices(&range, !is_stored);
            let mut frames = Box::new(FrameReader::new(self.clone(), request, frames, slices, verify_again));
            let first = frames.begin().await?.map_or(Source::Memory, |first| first.source);
            let length = (delivery != Delivery::Gzip).then_some(range.end - range.start);
            Ok((ReadyBody::Frames { frames, delivery, slot, length }, first.and(listed)))
        };
        // Boxed: it is large, and goes into every handler's future otherwise.
        tokio::time::timeout(self.inner.wait, Box::pin(begin)).await.unwrap_or(Err(FetchError::TimedOut))
    }

    /// The frames of a representation, and where their list came from.
    async fn frames(&self, request: &BodyRequest, verify_again: bool) -> Result<(Frames, Source), FetchError> {
        if !request.has_manifest() {
            return Ok((Frames::one(request), Source::Memory));
        }
        if let Some(manifest) = self.known_manifest(request)?.filter(|_| !verify_again) {
            return Ok((Frames::Many(manifest), Source::Memory));
        }
        let loaded = self.load(&request.named(), verify_again).await?;
        let manifest = self.inner.manifests.parse(&request.stored.digest, request, &loaded.bytes)?;
        Ok((Frames::Many(manifest), loaded.source))
    }

    /// The manifest of a representation that was read before. Its object is thereby used: it is not evicted before its frames.
    fn known_manifest(&self, request: &BodyRequest) -> Result<Option<Arc<Manifest>>, FetchError> {
        self.inner.disk.touch(&request.stored.digest);
        self.inner.manifests.get(&request.stored.digest, request)
    }

    /// Fetches what is not here of a representation, for nobody yet, and waits until that has ended.
    pub(crate) async fn prefetch(&self, request: BodyRequest) {
        let read_all = async {
            let (frames, _) = self.frames(&request, false).await?;
            let frames = frames.all().iter();
            let missing: Vec<ObjectRequest> =
                frames.filter(|frame| self.tier(&frame.digest).is_none()).map(|frame| request.frame(frame)).collect();
            let fetches = missing.into_iter().map(|frame| async move { self.load(&frame, false).await });
            stream::iter(fetches).buffer_unordered(PREFETCHED_AT_A_TIME).try_for_each(async |_| Ok(())).await
        };
        // Whoever asks for what cannot be had now tries again, and is told why.
        if let Err(error) = Box::pin(read_all).await {
            tracing::debug!(object = %request.stored.digest, %error, "a new version cannot be fetched ahead");
        }
    }

    /// An object that is in memory.
    fn in_memory(&self, digest: &ObjectDigest) -> Option<Bytes> {
        let bytes = self.inner.memory.get(digest)?;
        self.inner.disk.touch(digest);
        self.inner.metrics.hit(Tier::Memory, bytes.len() as u64);
        Some(bytes)
    }

    /// An object from wherever it is.
    async fn load(&self, request: &ObjectRequest, verify_again: bool) -> Outcome {
        self.begin_load(request, verify_again, true)?.result().await
    }

    /// The same as far as nothing has to be waited for. `is_first`: its reader has nothing of the body yet.
    fn begin_load(&self, request: &ObjectRequest, verify_again: bool, is_first: bool) -> Result<Loading, FetchError> {
        let inner = &self.inner;
        let digest = &request.digest;
        if !verify_again && let Some(bytes) = self.in_memory(digest) {
            return Ok(Loading::Done(Loaded { bytes, source: Source::Memory }));
        }
        let purges = inner.purges.load(Ordering::SeqCst);
        if let Some(bytes) = inner.disk.read_cached(digest, &inner.budget) {
            inner.keep(*digest, bytes.clone(), purges);
            return Ok(Loading::Done(Loaded { bytes, source: Source::Disk }));
        }
        inner.flights.join(request, is_first, || inner.clone().read_or_fetch(request.clone())).map(Loading::Waiting)
    }

    /// Begins to fetch an object that will be needed soon: from disk, if it is there and not known yet. `None`: not now.
    fn fetch_ahead(&self, request: &ObjectRequest) -> Option<Waiter> {
        let inner = &self.inner;
        inner.budget.is_ample().then_some(())?;
        inner.flights.join_ahead(request, || inner.clone().read_or_fetch(request.clone()))
    }

    /// Begins to fetch the manifest of a body that somebody will probably ask for next: its first frame is then one exchange
    /// with the origin away, not two. `request` is made only when it is needed.
    pub(crate) fn announce(&self, stored: &Representation, request: impl FnOnce() -> BodyRequest) {
        let is_quiet = self.inner.flights.len() < ANNOUNCED_BEHIND;
        if stored.frames > 1 && is_quiet && self.tier(&stored.digest).is_none() {
            drop(self.fetch_ahead(&request().named()));
        }
    }

    /// Where an object is, as far as is known without looking at the disk.
    pub(crate) fn tier(&self, digest: &ObjectDigest) -> Option<Tier> {
        let inner = &self.inner;
        let in_memory = inner.memory.contains(digest).then_some(Tier::Memory);
        in_memory.or_else(|| inner.disk.has(digest).then_some(Tier::Disk))
    }

    /// Why the disk did not take the last object; `None` when it did.
    pub(crate) fn disk_failure(&self) -> Option<String> {
        self.inner.disk.last_failure()
    }

    /// What is used of each bound, and the bound.
    pub(crate) fn bounds(&self) -> [Bound; 9] {
        let inner = &self.inner;
        let (manifests, most) = inner.manifests.usage();
        let usage = inner.usage();
        [
            ("disk_bytes", usage.bytes, usage.limit_bytes),
            ("memory_bytes", usage.memory_bytes, usage.memory_limit_bytes),
            ("in_flight_bytes", usage.in_flight_bytes, usage.in_flight_limit_bytes),
            ("parsed_manifest_bytes", manifests, most),
            ("queued_fills", inner.flights.len() as u64, MAX_FLIGHTS as u64),
            inner.flights.waiters(),
            inner.fetcher.fetches(),
            inner.decoders.bound("decoders"),
            inner.encoders.bound("gzip_encoders"),
        ]
    }

    /// How full the cache is.
    pub(crate) fn usage(&self) -> Usage {
        self.inner.usage()
    }
}

impl Inner {
    /// The flight of an object: reads it from disk when it is there, else takes it from memory or fetches it, and stores it
    /// behind those who wait.
    async fn read_or_fetch(self: Arc<Self>, request: ObjectRequest) -> Outcome {
        let (digest, purges) = (request.digest, self.purges.load(Ordering::SeqCst));
        if let Some(bytes) = self.disk.read(digest, request.size.limit(), &self.budget).await {
            self.keep(digest, bytes.clone(), purges);
            return Ok(Loaded { bytes, source: Source::Disk });
        }
        // It is to be verified again, or somebody was faster.
        if let Some(bytes) = self.verified_in_memory(&digest) {
            return Ok(Loaded { bytes, source: Source::Memory });
        }
        let bytes = Box::pin(self.fetcher.fetch(&request)).await?;
        // What the disk cannot take is served from here.
        let in_memory = self.keep(digest, bytes.clone(), purges);
        let stored = in_memory || self.disk.accepts(bytes.len() as u64);
        let (inner, storing) = (self.clone(), bytes.clone());
        self.metrics.writes.inc();
        self.drain.spawn(async move {
            inner.disk.store(digest, storing).await;
            if inner.purges.load(Ordering::SeqCst) != purges {
                // An operator has purged something meanwhile: it may have been meant.
                let _ = spawn_blocking(move || inner.remove(&digest)).await;
            }
        });
        Ok(Loaded { bytes, source: Source::Origin { stored, collapsed: false } })
    }

    /// Takes an object into memory that was read or fetched since there were so many `purges`. True when it did.
    fn keep(&self, digest: ObjectDigest, bytes: Bytes, purges: u64) -> bool {
        let in_memory = self.memory.insert(digest, bytes);
        // Looked at behind the insertion: a purge that comes later finds the object.
        let is_purged = self.purges.load(Ordering::SeqCst) != purges;
        if is_purged {
            self.memory.remove(&digest);
        }
        in_memory && !is_purged
    }

    /// Removes an object. Its bytes, when it was here. Blocks.
    fn remove(&self, digest: &ObjectDigest) -> Option<u64> {
        self.manifests.remove(digest);
        let in_memory = self.memory.remove(digest);
        self.disk.remove(digest, Dropped::Purged).or(in_memory)
    }

    /// An object in memory, verified now; dropped when it is not what its name says.
    fn verified_in_memory(&self, digest: &ObjectDigest) -> Option<Bytes> {
        let bytes = self.memory.get(digest)?;
        if ObjectDigest::of(&bytes) == *digest {
            return Some(bytes);
        }
        self.metrics.verify_failed(Tier::Memory);
        self.memory.remove(digest);
        None
    }

    fn usage(&self) -> Usage {
        let (bytes, limit_bytes, objects) = self.disk.usage();
        let memory_bytes = self.memory.bytes();
        Usage {
            bytes,
            limit_bytes,
            objects,
            memory_bytes,
            memory_limit_bytes: self.memory.limit(),
            memory_objects: self.memory.entries(),
            in_flight_bytes: self.budget.used().saturating_sub(memory_bytes),
            in_flight_limit_bytes: self.in_flight,
            is_writing: self.disk.last_failure().is_none(),
            being_fetched: self.flights.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_read_before_a_purge_does_not_stay_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let (lock, _) = DirectoryLock::take(dir.path()).unwrap();
        let (origins, drain) = (Arc::new(Origins::new(Vec::new())), Drain::new());
        let cache = Cache::open(&CacheConfig::new(dir.path()), lock, origins, Clock::begin(), &Registry::new(), &drain)
            .unwrap();
        let digest = ObjectDigest::of(b"object");
        let keep = |purges| cache.inner.keep(digest, Bytes::from_static(b"object"), purges);
        assert!(keep(0) && cache.tier(&digest) == Some(Tier::Memory));
        assert_eq!(cache.purge_object(&digest), Some(6));
        assert!(!keep(0) && cache.tier(&digest).is_none());
        assert!(keep(1) && cache.tier(&digest).is_some());
    }
}

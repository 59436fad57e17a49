//! The object cache: immutable objects in memory and on disk, and the bodies made of them.
//!
//! An object is looked up in [`memory`], then on [`disk`], then fetched from an origin by [`fill`]. Requests for the
//! same object share one fill ([`in_flight`]). A [`body`] is the concatenated frames of a [`representation`]. Every
//! object is verified after it arrived and after each read from disk.

mod body;
mod budget;
mod disk;
mod disk_failure;
mod fill;
mod in_flight;
mod manifests;
mod memory;
mod metrics;
mod purge;
mod representation;
mod slots;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use http::{HeaderName, HeaderValue};
use prometheus::Registry;
use tokio::task::spawn_blocking;
use weir_protocol::descriptor::Representation;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::manifest::{MAX_OBJECT_BYTES, Manifest};
use weir_protocol::name::RepositoryName;
use weir_protocol::request_id::RequestId;
use weir_runtime::bounds::Bound;
use weir_runtime::directory_lock::DirectoryLock;
use weir_runtime::shutdown::Drain;

use self::body::{FrameReader, part};
use self::budget::MemoryBudget;
use self::disk::Disk;
use self::fill::{Filled, Filler, Size};
use self::in_flight::{FillWaiter, InFlightFills, MAX_IN_FLIGHT};
use self::manifests::Manifests;
use self::memory::Memory;
pub(crate) use self::metrics::CacheMetrics;
use self::metrics::{RemovalReason, Usage};
use self::representation::Frames;
use self::slots::Slots;
use crate::cdn_loop::CdnLoop;
use crate::clock::Clock;
use crate::config::CacheConfig;
use crate::origin_client::{MAX_ORIGINS, Origins, Shields};

pub(crate) use self::body::{ReadyBody, SentBytes, Transcoding};
pub(crate) use self::fill::FillError;
use self::fill::ObjectRequest;
pub(crate) use self::metrics::{FarthestTier, Tier};
pub(crate) use self::representation::BodyRequest;
pub(crate) use self::slots::Slot;

/// Concurrent fills of one prefetch: most slots are left to clients.
const PREFETCH_CONCURRENCY: usize = 4;

/// Manifests are not prefetched on `HEAD` while more fills than this are in flight, because clients wait for those.
const MANIFEST_PREFETCH_LIMIT: usize = 64;

#[derive(Clone)]
pub(crate) struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    memory: Memory,
    disk: Arc<Disk>,
    budget: Arc<MemoryBudget>,
    in_flight: u64,
    manifests: Manifests,
    fills: InFlightFills,
    filler: Filler,
    decoders: Slots,
    encoders: Slots,
    wait: Duration,
    /// The number of purges so far.
    purges: AtomicU64,
    metrics: CacheMetrics,
    drain: Drain,
}

/// An object with its source.
#[derive(Debug, Clone)]
struct Loaded {
    bytes: Bytes,
    source: Source,
}

type LoadResult = Result<Loaded, FillError>;

/// A loaded object, or the fill to wait for.
enum Loading {
    Done(Loaded),
    Waiting(FillWaiter),
}

impl Loading {
    async fn result(self) -> LoadResult {
        match self {
            Loading::Done(loaded) => Ok(loaded),
            Loading::Waiting(waiter) => waiter.result().await,
        }
    }
}

/// Where an object, or the first frame of a body, came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// It was in memory.
    Memory,
    /// It was on disk.
    Disk,
    /// A fill brought it.
    Origin {
        /// It was inserted into the cache.
        stored: bool,
        /// Another request had started the fill.
        collapsed: bool,
        /// The `Cache-Status` of the shield that sent it.
        upstream: Option<HeaderValue>,
    },
}

impl Source {
    pub(crate) fn tier(&self) -> Tier {
        match self {
            Self::Memory => Tier::Memory,
            Self::Disk => Tier::Disk,
            Self::Origin { .. } => Tier::Origin,
        }
    }
}

pub(crate) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// The value of `Cache-Status`: a cache's own member after those of the caches behind it (RFC 9211 section 2).
pub(crate) fn cache_status(upstream: Option<&HeaderValue>, own: &str) -> HeaderValue {
    let upstream = upstream.and_then(|value| value.to_str().ok());
    let all = upstream.map_or_else(|| own.to_owned(), |upstream| format!("{upstream}, {own}"));
    HeaderValue::try_from(all).expect("names and numbers, after text that was visible ASCII")
}

impl Source {
    /// The source of a body whose manifest and first frame have different sources.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (
                Source::Origin { stored, collapsed, upstream },
                Source::Origin { stored: too, collapsed: also, upstream: other },
            ) => Source::Origin { stored: stored && too, collapsed: collapsed || also, upstream: upstream.or(other) },
            (origin @ Source::Origin { .. }, _) | (_, origin @ Source::Origin { .. }) => origin,
            (Source::Memory, Source::Memory) => Source::Memory,
            (Source::Disk, _) | (_, Source::Disk) => Source::Disk,
        }
    }
}

impl Cache {
    /// Opens the cache below a directory that `lock` locks. Files of an earlier process are served at once and indexed
    /// in the background.
    ///
    /// # Errors
    /// A metric is registered already.
    pub(crate) fn open(
        config: &CacheConfig,
        lock: DirectoryLock,
        origins: Arc<Origins>,
        shields: Shields,
        clock: Clock,
        registry: &Registry,
        drain: &Drain,
    ) -> prometheus::Result<Self> {
        let metrics = CacheMetrics::register(registry)?;
        let slots = (0..MAX_ORIGINS).map(|_| Slots::new(config.fills)).collect();
        let shield_slots = shields.all().iter().map(|_| Slots::new(config.fills)).collect();
        let (memory, in_flight) = (config.memory.as_u64(), config.in_flight.as_u64());
        let budget = Arc::new(MemoryBudget::new(memory, in_flight, config.fill_wait));
        let filler = Filler {
            origins,
            shields,
            budget: budget.clone(),
            slots,
            shield_slots,
            idle: config.fill_idle,
            max_wait: config.fill_wait,
            metrics: metrics.clone(),
        };
        let inner = Inner {
            memory: Memory::new(memory, clock, metrics.clone()),
            disk: Disk::open(&config.dir, lock, config.disk.as_u64(), clock, metrics.clone(), drain),
            budget,
            in_flight,
            manifests: Manifests::new(),
            fills: InFlightFills::new(config.waiters, metrics.clone(), drain),
            filler,
            decoders: Slots::new(config.decoders),
            encoders: Slots::new(config.encoders),
            wait: config.fill_wait,
            purges: AtomicU64::new(0),
            metrics,
            drain: drain.clone(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Opens a range of a stored body whose first frame is in memory. Does no I/O and never waits. `request` is called
    /// only when it is needed.
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
        frames.read_first_in_memory()?;
        let length = Some(range.end - range.start);
        Some(ReadyBody::Frames { frames, transcoding: Transcoding::Passthrough, slot: None, length })
    }

    /// The slot that transcoding needs while the body is sent. Fails instead of waiting when all are in use.
    ///
    /// # Errors
    /// [`FillError::Overloaded`].
    pub(crate) fn slot(&self, transcoding: Transcoding) -> Result<Option<Slot>, FillError> {
        let slots = match transcoding {
            Transcoding::Passthrough => return Ok(None),
            Transcoding::Decode => &self.inner.decoders,
            Transcoding::Gzip => &self.inner.encoders,
        };
        slots.try_take().map(Some).ok_or(FillError::Overloaded)
    }

    /// Opens a range of a body (or of the tar, when it is decoded) once its first frame is loaded. `reverify`: also
    /// frames in memory are verified.
    ///
    /// # Errors
    /// The manifest or the first frame cannot be loaded, or not in time.
    pub(crate) async fn open_body(
        &self,
        request: BodyRequest,
        transcoding: Transcoding,
        slot: Option<Slot>,
        range: Range<u64>,
        reverify: bool,
    ) -> Result<(ReadyBody, Source), FillError> {
        let open = async {
            let (frames, listed) = self.frames(&request, reverify).await?;
            let is_stored = transcoding == Transcoding::Passthrough;
            if !is_stored && !frames.are_decodable() {
                return Err(FillError::BadManifest("a frame exceeds the limit of decoded bytes".to_owned()));
            }
            let slices = frames.slices(&range, !is_stored);
            let mut frames = Box::new(FrameReader::new(self.clone(), request, frames, slices, reverify));
            let first = frames.read_first().await?.map_or(Source::Memory, |first| first.source);
            let length = (transcoding != Transcoding::Gzip).then_some(range.end - range.start);
            Ok((ReadyBody::Frames { frames, transcoding, slot, length }, first.and(listed)))
        };
        // Boxed: every handler's future would contain it otherwise.
        tokio::time::timeout(self.inner.wait, Box::pin(open)).await.unwrap_or(Err(FillError::TimedOut))
    }

    /// The frames of a representation, and the source of their list.
    async fn frames(&self, request: &BodyRequest, reverify: bool) -> Result<(Frames, Source), FillError> {
        if !request.has_manifest() {
            return Ok((Frames::one(request), Source::Memory));
        }
        if let Some(manifest) = self.known_manifest(request)?.filter(|_| !reverify) {
            return Ok((Frames::Many(manifest), Source::Memory));
        }
        let loaded = self.load(&request.named(), reverify).await?;
        let manifest = self.inner.manifests.parse(&request.stored.digest, request, &loaded.bytes)?;
        Ok((Frames::Many(manifest), loaded.source))
    }

    /// Loads the manifest of a representation that has one, and checks that it matches the descriptor.
    ///
    /// # Errors
    /// It cannot be loaded, or not in time, or it contradicts the descriptor.
    pub(crate) async fn manifest(&self, request: &BodyRequest, reverify: bool) -> Result<(Bytes, Source), FillError> {
        let load = async {
            let loaded = self.load(&request.named(), reverify).await?;
            if self.known_manifest(request)?.is_none() {
                self.inner.manifests.parse(&request.stored.digest, request, &loaded.bytes)?;
            }
            Ok((loaded.bytes, loaded.source))
        };
        tokio::time::timeout(self.inner.wait, Box::pin(load)).await.unwrap_or(Err(FillError::TimedOut))
    }

    /// The parsed manifest of a representation. Its object counts as used, so that it is not evicted before its frames.
    fn known_manifest(&self, request: &BodyRequest) -> Result<Option<Arc<Manifest>>, FillError> {
        self.inner.disk.touch(&request.stored.digest);
        self.inner.manifests.get(&request.stored.digest, request)
    }

    /// Prefetches a representation, and waits for the end.
    pub(crate) async fn prefetch(&self, request: BodyRequest) {
        let read_all = async {
            let (frames, _) = self.frames(&request, false).await?;
            let frames = frames.all().iter();
            let missing: Vec<ObjectRequest> =
                frames.filter(|frame| self.tier(&frame.digest).is_none()).map(|frame| request.frame(frame)).collect();
            let fills = missing.into_iter().map(|frame| async move { self.load(&frame, false).await });
            stream::iter(fills).buffer_unordered(PREFETCH_CONCURRENCY).try_for_each(async |_| Ok(())).await
        };
        // A client that needs it retries and gets the error.
        if let Err(error) = Box::pin(read_all).await {
            tracing::debug!(object = %request.stored.digest, %error, "a new version cannot be prefetched");
        }
    }

    fn in_memory(&self, digest: &ObjectDigest) -> Option<Bytes> {
        let bytes = self.inner.memory.get(digest)?;
        self.inner.disk.touch(digest);
        self.inner.metrics.hit(Tier::Memory, bytes.len() as u64);
        Some(bytes)
    }

    /// Loads an object for another edge, which requested it with `passed`. `reverify`: also in memory.
    ///
    /// # Errors
    /// No origin has it, or it cannot be fetched, or not in time.
    pub(crate) async fn object(
        &self,
        repository: RepositoryName,
        digest: ObjectDigest,
        passed: CdnLoop,
        request_id: Option<RequestId>,
        reverify: bool,
    ) -> Result<(Bytes, Source), FillError> {
        // Without shields all requests go to the origins, and are one.
        let passed = if self.inner.filler.has_shields() { passed } else { CdnLoop::default() };
        let size = Size::AtMost(MAX_OBJECT_BYTES as u64);
        let request = ObjectRequest { repository, digest, size, origin: None, passed, request_id };
        let loading = Box::pin(self.load(&request, reverify));
        let loaded = tokio::time::timeout(self.inner.wait, loading).await.unwrap_or(Err(FillError::TimedOut))?;
        Ok((loaded.bytes, loaded.source))
    }

    /// Loads an object from memory, disk or origin.
    async fn load(&self, request: &ObjectRequest, reverify: bool) -> LoadResult {
        self.start_load(request, reverify, true)?.result().await
    }

    /// Starts to load an object. `is_first`: nothing of the body was sent yet.
    fn start_load(&self, request: &ObjectRequest, reverify: bool, is_first: bool) -> Result<Loading, FillError> {
        let inner = &self.inner;
        let digest = &request.digest;
        if !reverify && let Some(bytes) = self.in_memory(digest) {
            return Ok(Loading::Done(Loaded { bytes, source: Source::Memory }));
        }
        let purges = inner.purges.load(Ordering::SeqCst);
        if let Some(bytes) = inner.disk.read_cached(digest, &inner.budget) {
            inner.insert_in_memory(*digest, bytes.clone(), purges);
            return Ok(Loading::Done(Loaded { bytes, source: Source::Disk }));
        }
        inner.fills.join(request, is_first, || inner.clone().read_or_fill(request.clone())).map(Loading::Waiting)
    }

    /// Starts read-ahead of an object from disk or origin. `None`: no memory or slot is free for that.
    fn read_ahead(&self, request: &ObjectRequest) -> Option<FillWaiter> {
        let inner = &self.inner;
        inner.budget.has_room().then_some(())?;
        inner.fills.join_read_ahead(request, || inner.clone().read_or_fill(request.clone()))
    }

    /// Prefetches the manifest of a body that a client will probably request next: this saves a round trip to the
    /// origin. `request` is called only when it is needed.
    pub(crate) fn prefetch_manifest(&self, stored: &Representation, request: impl FnOnce() -> BodyRequest) {
        let is_quiet = self.inner.fills.len() < MANIFEST_PREFETCH_LIMIT;
        if stored.frames > 1 && is_quiet && self.tier(&stored.digest).is_none() {
            drop(self.read_ahead(&request().named()));
        }
    }

    /// The tier of an object, without looking at the disk.
    pub(crate) fn tier(&self, digest: &ObjectDigest) -> Option<Tier> {
        let inner = &self.inner;
        let in_memory = inner.memory.contains(digest).then_some(Tier::Memory);
        in_memory.or_else(|| inner.disk.has(digest).then_some(Tier::Disk))
    }

    /// The error of the last write to disk; `None` when it succeeded.
    pub(crate) fn disk_failure(&self) -> Option<String> {
        self.inner.disk.last_failure()
    }

    /// The fill level of each bound.
    pub(crate) fn bounds(&self) -> [Bound; 9] {
        let inner = &self.inner;
        let (manifests, most) = inner.manifests.usage();
        let usage = inner.usage();
        [
            ("disk_bytes", usage.bytes, usage.limit_bytes),
            ("memory_bytes", usage.memory_bytes, usage.memory_limit_bytes),
            ("in_flight_bytes", usage.in_flight_bytes, usage.in_flight_limit_bytes),
            ("parsed_manifest_bytes", manifests, most),
            ("queued_fills", inner.fills.len() as u64, MAX_IN_FLIGHT as u64),
            inner.fills.waiters(),
            inner.filler.fills(),
            inner.decoders.bound("decoders"),
            inner.encoders.bound("gzip_encoders"),
        ]
    }

    pub(crate) fn usage(&self) -> Usage {
        self.inner.usage()
    }
}

impl Inner {
    /// Reads an object from disk, or takes it from memory, or fetches it and stores it in the background.
    async fn read_or_fill(self: Arc<Self>, request: ObjectRequest) -> LoadResult {
        let (digest, purges) = (request.digest, self.purges.load(Ordering::SeqCst));
        if let Some(bytes) = self.disk.read(digest, request.size.limit(), &self.budget).await {
            self.insert_in_memory(digest, bytes.clone(), purges);
            return Ok(Loaded { bytes, source: Source::Disk });
        }
        // It has to be verified again, or another task was faster.
        if let Some(bytes) = self.verified_in_memory(&digest) {
            return Ok(Loaded { bytes, source: Source::Memory });
        }
        let Filled { bytes, upstream } = Box::pin(self.filler.fill(&request)).await?;
        // Objects that the disk rejects are served from memory.
        let in_memory = self.insert_in_memory(digest, bytes.clone(), purges);
        let stored = in_memory || self.disk.accepts(bytes.len() as u64);
        let (inner, storing) = (self.clone(), bytes.clone());
        self.metrics.writes.inc();
        self.drain.spawn(async move {
            inner.disk.store(digest, storing).await;
            if inner.purges.load(Ordering::SeqCst) != purges {
                // The purge may have been of this object.
                let _ = spawn_blocking(move || inner.remove(&digest)).await;
            }
        });
        Ok(Loaded { bytes, source: Source::Origin { stored, collapsed: false, upstream } })
    }

    /// Inserts an object into memory, unless there was a purge since `purges` was read. True when it is there.
    fn insert_in_memory(&self, digest: ObjectDigest, bytes: Bytes, purges: u64) -> bool {
        let in_memory = self.memory.insert(digest, bytes);
        // Checked after the insert: a later purge finds the object.
        let is_purged = self.purges.load(Ordering::SeqCst) != purges;
        if is_purged {
            self.memory.remove(&digest);
        }
        in_memory && !is_purged
    }

    /// Removes an object from all tiers. Returns its size. Blocks.
    fn remove(&self, digest: &ObjectDigest) -> Option<u64> {
        self.manifests.remove(digest);
        let in_memory = self.memory.remove(digest);
        self.disk.remove(digest, RemovalReason::Purged).or(in_memory)
    }

    /// An object in memory, verified now. Corrupt bytes are removed.
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
            fills: self.fills.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_object_read_before_a_purge_is_not_cached() {
        let dir = tempfile::tempdir().unwrap();
        let (lock, _) = DirectoryLock::take(dir.path()).unwrap();
        let (origins, drain) = (Arc::new(Origins::new(Vec::new())), Drain::new());
        let (shields, clock) = (Shields::new("edge-1".parse().unwrap(), Vec::new()), Clock::start());
        let config = CacheConfig::new(dir.path());
        let cache = Cache::open(&config, lock, origins, shields, clock, &Registry::new(), &drain).unwrap();
        let digest = ObjectDigest::of(b"object");
        let insert_in_memory = |purges| cache.inner.insert_in_memory(digest, Bytes::from_static(b"object"), purges);
        assert!(insert_in_memory(0) && cache.tier(&digest) == Some(Tier::Memory));
        assert_eq!(cache.purge_object(&digest), Some(6));
        assert!(!insert_in_memory(0) && cache.tier(&digest).is_none());
        assert!(insert_in_memory(1) && cache.tier(&digest).is_some());
    }
}

//! Objects, whatever they are part of: looked up in memory, then on disk, then fetched, once for all who ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use prometheus::Registry;
use tokio::task::spawn_blocking;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::manifest::Manifest;
use weir_runtime::directory_lock::DirectoryLock;
use weir_runtime::shutdown::Drain;

use super::budget::MemoryBudget;
use super::disk::Disk;
use super::fill::{Fetch, FillError, Filled, Filler, ObjectRequest};
use super::in_flight::{FillWaiter, InFlightFills, LoadResult};
use super::manifests::Manifests;
use super::memory::Memory;
use super::metrics::{CacheMetrics, RemovalReason, Tier, Usage};
use super::representation::BodyRequest;
use super::source::{Loaded, Source};
use crate::clock::Clock;
use crate::config::CacheConfig;

pub(super) struct Objects {
    pub(super) memory: Memory,
    pub(super) disk: Arc<Disk>,
    budget: Arc<MemoryBudget>,
    in_flight: u64,
    pub(super) manifests: Manifests,
    pub(super) fills: InFlightFills,
    pub(super) filler: Filler,
    /// The number of purges so far.
    purges: AtomicU64,
    metrics: CacheMetrics,
    drain: Drain,
}

/// A loaded object, or the fill to wait for.
pub(super) enum Loading {
    Done(Loaded),
    Waiting(FillWaiter),
}

impl Loading {
    pub(super) async fn result(self) -> LoadResult {
        match self {
            Loading::Done(loaded) => Ok(loaded),
            Loading::Waiting(waiter) => waiter.result().await,
        }
    }
}

impl Objects {
    /// Opens the tiers below a directory that `lock` locks.
    ///
    /// # Errors
    /// A metric is registered already.
    pub(super) fn open(
        config: &CacheConfig,
        lock: DirectoryLock,
        fetch: Arc<dyn Fetch>,
        clock: Clock,
        registry: &Registry,
        drain: &Drain,
    ) -> prometheus::Result<Arc<Self>> {
        let metrics = CacheMetrics::register(registry)?;
        let (memory, in_flight) = (config.memory.as_u64(), config.in_flight.as_u64());
        let budget = Arc::new(MemoryBudget::new(memory, in_flight, config.fill_wait));
        let filler = Filler {
            fetch,
            budget: budget.clone(),
            idle: config.fill_idle,
            max_wait: config.fill_wait,
            metrics: metrics.clone(),
        };
        Ok(Arc::new(Self {
            memory: Memory::new(memory, clock, metrics.clone()),
            disk: Disk::open(&config.dir, lock, config.disk.as_u64(), clock, metrics.clone(), drain),
            budget,
            in_flight,
            manifests: Manifests::new(),
            fills: InFlightFills::new(config.waiters, metrics.clone(), drain),
            filler,
            purges: AtomicU64::new(0),
            metrics,
            drain: drain.clone(),
        }))
    }

    /// An object from memory. Counts as a use, also of its file.
    pub(super) fn in_memory(&self, digest: &ObjectDigest) -> Option<Bytes> {
        let bytes = self.memory.get(digest)?;
        self.disk.touch(digest);
        self.metrics.hit(Tier::Memory, bytes.len() as u64);
        Some(bytes)
    }

    /// Loads an object from memory, disk or origin.
    pub(super) async fn load(self: &Arc<Self>, request: &ObjectRequest, reverify: bool) -> LoadResult {
        self.start_load(request, reverify, true)?.result().await
    }

    /// Starts to load an object. `is_first`: nothing of the body was sent yet.
    pub(super) fn start_load(
        self: &Arc<Self>,
        request: &ObjectRequest,
        reverify: bool,
        is_first: bool,
    ) -> Result<Loading, FillError> {
        let digest = &request.digest;
        if !reverify && let Some(bytes) = self.in_memory(digest) {
            return Ok(Loading::Done(Loaded { bytes, source: Source::Memory }));
        }
        let purges = self.purges.load(Ordering::SeqCst);
        if let Some(bytes) = self.disk.read_cached(digest, &self.budget) {
            self.insert_in_memory(*digest, bytes.clone(), purges);
            return Ok(Loading::Done(Loaded { bytes, source: Source::Disk }));
        }
        self.fills.join(request, is_first, || self.clone().read_or_fill(request.clone())).map(Loading::Waiting)
    }

    /// Starts read-ahead of an object from disk or origin. `None`: no memory or slot is free for that.
    pub(super) fn read_ahead(self: &Arc<Self>, request: &ObjectRequest) -> Option<FillWaiter> {
        self.budget.has_room().then_some(())?;
        self.fills.join_read_ahead(request, || self.clone().read_or_fill(request.clone()))
    }

    /// The tier of an object, without looking at the disk.
    pub(super) fn tier(&self, digest: &ObjectDigest) -> Option<Tier> {
        let in_memory = self.memory.contains(digest).then_some(Tier::Memory);
        in_memory.or_else(|| self.disk.has(digest).then_some(Tier::Disk))
    }

    /// The parsed manifest of a representation. Its object counts as used, so that it is not evicted before its frames.
    pub(super) fn known_manifest(&self, request: &BodyRequest) -> Result<Option<Arc<Manifest>>, FillError> {
        self.disk.touch(&request.stored.digest);
        self.manifests.get(&request.stored.digest, request)
    }

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
        let (objects, storing) = (self.clone(), bytes.clone());
        self.metrics.writes.inc();
        self.drain.spawn(async move {
            objects.disk.store(digest, storing).await;
            if objects.purges.load(Ordering::SeqCst) != purges {
                // The purge may have been of this object.
                let _ = spawn_blocking(move || objects.remove(&digest)).await;
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

    /// Removes an object from all tiers, also one that is being loaded. Returns its size. Blocks.
    pub(super) fn purge(&self, digest: &ObjectDigest) -> Option<u64> {
        self.purges.fetch_add(1, Ordering::SeqCst);
        self.remove(digest)
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

    pub(super) fn usage(&self) -> Usage {
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
    use crate::fill::Attempt;
    use futures_util::future::{BoxFuture, FutureExt};
    use weir_runtime::bounds::Bound;

    struct Nobody;

    impl Fetch for Nobody {
        fn has_shields(&self) -> bool {
            false
        }

        fn fills(&self) -> Bound {
            ("fills", 0, 0)
        }

        fn fetch<'a>(&'a self, _: Attempt<'a>) -> BoxFuture<'a, Result<Filled, FillError>> {
            async { Err(FillError::NotFound) }.boxed()
        }
    }

    #[tokio::test]
    async fn an_object_read_before_a_purge_is_not_cached() {
        let dir = tempfile::tempdir().unwrap();
        let (lock, _) = DirectoryLock::take(dir.path()).unwrap();
        let (config, clock, drain) = (CacheConfig::new(dir.path()), Clock::start(), Drain::new());
        let objects = Objects::open(&config, lock, Arc::new(Nobody), clock, &Registry::new(), &drain).unwrap();
        let digest = ObjectDigest::of(b"object");
        let insert_in_memory = |purges| objects.insert_in_memory(digest, Bytes::from_static(b"object"), purges);
        assert!(insert_in_memory(0) && objects.tier(&digest) == Some(Tier::Memory));
        assert_eq!(objects.purge(&digest), Some(6));
        assert!(!insert_in_memory(0) && objects.tier(&digest).is_none());
        assert!(insert_in_memory(1) && objects.tier(&digest).is_some());
    }
}

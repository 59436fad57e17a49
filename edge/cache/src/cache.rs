//! The doors of the cache: bodies, manifests and objects, and how full it is.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use prometheus::Registry;
use weir_protocol::descriptor::Representation;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::manifest::MAX_OBJECT_BYTES;
use weir_protocol::name::RepositoryName;
use weir_protocol::request_id::RequestId;
use weir_runtime::bounds::Bound;
use weir_runtime::directory_lock::DirectoryLock;
use weir_runtime::shutdown::Drain;

use super::body::{FrameReader, ReadyBody, Transcoding, part};
use super::fill::{Fetch, FillError, ObjectRequest, Size};
use super::in_flight::MAX_IN_FLIGHT;
use super::metrics::{Tier, Usage};
use super::objects::Objects;
use super::representation::{BodyRequest, Frames};
use super::slots::{ClientSlot, ClientSlots};
use super::source::Source;
use crate::cdn_loop::CdnLoop;
use crate::clock::Clock;
use crate::config::CacheConfig;

/// Concurrent fills of one prefetch: most slots are left to clients.
const PREFETCH_CONCURRENCY: usize = 4;

/// Manifests are not prefetched on `HEAD` while more fills than this are in flight, because clients wait for those.
const MANIFEST_PREFETCH_LIMIT: usize = 64;

/// The cache. Cheap to clone.
#[derive(Clone)]
pub struct Cache {
    pub(super) objects: Arc<Objects>,
    decoders: ClientSlots,
    encoders: ClientSlots,
    wait: Duration,
}

impl Cache {
    /// Opens the cache below a directory that `lock` locks. Files of an earlier process are served at once and indexed
    /// in the background. `fetch` is asked for what is in neither.
    ///
    /// # Errors
    /// A metric is registered already.
    pub fn open(
        config: &CacheConfig,
        lock: DirectoryLock,
        fetch: Arc<dyn Fetch>,
        clock: Clock,
        registry: &Registry,
        drain: &Drain,
    ) -> prometheus::Result<Self> {
        Ok(Self {
            objects: Objects::open(config, lock, fetch, clock, registry, drain)?,
            decoders: ClientSlots::new(config.decoders),
            encoders: ClientSlots::new(config.encoders),
            wait: config.fill_wait,
        })
    }

    /// Opens a range of a stored body whose first frame is in memory. Does no I/O and never waits. `request` is called
    /// only when it is needed.
    pub fn open_in_memory(
        &self,
        stored: &Representation,
        range: &Range<u64>,
        request: impl FnOnce() -> BodyRequest,
    ) -> Option<ReadyBody> {
        if stored.frames == 1 {
            let bytes = self.objects.in_memory(&stored.digest)?;
            return part(&bytes, range).ok().map(ReadyBody::Part);
        }
        let request = request();
        let frames = Frames::Many(self.objects.known_manifest(&request).ok()??);
        let slices = frames.slices(range, false);
        let mut frames = Box::new(FrameReader::new(self.objects.clone(), request, frames, slices, false));
        frames.read_first_in_memory()?;
        let length = Some(range.end - range.start);
        Some(ReadyBody::Frames { frames, transcoding: Transcoding::Passthrough, slot: None, length })
    }

    /// The slot that transcoding needs while the body is sent to a client, which may have a name. Fails instead of waiting when
    /// all are in use, or half of them by this client.
    ///
    /// # Errors
    /// [`FillError::Overloaded`].
    pub fn slot(&self, transcoding: Transcoding, client: Option<&str>) -> Result<Option<ClientSlot>, FillError> {
        let slots = match transcoding {
            Transcoding::Passthrough => return Ok(None),
            Transcoding::Decode => &self.decoders,
            Transcoding::Gzip => &self.encoders,
        };
        slots.try_take(client).map(Some).ok_or(FillError::Overloaded)
    }

    /// Opens a range of a body (or of the tar, when it is decoded) once its first frame is loaded. `reverify`: also
    /// frames in memory are verified.
    ///
    /// # Errors
    /// The manifest or the first frame cannot be loaded, or not in time.
    pub async fn open_body(
        &self,
        request: BodyRequest,
        transcoding: Transcoding,
        slot: Option<ClientSlot>,
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
            let mut frames = Box::new(FrameReader::new(self.objects.clone(), request, frames, slices, reverify));
            let first = frames.read_first().await?.map_or(Source::Memory, |first| first.source);
            let length = (transcoding != Transcoding::Gzip).then_some(range.end - range.start);
            Ok((ReadyBody::Frames { frames, transcoding, slot, length }, first.and(listed)))
        };
        // Boxed: every handler's future would contain it otherwise.
        tokio::time::timeout(self.wait, Box::pin(open)).await.unwrap_or(Err(FillError::TimedOut))
    }

    /// The frames of a representation, and the source of their list.
    async fn frames(&self, request: &BodyRequest, reverify: bool) -> Result<(Frames, Source), FillError> {
        if !request.has_manifest() {
            return Ok((Frames::one(request), Source::Memory));
        }
        if let Some(manifest) = self.objects.known_manifest(request)?.filter(|_| !reverify) {
            return Ok((Frames::Many(manifest), Source::Memory));
        }
        let loaded = self.objects.load(&request.named(), reverify).await?;
        let manifest = self.objects.manifests.parse(&request.stored.digest, request, &loaded.bytes)?;
        Ok((Frames::Many(manifest), loaded.source))
    }

    /// Loads the manifest of a representation that has one, and checks that it matches the descriptor.
    ///
    /// # Errors
    /// It cannot be loaded, or not in time, or it contradicts the descriptor.
    pub async fn manifest(&self, request: &BodyRequest, reverify: bool) -> Result<(Bytes, Source), FillError> {
        let load = async {
            let loaded = self.objects.load(&request.named(), reverify).await?;
            if self.objects.known_manifest(request)?.is_none() {
                self.objects.manifests.parse(&request.stored.digest, request, &loaded.bytes)?;
            }
            Ok((loaded.bytes, loaded.source))
        };
        tokio::time::timeout(self.wait, Box::pin(load)).await.unwrap_or(Err(FillError::TimedOut))
    }

    /// Prefetches a representation, and waits for the end.
    pub async fn prefetch(&self, request: BodyRequest) {
        let read_all = async {
            let (frames, _) = self.frames(&request, false).await?;
            let frames = frames.all().iter();
            let missing: Vec<ObjectRequest> = frames
                .filter(|frame| self.objects.tier(&frame.digest).is_none())
                .map(|frame| request.frame(frame))
                .collect();
            let fills = missing.into_iter().map(|frame| async move { self.objects.load(&frame, false).await });
            stream::iter(fills).buffer_unordered(PREFETCH_CONCURRENCY).try_for_each(async |_| Ok(())).await
        };
        // A client that needs it retries and gets the error.
        if let Err(error) = Box::pin(read_all).await {
            tracing::debug!(object = %request.stored.digest, %error, "a new version cannot be prefetched");
        }
    }

    /// Loads an object for another edge, which requested it with `passed`. `reverify`: also in memory.
    ///
    /// # Errors
    /// No origin has it, or it cannot be fetched, or not in time.
    pub async fn object(
        &self,
        repository: RepositoryName,
        digest: ObjectDigest,
        passed: CdnLoop,
        request_id: Option<RequestId>,
        reverify: bool,
    ) -> Result<(Bytes, Source), FillError> {
        // Without shields all requests go to the origins, and are one.
        let passed = if self.objects.filler.fetch.has_shields() { passed } else { CdnLoop::default() };
        let size = Size::AtMost(MAX_OBJECT_BYTES as u64);
        let request = ObjectRequest { repository, digest, size, origin: None, passed, request_id };
        let loading = Box::pin(self.objects.load(&request, reverify));
        let loaded = tokio::time::timeout(self.wait, loading).await.unwrap_or(Err(FillError::TimedOut))?;
        Ok((loaded.bytes, loaded.source))
    }

    /// Prefetches the manifest of a body that a client will probably request next: this saves a round trip to the
    /// origin. `request` is called only when it is needed.
    pub fn prefetch_manifest(&self, stored: &Representation, request: impl FnOnce() -> BodyRequest) {
        let is_quiet = self.objects.fills.len() < MANIFEST_PREFETCH_LIMIT;
        if stored.frames > 1 && is_quiet && self.objects.tier(&stored.digest).is_none() {
            drop(self.objects.read_ahead(&request().named()));
        }
    }

    /// The tier of an object, without looking at the disk.
    pub fn tier(&self, digest: &ObjectDigest) -> Option<Tier> {
        self.objects.tier(digest)
    }

    /// The error of the last write to disk; `None` when it succeeded.
    pub fn disk_failure(&self) -> Option<String> {
        self.objects.disk.last_failure()
    }

    /// The fill level of each bound.
    pub fn bounds(&self) -> [Bound; 9] {
        let objects = &self.objects;
        let (manifests, most) = objects.manifests.usage();
        let usage = objects.usage();
        [
            ("disk_bytes", usage.bytes, usage.limit_bytes),
            ("memory_bytes", usage.memory_bytes, usage.memory_limit_bytes),
            ("in_flight_bytes", usage.in_flight_bytes, usage.in_flight_limit_bytes),
            ("parsed_manifest_bytes", manifests, most),
            ("queued_fills", objects.fills.len() as u64, MAX_IN_FLIGHT as u64),
            objects.fills.waiters(),
            objects.filler.fetch.fills(),
            self.decoders.bound("decoders"),
            self.encoders.bound("gzip_encoders"),
        ]
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        self.objects.usage()
    }
}

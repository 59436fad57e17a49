//! Small blobs, in memory and on disk, by foyer: thousands of them in a few large files, without an open file each.
//!
//! foyer drops silently what does not fit its blocks and buffers, panics when the disk is full, and compares what it
//! reads with a checksum only. So nothing larger than [`LARGEST`] reaches it, its space is reserved before it is used,
//! what it drops is counted (`counters`), and a blob is compared with its name as it is read, before anybody gets it.

mod counters;
mod wanted;

use std::fs::{self, OpenOptions};
use std::hash::BuildHasher;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, Code, Compression, DefaultHasher, DeviceBuilder, Error, ErrorKind, FsDeviceBuilder, HybridCache,
    HybridCacheBuilder, HybridCachePolicy, PsyncIoEngineConfig, RecoverMode, S3FifoConfig, StorageFilter,
};
use rustix::fs::FallocateFlags;
use tokio::runtime::Handle;
use weir_shared::digest::BlobDigest;

use self::counters::DropCounters;
use self::wanted::{IsWanted, Wanted};
use crate::metrics::CacheMetrics;

/// The largest blob that is small, in bytes.
pub(super) const LARGEST: u64 = 256 << 10;

/// The bytes of one of foyer's files, at least and at most. The oldest one goes as a whole; what of it is still asked for
/// is written anew.
const BLOCK_SIZES: (u64, u64) = (4 << 20, 16 << 20);

/// Files that foyer is given, unless they would be smaller or larger than that.
const BLOCKS: u64 = 64;

/// Files without which foyer cannot work well.
const BLOCKS_AT_LEAST: u64 = 8;

/// Bytes that wait to be written: as many as the default number of fills brings at a time. foyer has two such buffers.
const BUFFER: usize = 16 << 20;

/// Bytes that one part of foyer's memory holds at least: each part has a lock of its own.
const SHARD: usize = 8 << 20;

/// What an entry takes in memory besides its bytes.
const OVERHEAD: usize = 128;

/// The tier.
pub(super) struct Small {
    cache: HybridCache<Name, Verified>,
    wanted: Arc<Wanted>,
    disk: u64,
}

/// Where a small blob was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FoundIn {
    Memory,
    Disk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Name(BlobDigest);

/// Bytes with the digest that was computed from them.
#[derive(Debug, Clone)]
struct Verified {
    digest: BlobDigest,
    bytes: Bytes,
}

impl Small {
    /// Whether so many bytes on disk are enough to work with.
    pub(super) fn is_enough(disk: u64) -> bool {
        disk >= BLOCKS_AT_LEAST * BLOCK_SIZES.0
    }

    /// The tier over a directory of its own, with `memory` bytes in memory and `disk` on disk, which are reserved now.
    ///
    /// # Errors
    /// The space cannot be reserved, or foyer does not begin. Nothing of it runs then.
    pub(super) async fn open(dir: &Path, memory: usize, disk: u64, metrics: &CacheMetrics) -> anyhow::Result<Self> {
        // foyer panics when it cannot.
        fs::create_dir_all(dir)?;
        let wanted = Arc::new(Wanted::default());
        let capacity = usize::try_from(disk)?;
        let device = FsDeviceBuilder::new(dir).with_capacity(capacity).build()?;
        let engine = BlockEngineConfig::new(device)
            .with_block_size(usize::try_from((disk / BLOCKS).clamp(BLOCK_SIZES.0, BLOCK_SIZES.1))?)
            .with_buffer_pool_size(BUFFER)
            .with_submit_queue_size_threshold(2 * BUFFER)
            // What is removed stays removed when the process starts again.
            .with_tombstone_log(true)
            .with_reinsertion_filter(StorageFilter::new().with_condition(IsWanted(wanted.clone())));
        let cache = HybridCacheBuilder::new()
            .with_name("small")
            .with_policy(HybridCachePolicy::WriteOnInsertion)
            .with_flush_on_close(false)
            .with_metrics_registry(Box::new(DropCounters::new(metrics.clone())))
            .memory(memory)
            .with_shards((memory / SHARD).clamp(1, 8))
            .with_eviction_config(S3FifoConfig::default())
            .with_weighter(|_: &Name, value: &Verified| value.bytes.len() + OVERHEAD)
            .storage()
            .with_io_engine_config(PsyncIoEngineConfig::new())
            .with_engine_config(engine)
            .with_recover_mode(RecoverMode::Quiet)
            .with_compression(Compression::None)
            .build()
            .await?;
        let small = Self { cache, wanted, disk };
        match reserve(dir) {
            Ok(()) => Ok(small),
            Err(error) => {
                small.close().await;
                Err(error.into())
            }
        }
    }

    /// Whether a blob of this size belongs here.
    pub(super) fn takes(size: u64) -> bool {
        size <= LARGEST
    }

    /// A blob that lies in memory, and whose bytes are what the name says. Does not wait.
    pub(super) fn at_hand(&self, digest: &BlobDigest) -> Option<Bytes> {
        let entry = self.cache.memory().get(&Name(*digest))?;
        self.wanted.note(entry.hash());
        (entry.value().digest == *digest).then(|| entry.value().bytes.clone())
    }

    /// A blob, whose bytes are what the name says.
    pub(super) async fn get(&self, digest: BlobDigest) -> Option<(Bytes, FoundIn)> {
        let (entry, found_in) = match self.cache.get(&Name(digest)).try_unwrap() {
            Ok(entry) => (entry, FoundIn::Memory),
            // A disk that cannot be read holds nothing.
            Err(loading) => (loading.await.ok()??, FoundIn::Disk),
        };
        if entry.value().digest != digest {
            self.remove(&digest);
            return None;
        }
        self.wanted.note(hash(&Name(digest)));
        Some((entry.value().bytes.clone(), found_in))
    }

    /// Takes up a blob, unless its bytes are not what its name says. It is in memory at once and on disk soon.
    pub(super) fn put(&self, digest: BlobDigest, bytes: Bytes) -> bool {
        let value = Verified::of(bytes);
        let is_right = value.digest == digest && Self::takes(value.bytes.len() as u64);
        if is_right {
            self.cache.insert(Name(digest), value);
        }
        is_right
    }

    /// Whether a blob is held. Of one on disk another may have the same short name.
    pub(super) fn holds(&self, digest: &BlobDigest) -> bool {
        self.cache.contains(&Name(*digest))
    }

    /// The size of a blob, which is read for it. Blocks.
    pub(super) fn size(&self, digest: &BlobDigest) -> Option<u64> {
        let held = self.holds(digest).then(|| Handle::current().block_on(self.get(*digest))).flatten();
        held.map(|(bytes, _)| bytes.len() as u64)
    }

    /// Forgets a blob, and gives its size. Blocks.
    pub(super) fn take(&self, digest: &BlobDigest) -> Option<u64> {
        let size = self.size(digest);
        self.remove(digest);
        size
    }

    /// Forgets a blob.
    pub(super) fn remove(&self, digest: &BlobDigest) {
        self.cache.remove(&Name(*digest));
    }

    /// Writes what is on its way to the disk, and takes nothing more.
    pub(super) async fn close(&self) {
        if let Err(error) = self.cache.close().await {
            tracing::warn!(%error, "the small blobs could not all be written; they are fetched again");
        }
    }

    /// Bytes and blobs in memory.
    pub(super) fn in_memory(&self) -> (u64, usize) {
        (self.cache.memory().usage() as u64, self.cache.memory().entries())
    }

    /// Bytes in memory, at the most.
    pub(super) fn memory_limit(&self) -> u64 {
        self.cache.memory().capacity() as u64
    }

    /// Bytes that are reserved on disk.
    pub(super) fn on_disk(&self) -> u64 {
        self.disk
    }
}

/// Puts blocks of the disk behind every byte of foyer's files: it makes them sparse, and panics when the disk turns out to
/// be full. What lies in them stays.
fn reserve(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let file = OpenOptions::new().write(true).open(entry?.path())?;
        let length = file.metadata()?.len();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length)?;
    }
    Ok(())
}

fn hash(name: &Name) -> u64 {
    DefaultHasher::default().hash_one(name)
}

impl Verified {
    fn of(bytes: Bytes) -> Self {
        Self { digest: BlobDigest::of(&bytes), bytes }
    }
}

impl Code for Name {
    fn encode(&self, writer: &mut impl io::Write) -> foyer::Result<()> {
        writer.write_all(self.0.as_bytes()).map_err(Error::io_error)
    }

    fn decode(reader: &mut impl io::Read) -> foyer::Result<Self> {
        let mut bytes = [0; 32];
        reader.read_exact(&mut bytes).map_err(Error::io_error)?;
        Ok(Self(blake3::Hash::from_bytes(bytes).into()))
    }

    fn estimated_size(&self) -> usize {
        32
    }
}

/// The bytes alone: what they hash to is computed anew when they are read.
impl Code for Verified {
    fn encode(&self, writer: &mut impl io::Write) -> foyer::Result<()> {
        self.bytes.encode(writer)
    }

    fn decode(reader: &mut impl io::Read) -> foyer::Result<Self> {
        let mut length = [0; 8];
        reader.read_exact(&mut length).map_err(Error::io_error)?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST {
            return Err(Error::new(ErrorKind::OutOfRange, "larger than any small blob"));
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        reader.read_exact(&mut bytes).map_err(Error::io_error)?;
        Ok(Self::of(bytes.into()))
    }

    fn estimated_size(&self) -> usize {
        self.bytes.estimated_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::Registry;

    fn metrics() -> CacheMetrics {
        crate::metrics::Metrics::register(&Registry::new()).unwrap().cache
    }

    fn blob(n: u32, size: usize) -> Bytes {
        let mut bytes = vec![0; size];
        blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes.into()
    }

    const DISK: u64 = BLOCKS_AT_LEAST * BLOCK_SIZES.0;

    async fn open(dir: &Path) -> Small {
        Small::open(dir, 1 << 20, DISK, &metrics()).await.unwrap()
    }

    /// Waits until what was put is written.
    async fn written(small: &Small) {
        small.cache.storage().wait().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_largest_ones_are_on_disk_after_a_restart_and_what_rots_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let blobs: Vec<Bytes> = (0..40).map(|n| blob(n, LARGEST as usize)).collect();
        let small = open(dir.path()).await;
        for bytes in &blobs {
            assert!(small.put(BlobDigest::of(bytes), bytes.clone()));
        }
        assert!(!small.put(BlobDigest::of(&blobs[0]), blobs[1].clone()), "the bytes of another one");
        let large = blob(0, LARGEST as usize + 1);
        assert!(!small.put(BlobDigest::of(&large), large));
        written(&small).await;
        assert!(small.in_memory().0 <= 1 << 20, "the memory has its own bound");
        small.close().await;
        drop(small);

        let small = open(dir.path()).await;
        for bytes in &blobs {
            assert_eq!(small.get(BlobDigest::of(bytes)).await, Some((bytes.clone(), FoundIn::Disk)));
        }
        assert_eq!(small.get(BlobDigest::of(&blobs[39])).await.unwrap().1, FoundIn::Memory);
        small.remove(&BlobDigest::of(&blobs[39]));
        assert_eq!(small.get(BlobDigest::of(&blobs[39])).await, None);
        small.close().await;
        drop(small);

        // A byte of every sixteenth page.
        for file in fs::read_dir(dir.path()).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            bytes.chunks_mut(100 << 10).for_each(|part| part[100] ^= 1);
            fs::write(&path, bytes).unwrap();
        }
        let small = open(dir.path()).await;
        assert_eq!(small.get(BlobDigest::of(&blobs[39])).await, None, "what was removed does not come back");
        let mut lost = 0;
        for bytes in &blobs[..39] {
            match small.get(BlobDigest::of(bytes)).await {
                Some((found, _)) => assert_eq!(found, bytes),
                None => lost += 1,
            }
        }
        assert!(lost > 0, "some of them lay there");
        small.close().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_scan_leaves_on_disk_what_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let metrics = metrics();
        let small = Small::open(dir.path(), 1 << 20, DISK, &metrics).await.unwrap();
        let hot: Vec<Bytes> = (0..10).map(|n| blob(n, 100_000)).collect();
        for bytes in &hot {
            small.put(BlobDigest::of(bytes), bytes.clone());
        }
        written(&small).await;
        // Five times what the disk holds, in steps that its buffers can take.
        for step in 0..40 {
            for n in 0..16 {
                let bytes = blob(1000 + step * 16 + n, LARGEST as usize);
                small.put(BlobDigest::of(&bytes), bytes);
            }
            written(&small).await;
            for bytes in &hot {
                assert!(small.get(BlobDigest::of(bytes)).await.is_some(), "{step}");
            }
        }
        let first = blob(1000, LARGEST as usize);
        assert_eq!(small.get(BlobDigest::of(&first)).await, None, "the scan itself is gone");
        assert!(metrics.memory_evictions.get() > 600, "{}", metrics.memory_evictions.get());
        assert!(metrics.small_reclaims.get() >= 4 * BLOCKS_AT_LEAST, "{}", metrics.small_reclaims.get());
        small.close().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_space_is_reserved_at_the_start() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let small = open(dir.path()).await;
        let files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
        let (long, taken) = files.fold((0, 0), |(long, taken), file| (long + file.len(), taken + file.blocks() * 512));
        assert!(taken >= long && long > DISK - BLOCK_SIZES.0 && long <= DISK, "{taken} of {long}");
        small.close().await;
        let nowhere = dir.path().join("file");
        fs::write(&nowhere, "").unwrap();
        assert!(Small::open(&nowhere, 1 << 20, DISK, &metrics()).await.is_err());
        assert!(Small::is_enough(DISK) && !Small::is_enough(DISK - 1));
    }
}

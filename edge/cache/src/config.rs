//! `[cache]`: where objects are cached, and how many.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use weir_runtime::config::{ConfigError, duration, size};

/// Where objects are cached, and how many.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheConfig {
    /// Required. Directory of objects and of the catalog. One process at a time uses it.
    pub dir: PathBuf,
    /// Size of objects on disk, in blocks of 4 KiB. Beyond it, S3-FIFO evicts: objects requested once go before others. An
    /// object larger than a sixteenth is served and not stored. Each object takes up to 250 bytes of memory. At least `1MiB`.
    #[serde(with = "size")]
    pub disk: ByteSize,
    /// Size of objects in memory, evicted by S3-FIFO. At least `4MiB`.
    #[serde(with = "size")]
    pub memory: ByteSize,
    /// Memory of further objects: those of fills under way, and those that slow clients still read. While it is used up, requests
    /// for objects that are not in memory wait up to `fill_wait`. At least `16MiB`.
    #[serde(with = "size")]
    pub in_flight: ByteSize,
    /// Services in the catalog, deleted ones included. Beyond it, the least recently requested are dropped and queried again
    /// when needed. At least 1.
    pub services: u64,
    /// Memory of the services in the catalog: about twice their descriptors and 1 KiB each. At least `1MiB`.
    #[serde(with = "size")]
    pub service_bytes: ByteSize,
    /// Fills at a time from each origin and shield. A fill fetches an object that the edge has not stored. Further fills wait.
    /// At least 1.
    pub fills: usize,
    /// How long an origin or shield may send nothing within an object before the fill is retried.
    #[serde(with = "duration")]
    pub fill_idle: Duration,
    /// How long a request waits for its first byte while a fill is under way.
    #[serde(with = "duration")]
    pub fill_wait: Duration,
    /// Requests that wait for an object. Further ones get 503. At least 1.
    pub waiters: usize,
    /// Tarballs decoded at a time, for clients that accept no stored encoding, each with up to 8 MiB of memory. Further ones
    /// get 503. At least 1.
    pub decoders: usize,
    /// Tarballs compressed with gzip at a time, for clients that accept nothing better, each with up to 9 MiB of memory.
    /// Further ones get another accepted encoding, or 503. At least 1.
    pub encoders: usize,
}

/// The minimum of `disk`: a smaller value is probably a mistake, and an edge that starts with it evicts its objects.
const MIN_DISK: ByteSize = ByteSize::mib(1);

/// The least memory for objects.
const MIN_MEMORY: ByteSize = ByteSize::mib(4);

/// The least memory for objects in flight: two of the largest.
const MIN_IN_FLIGHT: ByteSize = ByteSize::mib(16);

/// The least memory for services.
const MIN_SERVICE_BYTES: ByteSize = ByteSize::mib(1);

impl Default for CacheConfig {
    /// Without a directory, which has no default.
    fn default() -> Self {
        Self {
            dir: PathBuf::new(),
            disk: ByteSize::gib(10),
            memory: ByteSize::mib(256),
            in_flight: ByteSize::mib(256),
            services: 100_000,
            service_bytes: ByteSize::gib(1),
            fills: 64,
            fill_idle: Duration::from_secs(10),
            fill_wait: Duration::from_secs(60),
            waiters: 20_000,
            decoders: 128,
            encoders: 32,
        }
    }
}

impl CacheConfig {
    /// A cache in `dir` with the default bounds.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), ..Self::default() }
    }

    /// What is wrong with it.
    pub fn errors(&self) -> Vec<ConfigError> {
        ConfigError::failed([
            (self.dir.as_os_str().is_empty(), "dir in [cache] is needed: the directory of objects and of the catalog"),
            (self.disk < MIN_DISK, "disk in [cache] must be at least \"1MiB\""),
            (self.memory < MIN_MEMORY, "memory in [cache] must be at least \"4MiB\""),
            (self.in_flight < MIN_IN_FLIGHT, "in_flight in [cache] must be at least \"16MiB\""),
            (self.service_bytes < MIN_SERVICE_BYTES, "service_bytes in [cache] must be at least \"1MiB\""),
            (self.services == 0, "services in [cache] must be at least 1"),
            (self.fills == 0, "fills in [cache] must be at least 1"),
            (self.waiters == 0, "waiters in [cache] must be at least 1"),
            (self.decoders == 0, "decoders in [cache] must be at least 1"),
            (self.encoders == 0, "encoders in [cache] must be at least 1"),
            (self.fill_idle.is_zero(), "fill_idle in [cache] must be more than \"0s\", for example \"10s\""),
            (self.fill_wait.is_zero(), "fill_wait in [cache] must be more than \"0s\", for example \"60s\""),
        ])
    }
}

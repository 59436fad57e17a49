//! `[cache]`: where and how much is kept.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use serde::Deserialize;
use weir_runtime::config::{ConfigError, duration, size};

/// `[cache]`: where and how much is kept.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheConfig {
    /// The directory of objects and of the catalog. One edge alone uses it. Needed.
    pub dir: PathBuf,
    /// The bytes of objects on disk.
    #[serde(with = "size")]
    pub disk: ByteSize,
    /// The bytes of objects that stay in memory.
    #[serde(with = "size")]
    pub memory: ByteSize,
    /// The bytes in memory of objects that are being fetched, or are read by clients and do not stay there. While it is used
    /// up, what is not in memory waits, as long as for a fetch.
    #[serde(with = "size")]
    pub in_flight: ByteSize,
    /// The services in the catalog, tombstones included. Beyond it those that nobody has requested for the longest time are
    /// dropped, and asked for again when somebody does.
    pub services: u64,
    /// The memory that the services in the catalog take, about: twice their descriptors and 1 KiB each.
    #[serde(with = "size")]
    pub service_bytes: ByteSize,
    /// The objects that are fetched from origins at a time; further ones wait.
    pub fetches: usize,
    /// How long an origin may be silent in the middle of an object before the fetch is tried again.
    #[serde(with = "duration")]
    pub fetch_idle: Duration,
    /// How long a request waits for its first byte, which may have to be read or fetched first.
    #[serde(with = "duration")]
    pub fetch_wait: Duration,
    /// The requests that wait for an object; further ones are refused (`503`).
    pub waiters: usize,
    /// The tarballs that are decoded at a time, for clients that take no stored coding; each takes up to 8 MiB of memory.
    /// Further ones are refused (`503`).
    pub decoders: usize,
    /// The tarballs that are made gzip at a time, for clients that accept nothing better; each takes up to 9 MiB of memory.
    /// Further ones get the next coding that they accept, or are refused (`503`).
    pub encoders: usize,
}

/// The least disk for objects: less is a slip of the pen, and an edge that starts with it removes what it has.
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
            fetches: 64,
            fetch_idle: Duration::from_secs(10),
            fetch_wait: Duration::from_secs(60),
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

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError::invalid(message));
        if self.dir.as_os_str().is_empty() {
            return invalid("dir in [cache] is needed: the directory of objects and of the catalog");
        }
        if self.disk < MIN_DISK {
            return invalid("disk in [cache] must be at least \"1MiB\"");
        }
        if self.memory < MIN_MEMORY {
            return invalid("memory in [cache] must be at least \"4MiB\"");
        }
        if self.in_flight < MIN_IN_FLIGHT {
            return invalid("in_flight in [cache] must be at least \"16MiB\"");
        }
        if self.service_bytes < MIN_SERVICE_BYTES {
            return invalid("service_bytes in [cache] must be at least \"1MiB\"");
        }
        if self.services == 0 || self.fetches == 0 || self.waiters == 0 {
            return invalid("services, fetches and waiters in [cache] must be at least 1");
        }
        if self.decoders == 0 || self.encoders == 0 {
            return invalid("decoders and encoders in [cache] must be at least 1");
        }
        if self.fetch_idle.is_zero() || self.fetch_wait.is_zero() {
            return invalid("fetch_idle and fetch_wait in [cache] must be more than nothing, for example \"10s\"");
        }
        Ok(())
    }
}

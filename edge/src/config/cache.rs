//! `[cache]`: where and how much is kept.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use weir_shared::process::config::{ConfigError, duration, optional_size, size};

/// `[cache]`: where and how much is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// The directory of blobs and of the service table. One edge alone uses it.
    pub dir: PathBuf,
    /// The bytes of blobs that are kept on disk.
    #[serde(default = "default_disk", with = "size")]
    pub disk: ByteSize,
    /// The blobs that are kept on disk as files.
    #[serde(default = "default_blobs")]
    pub blobs: usize,
    /// The bytes of `disk` that are set aside at the start for blobs of up to 256 KiB: an eighth of `disk`, at most 1 GiB,
    /// when absent; below 32 MiB there are none, and small blobs are kept in files like the others.
    #[serde(default, with = "optional_size")]
    pub small: Option<ByteSize>,
    /// The bytes of blobs that are held in memory.
    #[serde(default = "default_memory", with = "size")]
    pub memory: ByteSize,
    /// How often all blobs on disk are read again and compared with their names; never when zero.
    #[serde(default = "default_scrub", with = "duration")]
    pub scrub: Duration,
    /// The services whose descriptors are held in memory; further ones are read from disk when they are asked for.
    #[serde(default = "default_services")]
    pub services: u64,
    /// The blobs that are fetched from origins at a time; further ones wait.
    #[serde(default = "default_fills")]
    pub fills: usize,
    /// How long an origin may be silent in the middle of a blob before the fill is resumed. Nobody new waits for a fill
    /// that has stood still for twice as long.
    #[serde(default = "default_fill_idle", with = "duration")]
    pub fill_idle: Duration,
    /// How long a request waits for the first byte of a blob, which may have to be verified or fetched first.
    #[serde(default = "default_fill_wait", with = "duration")]
    pub fill_wait: Duration,
    /// The requests that wait for the first bytes of blobs, in all; further ones are refused (`503`).
    #[serde(default = "default_waiters")]
    pub waiters: usize,
    /// The requests that wait for the first byte of one blob; further ones are refused (`503`).
    #[serde(default = "default_waiters_per_fill")]
    pub waiters_per_fill: usize,
    /// The answers whose bytes go past a disk that cannot take them, at a time; each takes up to 2 MiB of memory.
    /// Further ones wait as long as for a fill, and are refused then (`503`).
    #[serde(default = "default_past_disk")]
    pub past_disk: usize,
    /// The blobs in files that are compared with their names at a time, because somebody asks for them; further ones
    /// wait, as long as for a fill.
    #[serde(default = "default_verifications")]
    pub verifications: usize,
    /// The tarballs that are decoded at a time, for clients that take no stored coding; each takes up to 9 MiB of
    /// memory for as long as its client reads. Further ones are refused (`503`).
    #[serde(default = "default_decoders")]
    pub decoders: usize,
}

/// The least disk that blobs can be kept on: less is a slip of the pen, and an edge that starts with it gives up what it
/// holds.
const MIN_DISK: ByteSize = ByteSize::mib(1);

/// The least memory that blobs can be held in.
const MIN_MEMORY: ByteSize = ByteSize::mib(4);

/// What is set aside for small blobs at the most, unless the configuration says more.
const DEFAULT_SMALL: ByteSize = ByteSize::gib(1);

fn default_disk() -> ByteSize {
    ByteSize::gib(10)
}

fn default_blobs() -> usize {
    1_000_000
}

fn default_memory() -> ByteSize {
    ByteSize::mib(256)
}

fn default_scrub() -> Duration {
    Duration::from_secs(3 * 24 * 60 * 60)
}

fn default_services() -> u64 {
    100_000
}

fn default_fills() -> usize {
    64
}

fn default_fill_idle() -> Duration {
    Duration::from_secs(10)
}

fn default_fill_wait() -> Duration {
    Duration::from_secs(60)
}

fn default_waiters() -> usize {
    20_000
}

fn default_waiters_per_fill() -> usize {
    10_000
}

fn default_past_disk() -> usize {
    64
}

fn default_verifications() -> usize {
    8
}

fn default_decoders() -> usize {
    128
}

impl CacheConfig {
    /// The bytes of `disk` that are for small blobs.
    pub(crate) fn small_bytes(&self) -> u64 {
        self.small.map_or((self.disk.as_u64() / 8).min(DEFAULT_SMALL.as_u64()), |small| small.as_u64())
    }

    /// A cache in `dir` with the default bounds.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            disk: default_disk(),
            blobs: default_blobs(),
            small: None,
            memory: default_memory(),
            scrub: default_scrub(),
            services: default_services(),
            fills: default_fills(),
            fill_idle: default_fill_idle(),
            fill_wait: default_fill_wait(),
            waiters: default_waiters(),
            waiters_per_fill: default_waiters_per_fill(),
            past_disk: default_past_disk(),
            verifications: default_verifications(),
            decoders: default_decoders(),
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError::invalid(message));
        if self.disk < MIN_DISK {
            return invalid("disk in [cache] must be at least \"1MiB\"");
        }
        if self.small_bytes() >= self.disk.as_u64() {
            return invalid("small in [cache] is part of disk and must be less");
        }
        if self.memory < MIN_MEMORY {
            return invalid("memory in [cache] must be at least \"4MiB\"");
        }
        if self.services == 0 || self.fills == 0 || self.decoders == 0 || self.blobs == 0 {
            return invalid("blobs, services, fills and decoders in [cache] must be at least 1");
        }
        if self.verifications == 0 {
            return invalid("verifications in [cache] must be at least 1");
        }
        if self.waiters == 0 || self.waiters_per_fill == 0 || self.past_disk == 0 {
            return invalid("waiters, waiters_per_fill and past_disk in [cache] must be at least 1");
        }
        if self.fill_idle.is_zero() || self.fill_wait.is_zero() {
            return invalid("fill_idle and fill_wait in [cache] must be more than nothing, for example \"10s\"");
        }
        Ok(())
    }
}

//! The bounds of an origin's work.

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use weir_runtime::config;

use crate::tarball::Limits;

/// `[limits]`: how much is done at a time, and how large a tarball may be.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Upstreams that are asked at a time whether anything moved.
    pub concurrent_listings: usize,
    /// Upstreams that changes are fetched from at a time. First clones, and LFS files, have half as many
    /// permits of their own, and one more.
    pub concurrent_fetches: usize,
    /// Of each, so many of one host, and always fewer than half: two that hang must not take all.
    pub concurrent_fetches_per_host: usize,
    /// Requests that one upstream host is asked in a minute, all its repositories together.
    pub requests_per_minute_per_host: u32,
    /// Tarballs that are built at a time.
    pub concurrent_builds: usize,
    /// Threads that decode and compress for one build. Default: the processor's cores.
    pub build_threads: usize,
    /// Objects that are in memory at a time to be sent to edges, each of at most 8 MiB.
    pub concurrent_objects: usize,
    /// Event streams that are open at a time.
    pub event_streams: usize,
    /// Events that are kept for readers that come back.
    pub events: usize,
    /// The memory that they may take.
    #[serde(with = "config::size")]
    pub event_bytes: ByteSize,
    /// The largest file in a tarball.
    #[serde(with = "config::size")]
    pub max_file: ByteSize,
    /// The largest tarball, uncompressed.
    #[serde(with = "config::size")]
    pub max_tarball: ByteSize,
    /// The most entries in a tarball.
    pub max_entries: usize,
    /// The most repositories, of the file and of operators together.
    pub max_repositories: usize,
    /// The most services, likewise.
    pub max_services: usize,
    /// Dry runs that are made at a time.
    pub concurrent_dry_runs: usize,
    /// While the disk has less room than this, nothing is built.
    #[serde(with = "config::size")]
    pub min_free: ByteSize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let tarball = Limits::default();
        Self {
            concurrent_listings: 32,
            concurrent_fetches: 8,
            concurrent_fetches_per_host: 4,
            requests_per_minute_per_host: 1200,
            concurrent_builds: 2,
            build_threads: cores,
            concurrent_objects: 64,
            event_streams: 1024,
            events: 10_000,
            event_bytes: ByteSize::mib(64),
            max_file: ByteSize(tarball.max_file_bytes),
            max_tarball: ByteSize(tarball.max_tarball_bytes),
            max_entries: tarball.max_entries,
            max_repositories: 10_000,
            max_services: 100_000,
            concurrent_dry_runs: 2,
            min_free: ByteSize::mib(64),
        }
    }
}

impl LimitsConfig {
    /// The part that a build looks at.
    pub fn tarball(&self) -> Limits {
        Limits {
            max_file_bytes: self.max_file.as_u64(),
            max_tarball_bytes: self.max_tarball.as_u64(),
            max_entries: self.max_entries,
        }
    }

    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (key, value) in [
            ("concurrent_listings", self.concurrent_listings),
            ("concurrent_fetches", self.concurrent_fetches),
            ("concurrent_fetches_per_host", self.concurrent_fetches_per_host),
            ("requests_per_minute_per_host", self.requests_per_minute_per_host as usize),
            ("concurrent_builds", self.concurrent_builds),
            ("build_threads", self.build_threads),
            ("concurrent_objects", self.concurrent_objects),
            ("event_streams", self.event_streams),
            ("events", self.events),
            ("max_entries", self.max_entries),
            ("max_repositories", self.max_repositories),
            ("max_services", self.max_services),
            ("concurrent_dry_runs", self.concurrent_dry_runs),
        ] {
            if !(1..=100_000_000).contains(&value) {
                faults.push(format!("[limits] {key} = {value}: it must be at least 1, and at most 100000000"));
            }
        }
        if self.event_bytes.as_u64() == 0 {
            faults.push("[limits] event_bytes must be more than nothing, for example \"64MiB\"".to_owned());
        }
        faults
    }
}

//! `[limits]`: concurrency and sizes.

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use weir_protocol::dcz::MAX_TAR_BYTES;
use weir_runtime::config;
use weir_tarball::Limits;

/// Concurrency, and the largest tarball. Counts are 1 to 100,000,000.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Upstreams listed at a time, to find out whether a ref moved.
    pub concurrent_listings: usize,
    /// Upstreams fetched from at a time. First clones have half as many permits of their own and one more, and so have LFS
    /// fetches.
    pub concurrent_fetches: usize,
    /// The same for listings and fetches of one host, and always fewer than half of all permits, so that a slow host delays
    /// only its own repositories. Local paths count as one host.
    pub concurrent_fetches_per_host: usize,
    /// Requests to one upstream host in a minute, over all its repositories. Ten seconds' worth may be sent at once. Local
    /// paths do not count.
    pub requests_per_minute_per_host: u32,
    /// Tarballs built at a time. The services of one repository have all of them but one, and at least one.
    pub concurrent_builds: usize,
    /// Threads that decode and compress for one build. Default: the number of processor cores.
    pub build_threads: usize,
    /// Objects in memory at a time to be sent to edges, each up to 8 MiB. A request waits 10 s for a permit, then gets 503.
    pub concurrent_objects: usize,
    /// Open event streams: one for each edge. Further edges get 429 with `Retry-After`, and poll.
    pub event_streams: usize,
    /// Events in memory for edges that reconnect. An edge that missed more gets a full snapshot.
    pub events: usize,
    /// Memory of these events.
    #[serde(with = "config::size")]
    pub event_bytes: ByteSize,
    /// Largest file in a tarball. `upstreams.max_object` applies first to files that Git stores itself.
    #[serde(with = "config::size")]
    pub max_file: ByteSize,
    /// Largest tarball, uncompressed.
    #[serde(with = "config::size")]
    pub max_tarball: ByteSize,
    /// Largest tarball, uncompressed, for which deltas are made: agents then fetch only what has changed since one of the
    /// last three versions, and of larger tarballs the frames that they lack. At most "8MiB". "0B": no deltas.
    #[serde(with = "config::size")]
    pub max_delta_tarball: ByteSize,
    /// Most entries in a tarball.
    pub max_entries: usize,
    /// Most repositories, of this file and of operators together. Operators get 429 beyond it.
    pub max_repositories: usize,
    /// Most services, of this file and of operators together. Operators get 429 beyond it.
    pub max_services: usize,
    /// Most agents that operators define. Operators get 429 beyond it. Edges of before 0.2 get at most 10,000.
    pub max_agents: usize,
    /// Most assignments that operators define. Operators get 429 beyond it. Edges of before 0.2 get at most 1,000.
    pub max_assignments: usize,
    /// Most issuers that operators define. Operators get 429 beyond it. Edges of before 0.2 get at most 2,000.
    pub max_issuers: usize,
    /// Most of these issuers with the URL of their keys, which every edge fetches every 10 minutes: 2,000 are 3.3 fetches a second at
    /// each edge, 20,000 are 33. Operators get 429 beyond it.
    pub max_issuer_urls: usize,
    /// Memory of these documents, as JSON. Operators get 429 beyond it. Edges of before 0.2 get at most 10 MiB, with the entries of
    /// the file.
    #[serde(with = "config::size")]
    pub fleet_bytes: ByteSize,
    /// Dry runs at a time. Further ones get 503 with `Retry-After`.
    pub concurrent_dry_runs: usize,
    /// Most agents whose rows edges may report. Beyond it the agents give way that were silent longest, then new ones are left out.
    pub observed_agents: usize,
    /// Most rows of all agents: an agent has one for each service.
    pub observed_rows: usize,
    /// Memory of these rows.
    #[serde(with = "config::size")]
    pub observed_bytes: ByteSize,
    /// Most edges that report with one certificate, each by a `name` of its own or behind a shield with it, of 1,000 in all. Further ones
    /// get 429.
    pub observed_edges_per_identity: usize,
    /// Free bytes on the disk of `data_dir` below which nothing is built.
    #[serde(with = "config::size")]
    pub min_free: ByteSize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (tarball, observed) = (Limits::default(), weir_observed::Bounds::default());
        Self {
            concurrent_listings: 32,
            concurrent_fetches: 8,
            concurrent_fetches_per_host: 4,
            requests_per_minute_per_host: 1200,
            concurrent_builds: 3,
            build_threads: cores,
            concurrent_objects: 64,
            event_streams: 1024,
            events: 10_000,
            event_bytes: ByteSize::mib(64),
            max_file: ByteSize(tarball.max_file_bytes),
            max_tarball: ByteSize(tarball.max_tarball_bytes),
            max_delta_tarball: ByteSize(MAX_TAR_BYTES),
            max_entries: tarball.max_entries,
            max_repositories: 10_000,
            max_services: 100_000,
            max_agents: 100_000,
            max_assignments: 10_000,
            max_issuers: 20_000,
            max_issuer_urls: 2_000,
            fleet_bytes: ByteSize::mib(256),
            concurrent_dry_runs: 2,
            observed_agents: observed.agents,
            observed_rows: observed.rows,
            observed_bytes: ByteSize(observed.bytes as u64),
            observed_edges_per_identity: observed.edges_per_identity,
            min_free: ByteSize::mib(64),
        }
    }
}

impl LimitsConfig {
    /// The limits of a tarball.
    pub fn tarball(&self) -> Limits {
        Limits {
            max_file_bytes: self.max_file.as_u64(),
            max_tarball_bytes: self.max_tarball.as_u64(),
            max_entries: self.max_entries,
            ..Limits::default()
        }
    }

    /// How much the table of what agents run holds.
    pub(crate) fn observed(&self) -> weir_observed::Bounds {
        let bytes = usize::try_from(self.observed_bytes.as_u64()).unwrap_or(usize::MAX);
        weir_observed::Bounds {
            agents: self.observed_agents,
            rows: self.observed_rows,
            bytes,
            edges_per_identity: self.observed_edges_per_identity,
        }
    }

    pub(super) fn errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
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
            ("max_agents", self.max_agents),
            ("max_assignments", self.max_assignments),
            ("max_issuers", self.max_issuers),
            ("max_issuer_urls", self.max_issuer_urls),
            ("concurrent_dry_runs", self.concurrent_dry_runs),
            ("observed_agents", self.observed_agents),
            ("observed_rows", self.observed_rows),
            ("observed_edges_per_identity", self.observed_edges_per_identity),
        ] {
            if !(1..=100_000_000).contains(&value) {
                errors.push(format!("[limits] {key} = {value}: it must be between 1 and 100000000"));
            }
        }
        if self.max_delta_tarball.as_u64() > MAX_TAR_BYTES {
            errors.push(
                "[limits] max_delta_tarball is more than \"8MiB\": agents apply no delta of a larger tarball"
                    .to_owned(),
            );
        }
        if self.event_bytes.as_u64() == 0 {
            errors.push("[limits] event_bytes must not be 0: write for example \"64MiB\"".to_owned());
        }
        errors
    }
}

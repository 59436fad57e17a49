//! What an edge counts. Each component is given its own families; nothing is global.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use weir_shared::event::EventKind;
use weir_shared::process::metric_families::MetricFamilies;

use crate::blob_cache::{DiskTrouble, Holding, Source};

/// What the agents' side counts.
#[derive(Debug, Clone)]
pub(crate) struct ApiMetrics {
    requests: IntCounterVec,
    /// Of `requests`, the polls and the fetches that find everything at hand: looked up once, because nothing is asked for
    /// more often.
    unchanged: IntCounter,
    full: IntCounter,
    /// In the order of [`SOURCES`].
    served: [Served; SOURCES.len()],
    served_staleness: Histogram,
    publication_age: Histogram,
}

/// Where the bytes of a body come from: values of a label.
const SOURCES: [&str; 3] = ["memory", "disk", "origin"];

/// Bodies from one source, and their bytes.
#[derive(Debug, Clone)]
struct Served {
    bodies: IntCounter,
    bytes: IntCounter,
}

/// What the service table counts.
#[derive(Debug, Clone)]
pub(crate) struct TableMetrics {
    pub(crate) regressions: IntCounter,
    pub(crate) collapsed_asks: IntCounter,
    stale_served: IntCounterVec,
    pub(crate) entries: IntGauge,
    gzips: IntCounterVec,
}

/// What the requests to origins count.
#[derive(Debug, Clone)]
pub(crate) struct OriginMetrics {
    requests: IntCounterVec,
    received_bytes: IntCounter,
    up: IntGaugeVec,
    circuits_opened: IntCounterVec,
}

/// What the followers of event streams count.
#[derive(Debug, Clone)]
pub(crate) struct FollowerMetrics {
    up: IntGaugeVec,
    last_heartbeat: IntGaugeVec,
    events: IntCounterVec,
    resyncs: IntCounterVec,
    ended: IntCounterVec,
    refused: IntCounterVec,
    pub(crate) push_delay: Histogram,
    pub(crate) push_missed: IntCounter,
    warmed: IntCounterVec,
}

/// Why something that was pushed was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A newer version was seen before.
    Regressed,
    /// The service is another origin's.
    AnotherOrigins,
    /// This version of the edge cannot read it.
    Unreadable,
}

/// What the blob cache counts.
#[derive(Debug, Clone)]
pub(crate) struct CacheMetrics {
    fills: IntCounterVec,
    fill_duration: Histogram,
    fill_first_byte: Histogram,
    fill_resumes: IntCounterVec,
    pub(crate) pieces_verified: IntCounter,
    pub(crate) fills_running: IntGauge,
    pub(crate) fills_limit: IntGauge,
    pub(crate) fill_waiters: IntGauge,
    pub(crate) fill_waiters_limit: IntGauge,
    pub(crate) fill_waiters_refused: IntCounter,
    served_through: IntCounterVec,
    pub(crate) serving_through: IntGauge,
    pub(crate) serving_through_limit: IntGauge,
    pub(crate) collapsed_fills: IntCounter,
    pub(crate) decoders: IntGauge,
    pub(crate) decoders_limit: IntGauge,
    verify_failures: IntCounterVec,
    evictions: IntCounterVec,
    evicted_bytes: IntCounterVec,
    evicted_idle: Histogram,
    pub(crate) memory_evictions: IntCounter,
    /// In the order of [`Tier`].
    hits: [Hits; TIERS.len()],
    writes_dropped: IntCounterVec,
    scrubbed_blobs: IntCounterVec,
    pub(crate) scrubbed_bytes: IntCounter,
    pub(crate) scrub_round: IntGauge,
    pub(crate) usage: CacheUsage,
}

/// How full the blob cache is. Filled in when somebody looks.
#[derive(Debug, Clone)]
pub(crate) struct CacheUsage {
    bytes: IntGauge,
    limit_bytes: IntGauge,
    entries: IntGauge,
    limit_entries: IntGauge,
    oldest_idle_seconds: IntGauge,
    memory_bytes: IntGauge,
    memory_limit_bytes: IntGauge,
    memory_entries: IntGauge,
    small_limit_bytes: IntGauge,
    is_writing: IntGauge,
}

/// Where a blob was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// In memory.
    Memory,
    /// Among the small ones on disk.
    Small,
    /// In a file of its own.
    File,
}

/// The tiers, as values of a label.
const TIERS: [&str; 3] = ["memory", "small", "file"];

/// Blobs that were found in one tier, and their bytes.
#[derive(Debug, Clone)]
struct Hits {
    blobs: IntCounter,
    bytes: IntCounter,
}

/// Why a blob that was fetched was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteDropped {
    /// The disk did not take it.
    Disk(DiskTrouble),
    /// The disk was full or read-only a moment ago.
    Paused,
    /// It is larger than the whole cache.
    TooLarge,
    /// Other blobs on their way have all the room that there is for them.
    NoRoom,
    /// A small blob found the buffer full that goes to disk next.
    BufferFull,
    /// A small blob found too many before it that wait to be written.
    QueueFull,
}

impl WriteDropped {
    /// The value of a metric's label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            WriteDropped::Disk(trouble) => trouble.as_str(),
            WriteDropped::Paused => "paused",
            WriteDropped::TooLarge => "too_large",
            WriteDropped::NoRoom => "no_room",
            WriteDropped::BufferFull => "small_buffer_full",
            WriteDropped::QueueFull => "small_queue_full",
        }
    }
}

/// All families of an edge.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub(crate) api: ApiMetrics,
    pub(crate) table: TableMetrics,
    pub(crate) origin: OriginMetrics,
    pub(crate) follower: FollowerMetrics,
    pub(crate) cache: CacheMetrics,
    pub(crate) operators: OperatorMetrics,
}

/// What operators' requests count.
#[derive(Debug, Clone)]
pub(crate) struct OperatorMetrics {
    purges: IntCounterVec,
}

/// Where a verification failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VerifiedAt {
    /// The bytes of a file that the edge itself had written.
    Disk,
    /// The bytes that an origin sent.
    Origin,
}

/// Why a blob was dropped from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// Room was needed.
    Size,
    /// Its bytes were no longer what its name says.
    Corrupt,
    /// Somebody else deleted its file.
    Vanished,
    /// An operator wanted it.
    Purged,
}

/// Why an answer was served although it was stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StaleWhy {
    /// The origin is being asked in the background.
    Revalidating,
    /// The origin was waited for in vain.
    OriginSlow,
    /// The origin could not be asked.
    OriginFailed,
    /// The origin offered an older version than was seen before.
    Regressed,
}

impl StaleWhy {
    /// The value of a metric's label, and of a log's field.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            StaleWhy::Revalidating => "revalidating",
            StaleWhy::OriginSlow => "origin_slow",
            StaleWhy::OriginFailed => "origin_failed",
            StaleWhy::Regressed => "regressed",
        }
    }
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let family = MetricFamilies(registry);
        let requests = family.counters(
            "weir_edge_requests_total",
            "Requests of agents, by what was asked for, what the cache did and the status of the answer.",
            &["route", "method", "cache", "status"],
        )?;
        let served = family.counters(
            "weir_edge_tarballs_served_total",
            "Bodies of tarballs that were begun, by where their bytes came from.",
            &["tier"],
        )?;
        let sent_bytes = family.counters(
            "weir_edge_sent_bytes_total",
            "Bytes of tarballs handed to agents, by where they came from.",
            &["tier"],
        )?;
        Ok(Self {
            api: ApiMetrics {
                unchanged: requests.with_label_values(&["tarball", "HEAD", "hit", "304"]),
                full: requests.with_label_values(&["tarball", "GET", "hit", "200"]),
                requests,
                served: SOURCES.map(|source| Served {
                    bodies: served.with_label_values(&[source]),
                    bytes: sent_bytes.with_label_values(&[source]),
                }),
                publication_age: family.histogram(
                    "weir_edge_served_publication_age_seconds",
                    "How long before a body was sent its version had been published.",
                    &[0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 3600.0, 86_400.0, 604_800.0],
                )?,
                served_staleness: family.histogram(
                    "weir_edge_served_staleness_seconds",
                    "For how long the stale answers that were served had been stale.",
                    &[1.0, 5.0, 15.0, 60.0, 300.0, 3600.0, 21_600.0, 86_400.0, 604_800.0],
                )?,
            },
            table: TableMetrics {
                regressions: family.counter(
                    "weir_edge_generation_regressions_total",
                    "Descriptors that were refused because a newer one had been seen. Should be 0.",
                )?,
                collapsed_asks: family.counter(
                    "weir_edge_asks_collapsed_total",
                    "Requests that waited for a question to an origin that was under way already.",
                )?,
                stale_served: family.counters(
                    "weir_edge_stale_served_total",
                    "Answers that were served although they were stale, by the reason.",
                    &["why"],
                )?,
                entries: family
                    .gauge("weir_edge_table_entries", "Services in the table, in memory; tombstones included.")?,
                gzips: family.counters(
                    "weir_edge_gzips_total",
                    "Questions to origins to make a gzip representation, by the result.",
                    &["result"],
                )?,
            },
            origin: OriginMetrics {
                requests: family.counters(
                    "weir_edge_origin_requests_total",
                    "Requests to origins, by what was asked for and the status of the answer.",
                    &["kind", "status"],
                )?,
                received_bytes: family
                    .counter("weir_edge_origin_received_bytes_total", "Bytes of bodies that origins sent.")?,
                up: family.gauges(
                    "weir_edge_origin_up",
                    "Whether an origin has answered and its circuit is closed.",
                    &["origin"],
                )?,
                circuits_opened: family.counters(
                    "weir_edge_origin_circuit_opened_total",
                    "How often an origin was left alone because it had not answered.",
                    &["origin"],
                )?,
            },
            follower: FollowerMetrics::register(&family)?,
            cache: CacheMetrics::register(&family)?,
            operators: OperatorMetrics {
                purges: family.counters(
                    "weir_edge_purges_total",
                    "Purges by operators, by what was named and how far they went.",
                    &["kind", "mode"],
                )?,
            },
        })
    }
}

impl FollowerMetrics {
    fn register(family: &MetricFamilies<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            up: family.gauges(
                "weir_edge_stream_up",
                "Whether an origin's event stream is followed and in step.",
                &["origin"],
            )?,
            last_heartbeat: family.gauges(
                "weir_edge_stream_last_heartbeat_timestamp_seconds",
                "When an origin's event stream last said that everything was told, in Unix seconds.",
                &["origin"],
            )?,
            events: family.counters("weir_edge_events_total", "Events that origins sent, by kind.", &["event"])?,
            resyncs: family.counters(
                "weir_edge_resyncs_total",
                "Event streams that began with everything that is current: start, cursor_unknown, lost.",
                &["why"],
            )?,
            ended: family.counters("weir_edge_streams_ended_total", "Event streams that ended, by why.", &["why"])?,
            refused: family.counters(
                "weir_edge_push_refused_total",
                "Pushed descriptors that were not taken: regressed, another_origins, unreadable.",
                &["why"],
            )?,
            push_delay: family.histogram(
                "weir_edge_push_delay_seconds",
                "From a publication until it was in the table, by the wall clocks of both machines.",
                &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0],
            )?,
            push_missed: family.counter(
                "weir_edge_push_missed_total",
                "Versions that were found by asking and that an event stream in step had not told of. Should be 0.",
            )?,
            warmed: family.counters(
                "weir_edge_warmed_total",
                "New versions of services in use: begun (to be fetched before anybody asks), dropped (too many waited).",
                &["result"],
            )?,
        })
    }

    pub(crate) fn stream_up(&self, origin: &str, up: bool) {
        self.up.with_label_values(&[origin]).set(i64::from(up));
    }

    pub(crate) fn heartbeat(&self, origin: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.last_heartbeat.with_label_values(&[origin]).set(i64::try_from(now).unwrap_or(i64::MAX));
    }

    pub(crate) fn event(&self, kind: &EventKind) {
        self.events.with_label_values(&[kind.as_str()]).inc();
    }

    pub(crate) fn resynced(&self, why: &str) {
        self.resyncs.with_label_values(&[why]).inc();
    }

    pub(crate) fn stream_ended(&self, why: &str) {
        self.ended.with_label_values(&[why]).inc();
    }

    pub(crate) fn refused(&self, why: Refused) {
        let why = match why {
            Refused::Regressed => "regressed",
            Refused::AnotherOrigins => "another_origins",
            Refused::Unreadable => "unreadable",
        };
        self.refused.with_label_values(&[why]).inc();
    }

    pub(crate) fn warmed(&self, result: &str) {
        self.warmed.with_label_values(&[result]).inc();
    }
}

impl CacheMetrics {
    fn register(family: &MetricFamilies<'_>) -> prometheus::Result<Self> {
        let hits = family.counters("weir_edge_cache_hits_total", "Blobs found in the cache, by where.", &["tier"])?;
        let hit_bytes = family.counters(
            "weir_edge_cache_hit_bytes_total",
            "Bytes of the blobs that were found in the cache, by where.",
            &["tier"],
        )?;
        Ok(Self {
            fills: family.counters(
                "weir_edge_fills_total",
                "Blobs fetched from origins, by the result.",
                &["result"],
            )?,
            fill_duration: family.histogram(
                "weir_edge_fill_duration_seconds",
                "From the beginning of a fill until its blob was verified and stored.",
                &[0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0],
            )?,
            fill_first_byte: family.histogram(
                "weir_edge_fill_first_byte_seconds",
                "From the question to the origin until the first piece of a blob was verified.",
                &[0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0],
            )?,
            fill_resumes: family.counters(
                "weir_edge_fill_resumes_total",
                "Transfers of blobs that were taken up again, by what had ended them.",
                &["reason"],
            )?,
            pieces_verified: family
                .counter("weir_edge_pieces_verified_total", "Pieces of blobs that origins sent and that were right.")?,
            fills_running: family.gauge("weir_edge_fills_running", "Blobs that are being fetched now.")?,
            fills_limit: family.gauge("weir_edge_fills_limit", "Blobs that are fetched at a time, at the most.")?,
            fill_waiters: family
                .gauge("weir_edge_fill_waiters", "Requests that wait for the first byte of a blob now.")?,
            fill_waiters_limit: family.gauge(
                "weir_edge_fill_waiters_limit",
                "Requests that wait for the first byte of a blob, at the most.",
            )?,
            fill_waiters_refused: family.counter(
                "weir_edge_fill_waiters_refused_total",
                "Requests that were refused because too many wait for a blob.",
            )?,
            served_through: family.counters(
                "weir_edge_served_through_total",
                "Answers whose bytes went past the edge's disk, by what was the matter with it.",
                &["why"],
            )?,
            serving_through: family
                .gauge("weir_edge_serving_through", "Answers whose bytes go past the edge's disk now.")?,
            serving_through_limit: family.gauge(
                "weir_edge_serving_through_limit",
                "Answers whose bytes go past the edge's disk at a time, at the most.",
            )?,
            collapsed_fills: family.counter(
                "weir_edge_fills_collapsed_total",
                "Requests that waited for a fill that was under way already.",
            )?,
            decoders: family.gauge("weir_edge_decoders", "Tarballs that are being decoded for clients now.")?,
            decoders_limit: family
                .gauge("weir_edge_decoders_limit", "Tarballs that are decoded at a time, at the most.")?,
            verify_failures: family.counters(
                "weir_edge_verify_failures_total",
                "Blobs whose bytes were not what their name says, by where they came from. Should be 0.",
                &["where"],
            )?,
            evictions: family.counters("weir_edge_evictions_total", "Blobs dropped from the cache.", &["reason"])?,
            evicted_bytes: family.counters(
                "weir_edge_evicted_bytes_total",
                "Bytes of blobs dropped from the cache.",
                &["reason"],
            )?,
            evicted_idle: family.histogram(
                "weir_edge_evicted_idle_seconds",
                "For how long blobs that were evicted for want of room had not been used.",
                &[1.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0, 2_592_000.0],
            )?,
            memory_evictions: family.counter(
                "weir_edge_cache_memory_evictions_total",
                "Blobs dropped from memory for want of room; they are still on disk.",
            )?,
            hits: TIERS.map(|tier| Hits {
                blobs: hits.with_label_values(&[tier]),
                bytes: hit_bytes.with_label_values(&[tier]),
            }),
            writes_dropped: family.counters(
                "weir_edge_cache_write_dropped_total",
                "Blobs that were fetched and served and could not be kept, by the reason.",
                &["reason"],
            )?,
            scrubbed_blobs: family.counters(
                "weir_edge_scrub_blobs_total",
                "Blobs on disk that were read again in the background, by the result.",
                &["result"],
            )?,
            scrubbed_bytes: family
                .counter("weir_edge_scrub_bytes_total", "Bytes on disk that were read again in the background.")?,
            scrub_round: family.gauge(
                "weir_edge_scrub_round_timestamp_seconds",
                "When all blobs on disk had been read again in the background for the last time.",
            )?,
            usage: CacheUsage::new()?,
        })
    }

    pub(crate) fn filled(&self, result: &'static str, took: Duration) {
        self.fills.with_label_values(&[result]).inc();
        self.fill_duration.observe(took.as_secs_f64());
    }

    pub(crate) fn first_piece_verified(&self, took: Duration) {
        self.fill_first_byte.observe(took.as_secs_f64());
    }

    pub(crate) fn resumed(&self, reason: &'static str) {
        self.fill_resumes.with_label_values(&[reason]).inc();
    }

    pub(crate) fn served_through(&self, why: &'static str) {
        self.served_through.with_label_values(&[why]).inc();
    }

    pub(crate) fn verify_failed(&self, at: VerifiedAt) {
        let place = match at {
            VerifiedAt::Disk => "disk",
            VerifiedAt::Origin => "origin",
        };
        self.verify_failures.with_label_values(&[place]).inc();
    }

    /// A blob was dropped that had not been used for `idle`.
    pub(crate) fn dropped(&self, why: Dropped, bytes: u64, idle: Duration) {
        let reason = match why {
            Dropped::Size => "size",
            Dropped::Corrupt => "corrupt",
            Dropped::Vanished => "vanished",
            Dropped::Purged => "purged",
        };
        if why == Dropped::Size {
            self.evicted_idle.observe(idle.as_secs_f64());
        }
        self.evictions.with_label_values(&[reason]).inc();
        self.evicted_bytes.with_label_values(&[reason]).inc_by(bytes);
    }

    /// Registers the gauges that describe the cache's use; `refresh` sets them when somebody looks.
    pub(crate) fn observe_use(
        &self,
        registry: &Registry,
        refresh: impl Fn() + Send + Sync + 'static,
    ) -> prometheus::Result<()> {
        registry.register(Box::new(Observed { gauges: self.usage.all(), refresh: Box::new(refresh) }))
    }

    pub(crate) fn hit(&self, tier: Tier, bytes: u64) {
        let hits = &self.hits[tier as usize];
        hits.blobs.inc();
        hits.bytes.inc_by(bytes);
    }

    pub(crate) fn write_dropped(&self, why: WriteDropped) {
        self.writes_dropped.with_label_values(&[why.as_str()]).inc();
    }

    pub(crate) fn scrubbed(&self, result: &'static str) {
        self.scrubbed_blobs.with_label_values(&[result]).inc();
    }
}

impl CacheUsage {
    fn new() -> prometheus::Result<Self> {
        Ok(Self {
            bytes: IntGauge::new("weir_edge_cache_bytes", "Bytes of blobs in files, those being fetched included.")?,
            limit_bytes: IntGauge::new("weir_edge_cache_limit_bytes", "Bytes of blobs in files, at the most.")?,
            entries: IntGauge::new("weir_edge_cache_entries", "Blobs in files.")?,
            limit_entries: IntGauge::new("weir_edge_cache_limit_entries", "Blobs in files, at the most.")?,
            oldest_idle_seconds: IntGauge::new(
                "weir_edge_cache_oldest_idle_seconds",
                "How long a blob that is next to be evicted has not been used: the longer, the roomier the cache.",
            )?,
            memory_bytes: IntGauge::new("weir_edge_cache_memory_bytes", "Bytes of blobs in memory.")?,
            memory_limit_bytes: IntGauge::new(
                "weir_edge_cache_memory_limit_bytes",
                "Bytes of blobs in memory, at the most.",
            )?,
            memory_entries: IntGauge::new("weir_edge_cache_memory_entries", "Blobs in memory.")?,
            small_limit_bytes: IntGauge::new(
                "weir_edge_cache_small_limit_bytes",
                "Bytes on disk that are reserved for small blobs; 0 when small blobs are kept in files.",
            )?,
            is_writing: IntGauge::new(
                "weir_edge_cache_writing",
                "Whether blobs are kept on disk: 0 for a while after it was found full or read-only.",
            )?,
        })
    }

    fn all(&self) -> Vec<IntGauge> {
        [
            &self.bytes,
            &self.limit_bytes,
            &self.entries,
            &self.limit_entries,
            &self.oldest_idle_seconds,
            &self.memory_bytes,
            &self.memory_limit_bytes,
            &self.memory_entries,
            &self.small_limit_bytes,
            &self.is_writing,
        ]
        .map(Clone::clone)
        .to_vec()
    }

    pub(crate) fn set(&self, holding: &Holding, limit_entries: u64, is_writing: bool) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.bytes.set(number(holding.bytes));
        self.limit_bytes.set(number(holding.limit_bytes));
        self.entries.set(number(holding.blobs as u64));
        self.limit_entries.set(number(limit_entries));
        self.oldest_idle_seconds.set(number(holding.oldest_idle_seconds.unwrap_or(0)));
        self.memory_bytes.set(number(holding.memory_bytes));
        self.memory_limit_bytes.set(number(holding.memory_limit_bytes));
        self.memory_entries.set(number(holding.memory_blobs as u64));
        self.small_limit_bytes.set(number(holding.small_limit_bytes));
        self.is_writing.set(i64::from(is_writing));
    }
}

impl ApiMetrics {
    pub(crate) fn answered(&self, route: &str, method: &http::Method, cache: &str, status: http::StatusCode) {
        let method = match *method {
            http::Method::GET => "GET",
            http::Method::HEAD => "HEAD",
            _ => "other",
        };
        match (route, method, cache, status) {
            ("tarball", "HEAD", "hit", http::StatusCode::NOT_MODIFIED) => self.unchanged.inc(),
            ("tarball", "GET", "hit", http::StatusCode::OK) => self.full.inc(),
            _ => self.requests.with_label_values(&[route, method, cache, status.as_str()]).inc(),
        }
    }

    /// A body is begun; what counts its bytes.
    pub(crate) fn served(&self, source: Source, published_ago: Duration) -> &IntCounter {
        let served = &self.served[match source {
            Source::Memory => 0,
            Source::Disk => 1,
            Source::Origin { .. } => 2,
        }];
        served.bodies.inc();
        self.publication_age.observe(published_ago.as_secs_f64());
        &served.bytes
    }

    pub(crate) fn served_stale(&self, seconds: u64) {
        self.served_staleness.observe(seconds as f64);
    }
}

impl TableMetrics {
    pub(crate) fn gzip(&self, result: &'static str) {
        self.gzips.with_label_values(&[result]).inc();
    }

    pub(crate) fn stale_served(&self, why: StaleWhy) {
        self.stale_served.with_label_values(&[why.as_str()]).inc();
    }
}

impl OperatorMetrics {
    pub(crate) fn purged(&self, kind: &'static str, mode: &'static str) {
        self.purges.with_label_values(&[kind, mode]).inc();
    }
}

impl OriginMetrics {
    pub(crate) fn answered(&self, kind: &str, status: &str) {
        self.requests.with_label_values(&[kind, status]).inc();
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received_bytes.inc_by(bytes as u64);
    }

    pub(crate) fn circuit_opened(&self, origin: &str) {
        self.circuits_opened.with_label_values(&[origin]).inc();
    }

    pub(crate) fn up(&self, origin: &str, up: bool) {
        self.up.with_label_values(&[origin]).set(i64::from(up));
    }
}

/// Gauges whose values are looked up when they are collected.
pub(crate) struct Observed {
    pub(crate) gauges: Vec<IntGauge>,
    pub(crate) refresh: Box<dyn Fn() + Send + Sync>,
}

impl Collector for Observed {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        (self.refresh)();
        self.gauges.iter().flat_map(Collector::collect).collect()
    }
}

//! The metric families of an origin. Repositories are labels, because the configuration bounds them; services
//! only within a bound, and digests never.

use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};
use weir_model::ServerClocks;
use weir_publish::RetentionConfig;
use weir_runtime::bounds::Bounds;
use weir_runtime::metric_families;
use weir_source::{PollFailure, SourceMetrics};

metric_families! {
    /// The families of one origin that belong to no other component.
    pub(crate) struct OriginMetrics {
        /// Polls of upstreams that ended.
        pub(crate) polls: IntCounterVec = "weir_origin_polls_total" { repository, result: POLL_RESULTS };
        /// Polls that failed, by reason. `/status` has the upstream's message.
        pub(crate) poll_failures: IntCounterVec = "weir_origin_poll_failures_total" { kind: PollFailure::KINDS };
        /// Duration of polls, fetches included, without the wait for a permit.
        pub(crate) poll_duration: Histogram = "weir_origin_poll_duration_seconds"
            [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
        /// Seconds that due polls and due fetches of LFS objects waited. `host_permit`: for
        /// `limits.concurrent_fetches_per_host`. `host_budget`: for `limits.requests_per_minute_per_host`. `permit`: for
        /// `limits.concurrent_listings` or `limits.concurrent_fetches`. `large_permit`: for a permit of first clones.
        /// `lfs_permit`: for a permit of LFS fetches.
        pub(crate) poll_wait_seconds: CounterVec = "weir_origin_poll_wait_seconds_total"
            { reason: ["host_permit", "host_budget", "permit", "large_permit", "lfs_permit"] };
        /// 1 when the last poll of the repository succeeded. Absent before the first poll.
        pub(crate) repository_healthy: IntGaugeVec = "weir_origin_repository_healthy" { repository };
        /// Refs of the upstream that the last successful poll left out, because they cannot be stored, fetched or decoded, and
        /// what seems to be a higher version of a chart or artifact, but cannot be followed; `/status` names the first 20. The
        /// repository is unhealthy only if a service follows one of them.
        pub(crate) refs_left_out: IntGaugeVec = "weir_origin_refs_left_out" { repository };
        /// Older revisions that a poll found. `held`: they wait for further polls; often, if a copy of the upstream lags.
        /// `published`: further polls, a refresh or a webhook confirmed them.
        pub(crate) step_backs: IntCounterVec = "weir_origin_step_backs_total"
            { repository, result: STEP_BACK_RESULTS };
        /// When the repository was last polled with success, in Unix seconds.
        pub(crate) last_success: GaugeVec = "weir_origin_repository_last_success_timestamp_seconds" { repository };
        /// Mirrors that were damaged, set aside and cloned again. Above 0: check the disk.
        pub(crate) mirrors_set_aside: IntCounterVec = "weir_origin_mirrors_set_aside_total" { repository };
        /// Builds of tarballs whose content was not stored yet.
        pub(crate) builds: IntCounterVec = "weir_origin_builds_total" { result: ["built", "failed"] };
        /// Duration of builds, storing included.
        pub(crate) build_duration: Histogram = "weir_origin_build_duration_seconds"
            [0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
        /// Frames of built tarballs: reused from an earlier version, or built. Mostly `built` after small commits: large
        /// files change, or recipes were lost.
        pub(crate) frames: IntCounterVec = "weir_origin_frames_total" { result: ["reused", "built"] };
        /// Repositories whose composed services resolved their parts again because 30 s had passed, not because one had changed.
        pub(crate) parts_resolved_again: IntCounter = "weir_origin_parts_resolved_again_total";
        /// Deltas (`dcz`) of new versions against the three before. `tar_too_large`: a tar is above
        /// `limits.max_delta_tarball`. `small`: the zstd body is below 16 KiB. `delta_too_large`: the delta would have more
        /// than half of the zstd body.
        /// `superseded`: a newer version came first. `failed`: the log has the reason.
        pub(crate) deltas: IntCounterVec = "weir_origin_deltas_total"
            { result: ["made", "tar_too_large", "small", "delta_too_large", "superseded", "failed"] };
        /// Services with a new version that wait for their deltas; at most `limits.max_services`.
        pub(crate) deltas_waiting: IntGauge = "weir_origin_deltas_waiting";
        /// Fetches of LFS objects that did not get all of them. `/status` names the path and the reason.
        pub(crate) lfs_failures: IntCounter = "weir_origin_lfs_failures_total";
        /// How many repositories and services may be defined: `limits.max_repositories` and `limits.max_services`.
        pub(crate) catalog_limit: IntGaugeVec = "weir_origin_catalog_limit" { kind: ["repository", "service"] };
        /// Changes of definitions that operators requested, by result.
        pub(crate) catalog_edits: IntCounterVec = "weir_origin_catalog_edits_total" {
            edit: ["put_repository", "delete_repository", "put_service", "delete_service"],
            result: ["created", "changed", "unchanged", "deleted", "refused", "failed"]
        };
        /// Reloads by SIGHUP, of a changed configuration file, and of changed certificates and keys. `refused`: nothing has
        /// changed; the log has the reason.
        /// Files that cannot be used are retried and counted once.
        pub(crate) reloads: IntCounterVec = "weir_origin_reloads_total" { result: ["applied", "refused"] };
        /// 1 from a reload that was refused until one works. `/readyz` has the reason.
        pub(crate) reload_refused: IntGauge = "weir_origin_reload_refused";
        /// Requests for descriptors and versions.
        pub(crate) descriptor_requests: IntCounterVec = "weir_origin_descriptor_requests_total" { status };
        /// Statements of freshness signed for edges.
        pub(crate) statements: IntCounter = "weir_origin_freshness_statements_total";
        /// Requests for objects.
        pub(crate) object_requests: IntCounterVec = "weir_origin_object_requests_total" { status };
        /// Bytes of objects, and of shards of access lists, sent to edges.
        pub(crate) object_sent_bytes: IntCounter = "weir_origin_object_sent_bytes_total";
        /// Rebuilds of versions of which an object was missing or corrupt. After `failed`, edges that need the object get
        /// 503; it is tried again by a later request or poll.
        pub(crate) object_rebuilds: IntCounterVec = "weir_origin_object_rebuilds_total" { result: ["rebuilt", "failed"] };
        /// Events sent to edges.
        pub(crate) events: IntCounterVec = "weir_origin_events_total" { event: ["descriptor", "tombstone", "revision"] };
        /// Events in memory for edges that reconnect. The bound is `limits.events`.
        pub(crate) event_log_events: IntGauge = "weir_origin_event_log_events";
        /// Bytes of the events in memory for edges that reconnect. The bound is `limits.event_bytes`.
        pub(crate) event_log_bytes: IntGauge = "weir_origin_event_log_bytes";
        /// Messages of edges about what agents run. `resync`: something before it was missing, and the edge sends everything
        /// again. `limited`: a bound of `limits.observed_…` is reached, too many messages of the identity wait, or another edge has the name. `refused`: it could not be read, or named another edge.
        pub(crate) observed_messages: IntCounterVec = "weir_origin_observed_messages_total"
            { result: ["accepted", "resync", "limited", "refused"] };
        /// Agents that edges have reported, by whether they are there, counted every ten seconds. `silent`: no edge heard it for
        /// 90 s. `refused`: besides, a credential with its name was refused; names that only refused credentials claim are
        /// counted, too. `unknown`: in the first 90 s after a start, no edge has reported it yet.
        pub(crate) observed_agents: IntGaugeVec = "weir_origin_observed_agents"
            { state: ["live", "silent", "refused", "unknown"] };
        /// Edges of which rows may be missing or old: not heard for 30 s, or sending everything again. Answers list them.
        pub(crate) observed_incomplete: IntGauge = "weir_origin_observed_incomplete_edges";
        /// Agents of which two runs alternated within the last 15 minutes: two clusters have one identity.
        pub(crate) observed_duplicated: IntGauge = "weir_origin_observed_duplicated_agents";
        /// Names that two edges used within the last five minutes: give each edge a `name`, or a certificate of its own.
        pub(crate) observed_duplicated_edges: IntGauge = "weir_origin_observed_duplicated_edges";
        /// Rows of live agents with a problem, counted every ten seconds. For each kind the 50 services with the most rows have
        /// a series; without `service`: the rows of all others.
        pub(crate) observed_problems: IntGaugeVec = "weir_origin_observed_problems" { kind, service };
        /// Seconds from a publication until an agent reports that it has it (`current`), and that its hook succeeded (`hook`), by
        /// the clocks of origins; at most a day. Counted by the origin that owns the service, once for each agent and release;
        /// not what an agent has when the origin first hears of it. Of what came about while its edge, or the agent, was away,
        /// the agent's own time counts, if it is between the last news of it and now. The first 200 services have series;
        /// without `service`: all others.
        pub(crate) delivery: HistogramVec = "weir_origin_delivery_seconds" { service, stage: ["current", "hook"] }
            [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0];
        /// Open event streams: one for each edge. An edge without one polls.
        pub(crate) event_streams: IntGauge = "weir_origin_event_streams";
        /// How many event streams may be open: `limits.event_streams`.
        pub(crate) event_streams_limit: IntGauge = "weir_origin_event_streams_limit";
        /// Event streams that ended. `stalled` and `behind`: the edge read too slowly and was disconnected.
        pub(crate) event_streams_ended: IntCounterVec = "weir_origin_event_streams_ended_total"
            { reason: ["reader_gone", "drained", "stalled", "behind", "credential_ended"] };
        /// Event streams that started with a full snapshot. `no_cursor`: the edge started. `cursor_unknown`: it was
        /// disconnected for too long, or the origin restarted.
        pub(crate) event_snapshots: IntCounterVec = "weir_origin_event_snapshots_total"
            { reason: ["no_cursor", "cursor_unknown"] };
        /// Free bytes on the disk of `data_dir`, read every few seconds.
        pub(crate) disk_free_bytes: IntGauge = "weir_origin_disk_free_bytes";
        /// 1 while `data_dir` can be written and its disk has `limits.min_free`. At 0 nothing is built or downloaded.
        pub(crate) disk_usable: IntGauge = "weir_origin_disk_usable";
        /// The bounds of `[retention]`. 0 bytes: no such bound.
        retention_limit: IntGaugeVec = "weir_origin_retention_limit" { bound: ["versions", "age_seconds", "bytes"] };
        /// 1 while the files of `[access]` can be used. At 0 edges get what was read last.
        pub(crate) access_files_readable: IntGauge = "weir_origin_access_files_readable";
        /// Bundles of mirrors for the store. `too_large`: the mirror is above `store.max_mirror`. After `failed` the log has
        /// the reason, and it is tried again after ten minutes.
        pub(crate) bundles: IntCounterVec = "weir_origin_bundles_total"
            { result: ["full", "incremental", "too_large", "failed"] };
        /// Bytes of bundles that were stored.
        pub(crate) bundle_bytes: IntCounter = "weir_origin_bundle_written_bytes_total";
        /// When the newest stored bundle of the repository was made, in Unix seconds. An old time is right if nothing was
        /// pushed since.
        pub(crate) newest_bundle: GaugeVec = "weir_origin_newest_bundle_timestamp_seconds" { repository };
        /// Mirrors that were made from stored bundles instead of a clone. After `failed` the repository is cloned.
        pub(crate) hydrations: IntCounterVec = "weir_origin_hydrations_total" { result: ["hydrated", "failed"] };
        /// Keys that sign publications. At 0 nothing is signed.
        pub(crate) signing_keys: IntGauge = "weir_origin_signing_keys";
        /// Seconds that the clock of this machine is ahead of the clocks of the servers that the origin talks to (upstreams
        /// over HTTP, the bucket, members), as the median of their `Date` fields. Negative: it is behind.
        pub(crate) clock_ahead: IntGauge = "weir_origin_clock_ahead_seconds";
        /// When the origin started, in Unix seconds.
        pub(crate) start_time: Gauge = "weir_origin_start_time_seconds";
    }
}

/// What is observed of one origin: its families, its bounds and the clocks of servers. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    families: OriginMetrics,
    pub(crate) source: SourceMetrics,
    pub(crate) clocks: ServerClocks,
    pub(crate) bounds: Bounds,
}

impl std::ops::Deref for Metrics {
    type Target = OriginMetrics;

    fn deref(&self) -> &OriginMetrics {
        &self.families
    }
}

/// What became of older revisions.
const STEP_BACK_RESULTS: [&str; 2] = ["held", "published"];

/// Results of polls.
const POLL_RESULTS: [&str; 4] = ["changed", "unchanged", "failed", "timeout"];

impl Metrics {
    /// Registers the families.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let families = OriginMetrics::register(registry)?;
        let clocks = ServerClocks::new(families.clock_ahead.clone());
        Ok(Self { families, source: SourceMetrics::register(registry)?, clocks, bounds: Bounds::register(registry)? })
    }

    /// Creates a repository's series with 0, because alerts on increases do not see the first value of a series.
    pub(crate) fn expect_repository(&self, name: &str) {
        for result in POLL_RESULTS {
            self.polls.with_label_values(&[name, result]);
        }
        for result in STEP_BACK_RESULTS {
            self.step_backs.with_label_values(&[name, result]);
        }
        self.source.expect_repository(name);
        self.mirrors_set_aside.with_label_values(&[name]);
    }

    /// Removes the series of a deleted repository.
    pub(crate) fn forget_repository(&self, name: &str) {
        // A missing series is no error.
        for result in POLL_RESULTS {
            let _ = self.polls.remove_label_values(&[name, result]);
        }
        for result in STEP_BACK_RESULTS {
            let _ = self.step_backs.remove_label_values(&[name, result]);
        }
        let _ = self.repository_healthy.remove_label_values(&[name]);
        let _ = self.refs_left_out.remove_label_values(&[name]);
        let _ = self.last_success.remove_label_values(&[name]);
        let _ = self.mirrors_set_aside.remove_label_values(&[name]);
        let _ = self.newest_bundle.remove_label_values(&[name]);
        self.source.forget_repository(name);
    }

    /// Sets the limits of retention.
    pub(crate) fn show_retention(&self, retention: &RetentionConfig) {
        for (bound, limit) in [
            ("versions", retention.versions as u64),
            ("age_seconds", retention.age.as_secs()),
            ("bytes", retention.bytes.map_or(0, |bytes| bytes.as_u64())),
        ] {
            self.retention_limit.with_label_values(&[bound]).set(i64::try_from(limit).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn series_with_known_labels_exist_from_the_start() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        metrics.expect_repository("shop");
        let shown = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for series in [
            "weir_origin_polls_total{repository=\"shop\",result=\"failed\"}",
            "weir_origin_repacks_total{repository=\"shop\",result=\"failed\"}",
            "weir_origin_verifications_total{repository=\"shop\",result=\"failed\"}",
            "weir_origin_poll_wait_seconds_total{reason=\"large_permit\"}",
            "weir_origin_catalog_edits_total{edit=\"put_service\",result=\"failed\"}",
            "weir_origin_catalog_edits_total{edit=\"delete_repository\",result=\"deleted\"}",
        ] {
            assert!(shown.lines().any(|line| line == format!("{series} 0")), "{series}\n{shown}");
        }
        metrics.forget_repository("shop");
        let shown = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert!(!shown.contains("shop"), "{shown}");
    }
}

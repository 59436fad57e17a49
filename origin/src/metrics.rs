//! What an origin counts. Repositories are labels, because the configuration bounds them; services and digests are not.

use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};
use weir_runtime::metric_families::MetricFamilies;

use crate::bounds::Bounds;
use crate::config::RetentionConfig;
use crate::mirror::MirrorError;

/// The families of one origin.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    /// By repository and result: `changed`, `unchanged`, `failed`, `timeout`.
    pub(crate) polls: IntCounterVec,
    /// By kind of trouble.
    pub(crate) poll_failures: IntCounterVec,
    /// By repository.
    pub(crate) poll_duration: HistogramVec,
    /// By what a poll waited for: `host_place`, `host_budget`, `place`, `large_place`, `lfs_place`.
    pub(crate) poll_wait_seconds: CounterVec,
    /// By repository: 1 when the last poll reached the upstream.
    pub(crate) repository_healthy: IntGaugeVec,
    /// By repository: Unix seconds.
    pub(crate) last_success: GaugeVec,
    /// By repository.
    pub(crate) mirrors_set_aside: IntCounterVec,
    /// By result: `built`, `failed`.
    pub(crate) builds: IntCounterVec,
    pub(crate) build_duration: Histogram,
    /// By result: `reused`, `built`.
    pub(crate) frames: IntCounterVec,
    pub(crate) lfs_objects: IntCounter,
    pub(crate) lfs_bytes: IntCounter,
    pub(crate) lfs_failures: IntCounter,
    /// By kind.
    pub(crate) catalog_limit: IntGaugeVec,
    /// By what an operator wanted and what became of it.
    pub(crate) catalog_edits: IntCounterVec,
    /// By result: `applied`, `refused`.
    pub(crate) reloads: IntCounterVec,
    /// By status.
    pub(crate) descriptor_requests: IntCounterVec,
    /// By status.
    pub(crate) object_requests: IntCounterVec,
    pub(crate) object_sent_bytes: IntCounter,
    /// By result: `rebuilt`, `failed`.
    pub(crate) object_rebuilds: IntCounterVec,
    /// By kind.
    pub(crate) events: IntCounterVec,
    pub(crate) event_log_events: IntGauge,
    pub(crate) event_log_bytes: IntGauge,
    pub(crate) event_streams: IntGauge,
    pub(crate) event_streams_limit: IntGauge,
    /// By why: `reader_gone`, `drained`, `stalled`, `behind`.
    pub(crate) event_streams_ended: IntCounterVec,
    /// By why: `no_cursor`, `cursor_unknown`.
    pub(crate) event_snapshots: IntCounterVec,
    pub(crate) disk_free_bytes: IntGauge,
    pub(crate) disk_usable: IntGauge,
    /// By what is bounded: `versions`, `age_seconds`, `bytes`.
    retention_limit: IntGaugeVec,
    pub(crate) bounds: Bounds,
    /// 1 while the files of keys and denials can be used.
    pub(crate) access_files_readable: IntGauge,
    /// By repository.
    pub(crate) mirror_packs: IntGaugeVec,
    /// By repository.
    pub(crate) mirror_bytes: IntGaugeVec,
    /// By repository and result: `verified`, `refused`, `failed`.
    pub(crate) verifications: IntCounterVec,
    /// By repository and result: `joined`, `full`, `failed`.
    pub(crate) repacks: IntCounterVec,
    /// Keys that sign; 0: nothing is signed.
    pub(crate) signing_keys: IntGauge,
    pub(crate) start_time: Gauge,
}

/// How a poll ends.
const POLL_RESULTS: [&str; 4] = ["changed", "unchanged", "failed", "timeout"];
/// What a poll that is due waits for.
const POLL_WAITS: [&str; 4] = ["host_place", "host_budget", "place", "large_place"];
/// What a policy says of a commit or a tag.
const VERIFICATION_RESULTS: [&str; 3] = ["verified", "refused", "failed"];
/// What comes of a repack.
const REPACK_RESULTS: [&str; 3] = ["joined", "full", "failed"];
/// What operators want to change, and what may become of each.
const EDITS: [(&str, &[&str]); 4] = [
    ("put_repository", &["created", "changed", "unchanged", "refused", "failed"]),
    ("delete_repository", &["deleted", "refused", "failed"]),
    ("put_service", &["created", "changed", "unchanged", "refused", "failed"]),
    ("delete_service", &["deleted", "refused", "failed"]),
];

impl Metrics {
    /// Shows a repository with nothing counted yet: an alert on an increase does not see the one with which a series begins.
    pub(crate) fn expect_repository(&self, name: &str) {
        for result in POLL_RESULTS {
            self.polls.with_label_values(&[name, result]);
        }
        for result in VERIFICATION_RESULTS {
            self.verifications.with_label_values(&[name, result]);
        }
        for result in REPACK_RESULTS {
            self.repacks.with_label_values(&[name, result]);
        }
        self.mirrors_set_aside.with_label_values(&[name]);
    }

    /// Forgets a repository that was deleted: its labels must not stay for good.
    pub(crate) fn forget_repository(&self, name: &str) {
        // What is not there need not be removed.
        for result in POLL_RESULTS {
            let _ = self.polls.remove_label_values(&[name, result]);
        }
        let _ = self.poll_duration.remove_label_values(&[name]);
        let _ = self.repository_healthy.remove_label_values(&[name]);
        let _ = self.last_success.remove_label_values(&[name]);
        let _ = self.mirrors_set_aside.remove_label_values(&[name]);
        let _ = self.mirror_packs.remove_label_values(&[name]);
        let _ = self.mirror_bytes.remove_label_values(&[name]);
        for result in VERIFICATION_RESULTS {
            let _ = self.verifications.remove_label_values(&[name, result]);
        }
        for result in REPACK_RESULTS {
            let _ = self.repacks.remove_label_values(&[name, result]);
        }
    }

    /// Registers the families.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let families = MetricFamilies(registry);
        let build_buckets = vec![0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
        let poll_buckets = vec![0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
        let metrics = Self {
            polls: families.counters(
                "weir_origin_polls_total",
                "Polls of upstreams that ended, by result (changed, unchanged, failed, timeout).",
                &["repository", "result"],
            )?,
            poll_failures: families.counters_of("weir_origin_poll_failures_total",
                "Polls that failed, by the kind of trouble.", "kind", &MirrorError::KINDS)?,
            poll_duration: families.add(HistogramVec::new(
                HistogramOpts::new("weir_origin_poll_duration_seconds", "How long polls took, fetches included.")
                    .buckets(poll_buckets),
                &["repository"],
            )?)?,
            poll_wait_seconds: families.add(CounterVec::new(
                Opts::new(
                    "weir_origin_poll_wait_seconds_total",
                    "Seconds that polls and fetches of LFS objects which were due waited, by what for (host_place, \
                     host_budget, place, large_place, lfs_place).",
                ),
                &["for"],
            )?)?,
            repository_healthy: families.gauges(
                "weir_origin_repository_healthy",
                "1 when the last poll of the repository succeeded.",
                &["repository"],
            )?,
            last_success: families.add(GaugeVec::new(
                Opts::new(
                    "weir_origin_repository_last_success_timestamp_seconds",
                    "When the repository was last polled with success, in Unix seconds.",
                ),
                &["repository"],
            )?)?,
            mirrors_set_aside: families.counters(
                "weir_origin_mirrors_set_aside_total",
                "Mirrors that were found damaged, set aside and cloned again.",
                &["repository"],
            )?,
            builds: families.counters_of("weir_origin_builds_total",
                "Tarballs of contents that were not known: built, failed.", "result", &["built", "failed"])?,
            build_duration: families.add(Histogram::with_opts(
                HistogramOpts::new("weir_origin_build_duration_seconds", "How long builds took, storing included.")
                    .buckets(build_buckets),
            )?)?,
            frames: families.counters_of(
                "weir_origin_frames_total",
                "Frames of tarballs that were built: reused (taken from an earlier version), built.",
                "result",
                &["reused", "built"],
            )?,
            lfs_objects: families
                .counter("weir_origin_lfs_objects_fetched_total", "LFS objects that were fetched and verified.")?,
            lfs_bytes: families.counter("weir_origin_lfs_bytes_fetched_total", "Bytes of the LFS objects that were fetched and verified.")?,
            lfs_failures: families
                .counter("weir_origin_lfs_failures_total", "Fetches of LFS objects that did not bring all of them.")?,
            catalog_limit: families.gauges(
                "weir_origin_catalog_limit",
                "How many repositories and services may be defined, by kind (repository, service).",
                &["kind"],
            )?,
            catalog_edits: families.counters(
                "weir_origin_catalog_edits_total",
                "What operators wanted to change (put or delete a repository or a service), by result (created, changed, \
                 unchanged, deleted, refused, failed).",
                &["edit", "result"],
            )?,
            reloads: families.counters_of(
                "weir_origin_reloads_total",
                "Configuration files read again at run time: applied, or refused as a whole.",
                "result",
                &["applied", "refused"],
            )?,
            descriptor_requests: families.counters(
                "weir_origin_descriptor_requests_total",
                "Requests for descriptors, by status.",
                &["status"],
            )?,
            object_requests: families.counters(
                "weir_origin_object_requests_total",
                "Requests for objects, by status.",
                &["status"],
            )?,
            object_sent_bytes: families.counter("weir_origin_object_sent_bytes_total", "Bytes of objects handed to HTTP.")?,
            object_rebuilds: families.counters_of(
                "weir_origin_object_rebuilds_total",
                "Versions of which an object was missing or corrupt and that were rebuilt: rebuilt, failed.",
                "result",
                &["rebuilt", "failed"],
            )?,
            events: families.counters_of("weir_origin_events_total", "Events that edges were told of, by kind (descriptor, tombstone, revision).", "event", &["descriptor", "tombstone", "revision"])?,
            event_log_events: families
                .gauge("weir_origin_event_log_events", "Events that are kept for readers that come back.")?,
            event_log_bytes: families.gauge(
                "weir_origin_event_log_bytes",
                "Bytes of the events that are kept for readers that come back.",
            )?,
            event_streams: families.gauge("weir_origin_event_streams", "Event streams that are open now.")?,
            event_streams_limit: families
                .gauge("weir_origin_event_streams_limit", "Event streams that are open at a time, at the most.")?,
            event_streams_ended: families.counters_of("weir_origin_event_streams_ended_total",
                "Event streams that ended: reader_gone, drained, stalled, behind.", "why", &["reader_gone", "drained", "stalled", "behind"])?,
            event_snapshots: families.counters_of("weir_origin_event_snapshots_total",
                "Event streams that began with everything that is current: no_cursor, cursor_unknown.", "why", &["no_cursor", "cursor_unknown"])?,
            disk_free_bytes: families.gauge(
                "weir_origin_disk_free_bytes",
                "Room on the disk of the data directory, looked at every few seconds.",
            )?,
            disk_usable: families.gauge(
                "weir_origin_disk_usable",
                "1 while the data directory can be written and its disk has the room that a build asks for (min_free).",
            )?,
            retention_limit: families.gauges(
                "weir_origin_retention_limit",
                "Bounds of the superseded versions that are kept: versions (of a service), age_seconds, bytes (0: no such bound).",
                &["bound"],
            )?,
            bounds: Bounds::register(registry)?,
            access_files_readable: families.gauge(
                "weir_origin_access_files_readable",
                "1 while the files of keys and denials can be used; at 0 what was read last is told.",
            )?,
            verifications: families.counters(
                "weir_origin_verifications_total",
                "Commits and tags that a policy asked about: verified, refused, failed (it could not be found out).",
                &["repository", "result"],
            )?,
            mirror_packs: families.gauges(
                "weir_origin_mirror_packs",
                "Packs of the mirror, when it was last looked after.",
                &["repository"],
            )?,
            mirror_bytes: families.gauges(
                "weir_origin_mirror_bytes",
                "Bytes of the mirror's packs and their indices, when it was last looked after.",
                &["repository"],
            )?,
            repacks: families.counters(
                "weir_origin_repacks_total",
                "Times that a mirror was repacked: joined (its small packs), full (all of it), failed.",
                &["repository", "result"],
            )?,
            signing_keys: families.gauge(
                "weir_origin_signing_keys",
                "Keys that publications are signed with; at 0 nothing is signed.",
            )?,
            start_time: families.add(Gauge::new("weir_origin_start_time_seconds", "When the origin started.")?)?,
        };
        for wait in POLL_WAITS {
            metrics.poll_wait_seconds.with_label_values(&[wait]);
        }
        for (edit, results) in EDITS {
            for result in results {
                metrics.catalog_edits.with_label_values(&[edit, result]);
            }
        }
        Ok(metrics)
    }

    /// Shows the bounds of what is kept.
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
    fn what_is_counted_by_known_labels_is_there_before_anything_happened() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        metrics.expect_repository("shop");
        let shown = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for series in [
            "weir_origin_polls_total{repository=\"shop\",result=\"failed\"}",
            "weir_origin_repacks_total{repository=\"shop\",result=\"failed\"}",
            "weir_origin_verifications_total{repository=\"shop\",result=\"failed\"}",
            "weir_origin_poll_wait_seconds_total{for=\"large_place\"}",
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

//! What an origin counts. Repositories are labels, because the configuration bounds them; services and digests are not.

use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};
use weir_shared::process::metric_families::MetricFamilies;

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
    /// By result: `memo`, `built`, `failed`.
    pub(crate) builds: IntCounterVec,
    pub(crate) build_duration: Histogram,
    /// By result: `reused`, `made`.
    pub(crate) fragments: IntCounterVec,
    pub(crate) lfs_objects: IntCounter,
    pub(crate) lfs_bytes: IntCounter,
    pub(crate) lfs_failures: IntCounter,
    pub(crate) publications: IntCounter,
    pub(crate) revisions: IntCounter,
    pub(crate) services: IntGauge,
    /// By kind (`repository`, `service`) and who defined it (`file`, `api`).
    pub(crate) catalog_objects: IntGaugeVec,
    /// `kind`.
    pub(crate) catalog_refused: IntGaugeVec,
    /// By kind.
    pub(crate) catalog_limit: IntGaugeVec,
    /// By what an operator wanted and what became of it.
    pub(crate) catalog_edits: IntCounterVec,
    /// By result: `applied`, `refused`.
    pub(crate) reloads: IntCounterVec,
    pub(crate) services_unpublished: IntGauge,
    pub(crate) services_unhealthy: IntGauge,
    /// By status.
    pub(crate) descriptor_requests: IntCounterVec,
    /// By status.
    pub(crate) blob_requests: IntCounterVec,
    /// By status.
    pub(crate) piece_list_requests: IntCounterVec,
    pub(crate) blob_sent_bytes: IntCounter,
    pub(crate) blob_corruptions: IntCounter,
    /// By result: `healed`, `failed`.
    pub(crate) blob_heals: IntCounterVec,
    /// By result: `made`, `failed`.
    pub(crate) gzips: IntCounterVec,
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
    pub(crate) store_bytes: IntGauge,
    pub(crate) store_blobs: IntGauge,
    pub(crate) store_unnamed_blobs: IntGauge,
    pub(crate) disk_free_bytes: IntGauge,
    pub(crate) disk_usable: IntGauge,
    pub(crate) swept_blobs: IntCounter,
    pub(crate) superseded_versions: IntGauge,
    /// Seconds.
    pub(crate) oldest_superseded: IntGauge,
    /// By the bound that they were beyond: `age`, `bytes`.
    pub(crate) expired_versions: IntCounterVec,
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
                "Tarballs that a moved ref asked for: memo (the content was built before), built, failed.", "result", &["memo", "built", "failed"])?,
            build_duration: families.add(Histogram::with_opts(
                HistogramOpts::new("weir_origin_build_duration_seconds", "How long builds took, storing included.")
                    .buckets(build_buckets),
            )?)?,
            fragments: families.counters_of("weir_origin_fragments_total",
                "Fragments of tarballs that were built: reused (copied from an earlier blob), made.", "result", &["reused", "made"])?,
            lfs_objects: families
                .counter("weir_origin_lfs_objects_fetched_total", "LFS objects that were fetched and verified.")?,
            lfs_bytes: families.counter("weir_origin_lfs_bytes_fetched_total", "Bytes of the LFS objects that were fetched and verified.")?,
            lfs_failures: families
                .counter("weir_origin_lfs_failures_total", "Fetches of LFS objects that did not bring all of them.")?,
            publications: families.counter("weir_origin_publications_total", "Publications: a service got a new generation.")?,
            revisions: families.counter(
                "weir_origin_revisions_total",
                "New representations under an old generation, after a blob was built again with other bytes.",
            )?,
            services: families.gauge("weir_origin_services", "Services that are configured.")?,
            catalog_objects: families.gauges(
                "weir_origin_catalog_objects",
                "Repositories and services that are defined, by kind (repository, service) and by whom (file, api).",
                &["kind", "defined_by"],
            )?,
            catalog_refused: families.gauges(
                "weir_origin_catalog_refused",
                "Documents that are stored and refused by the rules of now, by kind (repository, service): /status says why.",
                &["kind"],
            )?,
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
            services_unpublished: families
                .gauge("weir_origin_services_unpublished", "Services of which nothing was ever published.")?,
            services_unhealthy: families.gauge(
                "weir_origin_services_unhealthy",
                "Services that cannot follow their ref, or are pinned to what cannot be had; /status says which and why.",
            )?,
            descriptor_requests: families.counters(
                "weir_origin_descriptor_requests_total",
                "Requests for descriptors, by status.",
                &["status"],
            )?,
            blob_requests: families.counters(
                "weir_origin_blob_requests_total",
                "GET requests for blobs, by status.",
                &["status"],
            )?,
            piece_list_requests: families.counters(
                "weir_origin_piece_list_requests_total",
                "Requests for piece lists, by status.",
                &["status"],
            )?,
            blob_sent_bytes: families.counter("weir_origin_blob_sent_bytes_total", "Bytes of blobs handed to HTTP.")?,
            blob_corruptions: families.counter(
                "weir_origin_blob_corruptions_total",
                "Blobs whose bytes on disk were not those of their digest.",
            )?,
            blob_heals: families.counters_of("weir_origin_blob_heals_total",
                "Blobs that were missing or corrupt and were built again: healed, failed.", "result", &["healed", "failed"])?,
            gzips: families.counters_of("weir_origin_gzips_total",
                "Gzip forms of tarballs that were asked for and not there: made, failed.", "result", &["made", "failed"])?,
            events: families.counters_of("weir_origin_events_total", "Events that edges were told of, by kind (descriptor, tombstone, signed_heartbeat).", "event", &["descriptor", "tombstone", "signed_heartbeat"])?,
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
            store_bytes: families.gauge(
                "weir_origin_store_bytes",
                "Bytes of the blobs that versions name, each once, at the last sweep.",
            )?,
            store_blobs: families.gauge("weir_origin_store_blobs", "Blobs that versions name, at the last sweep.")?,
            store_unnamed_blobs: families.gauge(
                "weir_origin_store_unnamed_blobs",
                "Blobs that nothing names any more and that linger on the disk, at the last sweep.",
            )?,
            disk_free_bytes: families.gauge(
                "weir_origin_disk_free_bytes",
                "Room on the disk of the data directory, looked at every few seconds.",
            )?,
            disk_usable: families.gauge(
                "weir_origin_disk_usable",
                "1 while the data directory can be written and its disk has the room that a build asks for (min_free).",
            )?,
            superseded_versions: families.gauge(
                "weir_origin_superseded_versions",
                "Superseded versions that are kept, of all services, at the last sweep.",
            )?,
            oldest_superseded: families.gauge(
                "weir_origin_oldest_superseded_version_age_seconds",
                "How long ago the oldest version that is kept was superseded, at the last sweep.",
            )?,
            expired_versions: families.counters_of("weir_origin_expired_versions_total",
                "Superseded versions that are kept no longer, by the bound: age, bytes.", "bound", &["age", "bytes"])?,
            retention_limit: families.gauges(
                "weir_origin_retention_limit",
                "Bounds of the superseded versions that are kept: versions (of a service), age_seconds, bytes (0: no such bound).",
                &["bound"],
            )?,
            swept_blobs: families
                .counter("weir_origin_swept_blobs_total", "Blobs that were removed because nothing names them.")?,
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
                "Keys that publications and heartbeats are signed with; at 0 nothing is signed.",
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

//! Metrics of publishing and garbage collection.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};
use weir_runtime::metric_families::MetricFamilies;

#[derive(Debug, Clone)]
pub(crate) struct PublishMetrics {
    pub(crate) publications: IntCounter,
    pub(crate) revisions: IntCounter,
    /// By result: `done`, `conflict`, `unknown`.
    pub(crate) record_writes: IntCounterVec,
    /// By kind: `frame`, `manifest`, `recipe`, `page`, `history`.
    pub(crate) object_bytes: IntCounterVec,
    /// By result: `done`, `blocked`, `failed`.
    pub(crate) gc_runs: IntCounterVec,
    pub(crate) gc_deleted: IntCounter,
    pub(crate) gc_blocked_repositories: IntGauge,
    pub(crate) unreferenced: IntGauge,
    pub(crate) stored_bytes: IntGauge,
    pub(crate) retained_versions: IntGauge,
    /// By the bound: `versions`, `age`, `bytes`.
    pub(crate) expired_versions: IntCounterVec,
    pub(crate) suspended_repositories: IntGauge,
    pub(crate) store_created: IntGauge,
}

impl PublishMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let families = MetricFamilies(registry);
        Ok(Self {
            publications: families
                .counter("weir_origin_publications_total", "Publications: a service got a new generation.")?,
            revisions: families.counter(
                "weir_origin_revisions_total",
                "New representations or another ref under an old generation.",
            )?,
            record_writes: families.counters_of(
                "weir_origin_record_writes_total",
                "Writes of repositories' records: done, conflict (another writer came first), unknown (the outcome was read \
                 back later).",
                "result",
                &["done", "conflict", "unknown"],
            )?,
            object_bytes: families.counters_of(
                "weir_origin_object_written_bytes_total",
                "Bytes of objects that were stored, by kind: frame, manifest, recipe, page, history.",
                "kind",
                &["frame", "manifest", "recipe", "page", "history"],
            )?,
            gc_runs: families.counters_of(
                "weir_origin_store_gc_runs_total",
                "Collections of a repository's unreferenced objects: done, blocked (something cannot be read, so nothing was \
                 deleted), failed.",
                "result",
                &["done", "blocked", "failed"],
            )?,
            gc_deleted: families.counter(
                "weir_origin_store_gc_deleted_objects_total",
                "Objects that were deleted because nothing refers to them.",
            )?,
            gc_blocked_repositories: families.gauge(
                "weir_origin_store_gc_blocked_repositories",
                "Repositories of which no object is deleted: something that may refer to it cannot be read, or three collections \
                 in a row failed.",
            )?,
            unreferenced: families.gauge(
                "weir_origin_store_unreferenced_objects",
                "Objects that nothing refers to and that are deleted after gc_grace_period, at the last collection.",
            )?,
            stored_bytes: families.gauge(
                "weir_origin_store_bytes",
                "Bytes of the frames and manifests that versions refer to, each once, at the last collection.",
            )?,
            retained_versions: families
                .gauge("weir_origin_superseded_versions", "Superseded versions that are retained, of all services.")?,
            expired_versions: families.counters_of(
                "weir_origin_expired_versions_total",
                "Superseded versions that are retained no longer, by the bound: versions, age, bytes.",
                "bound",
                &["versions", "age", "bytes"],
            )?,
            suspended_repositories: families.gauge(
                "weir_origin_suspended_repositories",
                "Repositories of which nothing is published until an operator confirms their state: a record or a page was \
                 damaged.",
            )?,
            store_created: families.gauge(
                "weir_origin_store_created_timestamp_seconds",
                "When the store was first used, in Unix seconds: a recent time after an old installation means that its data \
                 was lost.",
            )?,
        })
    }
}

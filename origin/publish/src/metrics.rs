//! Metrics of publishing and garbage collection.

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use weir_runtime::metric_families;

metric_families! {
    /// The families of publishing and garbage collection.
    pub struct PublishMetrics {
        /// Publications: a service got a new generation. A commit that changes no digest makes none.
        pub publications: IntCounter = "weir_origin_publications_total";
        /// New representations, or another ref, under an existing generation.
        pub revisions: IntCounter = "weir_origin_revisions_total";
        /// Writes of repositories' records; one may hold many publications. `conflict`: another writer came first.
        /// `unknown`: the outcome was read back later.
        pub record_writes: IntCounterVec = "weir_origin_record_writes_total" { result: ["done", "conflict", "unknown"] };
        /// Bytes of stored objects.
        pub object_bytes: IntCounterVec = "weir_origin_object_written_bytes_total"
            { kind: ["frame", "manifest", "delta", "recipe", "page", "history"] };
        /// Garbage collections of repositories. `blocked`: something cannot be read, so nothing was deleted.
        pub gc_runs: IntCounterVec = "weir_origin_store_gc_runs_total" { result: ["done", "blocked", "failed"] };
        /// Objects that garbage collection deleted.
        pub gc_deleted: IntCounter = "weir_origin_store_gc_deleted_objects_total";
        /// Repositories of which no object is deleted: something that may refer to it cannot be read, or three consecutive
        /// collections failed. Alert above 0.
        pub gc_blocked_repositories: IntGauge = "weir_origin_store_gc_blocked_repositories";
        /// Objects without a reference at the last collection. They are deleted after `retention.gc_grace_period`.
        pub unreferenced: IntGauge = "weir_origin_store_unreferenced_objects";
        /// Bytes of the frames and manifests of all versions, each counted once, at the last collection. The bound is
        /// `retention.bytes`.
        pub stored_bytes: IntGauge = "weir_origin_store_bytes";
        /// Retained superseded versions of all services. The bound for each service is `retention.versions`.
        pub retained_versions: IntGauge = "weir_origin_superseded_versions";
        /// Superseded versions that expired, by the bound that they exceeded.
        pub expired_versions: IntCounterVec = "weir_origin_expired_versions_total" { bound: ["versions", "age", "bytes"] };
        /// Repositories of which nothing is published until an operator confirms their state: a record or a page was damaged.
        /// Alert above 0.
        pub suspended_repositories: IntGauge = "weir_origin_suspended_repositories";
        /// When the store was first used, in Unix seconds. A recent time in an old installation means that its data was lost.
        pub store_created: IntGauge = "weir_origin_store_created_timestamp_seconds";
    }
}

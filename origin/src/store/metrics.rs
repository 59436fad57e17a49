//! Metrics of objects and records.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};
use weir_runtime::metric_families::MetricFamilies;

use super::object_error::ObjectError;
use super::records::{PutOutcome, Record, RecordError, RecordKey};

/// The metric families of a store. Clones share their counters.
#[derive(Debug, Clone)]
pub(crate) struct StoreMetrics {
    /// By operation (`put`, `get`, `exists`, `list`, `delete`) and result (`ok`, `missing`, `corrupt`, `failed`).
    object_requests: IntCounterVec,
    corrupt_objects: IntCounter,
    /// By operation (`get`, `put`, `list`) and result.
    record_requests: IntCounterVec,
    /// By result: `hit`, `miss`, `damaged`.
    pub(super) cache_lookups: IntCounterVec,
    pub(super) cache_write_failures: IntCounter,
    pub(super) cache_bytes: IntGauge,
    pub(super) cache_limit_bytes: IntGauge,
}

const OBJECT_OPERATIONS: [&str; 5] = ["put", "get", "exists", "list", "delete"];
const RECORD_RESULTS: [(&str, &[&str]); 3] = [
    ("get", &["ok", "absent", "recovered", "damaged", "failed"]),
    ("put", &["done", "conflict", "unknown"]),
    ("list", &["ok", "failed"]),
];

impl StoreMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let families = MetricFamilies(registry);
        let metrics = Self {
            object_requests: families.counters(
                "weir_origin_store_requests_total",
                "Requests to the object store: ok, missing, corrupt, failed (nothing is known about the object).",
                &["operation", "result"],
            )?,
            corrupt_objects: families.counter(
                "weir_origin_store_corrupt_objects_total",
                "Reads of stored objects whose bytes did not have the object's digest.",
            )?,
            record_requests: families.counters(
                "weir_origin_record_requests_total",
                "Requests to the engine of records. recovered: the current copy is damaged, the previous one was returned.",
                &["operation", "result"],
            )?,
            cache_lookups: families.counters_of(
                "weir_origin_store_cache_lookups_total",
                "Lookups in the local cache of a remote store.",
                "result",
                &["hit", "miss", "damaged"],
            )?,
            cache_write_failures: families.counter(
                "weir_origin_store_cache_write_failures_total",
                "Objects that could not be written to the local cache of a remote store.",
            )?,
            cache_bytes: families
                .gauge("weir_origin_store_cache_bytes", "Bytes in the local cache of a remote store.")?,
            cache_limit_bytes: families.gauge(
                "weir_origin_store_cache_limit_bytes",
                "The most bytes of the local cache of a remote store. 0: no cache.",
            )?,
        };
        // An alert on an increase misses the first value of a series, so all series begin at zero.
        for operation in OBJECT_OPERATIONS {
            metrics.object_requests.with_label_values(&[operation, "failed"]);
        }
        for (operation, results) in RECORD_RESULTS {
            for result in results {
                metrics.record_requests.with_label_values(&[operation, result]);
            }
        }
        Ok(metrics)
    }

    pub(super) fn object_request<T>(&self, operation: &str, outcome: &Result<T, ObjectError>) {
        let result = match outcome {
            Ok(_) => "ok",
            Err(ObjectError::Missing(_)) => "missing",
            Err(ObjectError::Corrupt(_)) => "corrupt",
            Err(ObjectError::Unavailable(_)) => "failed",
        };
        self.object_requests.with_label_values(&[operation, result]).inc();
        if result == "corrupt" {
            self.corrupt_objects.inc();
        }
    }

    pub(super) fn record_read(&self, outcome: &Result<Option<Record>, RecordError>) {
        let result = match outcome {
            Ok(Some(record)) if record.recovered.is_some() => "recovered",
            Ok(Some(_)) => "ok",
            Ok(None) => "absent",
            Err(RecordError::Damaged { .. }) => "damaged",
            Err(_) => "failed",
        };
        self.record_requests.with_label_values(&["get", result]).inc();
    }

    pub(super) fn record_written(&self, outcome: &PutOutcome) {
        let result = match outcome {
            PutOutcome::Done(_) => "done",
            PutOutcome::Conflict => "conflict",
            PutOutcome::Unknown(_) => "unknown",
        };
        self.record_requests.with_label_values(&["put", result]).inc();
    }

    pub(super) fn records_listed(&self, outcome: &Result<Vec<RecordKey>, RecordError>) {
        let result = if outcome.is_ok() { "ok" } else { "failed" };
        self.record_requests.with_label_values(&["list", result]).inc();
    }
}

//! Metrics of objects and records.

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use weir_runtime::metric_families;

use super::object_error::ObjectError;

metric_families! {
    /// The families of a store. Clones count together.
    pub struct StoreMetrics {
        /// Requests to the object store. After `failed` nothing is known about the object, and nothing is deleted because of
        /// it.
        object_requests: IntCounterVec = "weir_origin_store_requests_total" {
            operation: ["put", "get", "exists", "list", "delete"],
            result: ["ok", "missing", "corrupt", "failed"]
        };
        /// Reads of stored objects whose bytes did not match the object's digest. Above 0: check the disk.
        corrupt_objects: IntCounter = "weir_origin_store_corrupt_objects_total";
        /// Requests to the record store, the engine of `[cluster]`. `recovered`: the current copy is damaged, and the previous
        /// one was returned.
        pub(crate) record_requests: IntCounterVec = "weir_origin_record_requests_total" {
            operation: ["get", "put", "list", "delete"],
            result: ["ok", "absent", "recovered", "damaged", "failed", "done", "conflict", "unknown"]
        };
        /// Lookups in the local cache of a bucket.
        pub(crate) cache_lookups: IntCounterVec = "weir_origin_store_cache_lookups_total" { result: ["hit", "miss", "damaged"] };
        /// Objects that could not be written to the local cache of a bucket. They were served all the same.
        pub(crate) cache_write_failures: IntCounter = "weir_origin_store_cache_write_failures_total";
        /// Bytes in the local cache of a bucket.
        pub(crate) cache_bytes: IntGauge = "weir_origin_store_cache_bytes";
        /// The bound of the local cache of a bucket: `store.cache`. 0: no cache.
        pub(crate) cache_limit_bytes: IntGauge = "weir_origin_store_cache_limit_bytes";
    }
}

impl StoreMetrics {
    /// Counts a request for objects.
    pub(crate) fn object_request<T>(&self, operation: &str, outcome: &Result<T, ObjectError>) {
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
}

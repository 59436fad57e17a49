//! Metrics of sources.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};
use weir_runtime::metric_families;

metric_families! {
    /// The families of sources.
    pub struct SourceMetrics {
        /// Archives of charts and layers of artifacts that were downloaded and unpacked. `failed`: the service that follows it
        /// has the reason.
        pub(crate) archives_fetched: IntCounterVec = "weir_origin_archives_fetched_total" { result: ["fetched", "failed"] };
        /// Entries of followed charts without a version that can be followed, each time an index is read. `/status` has the
        /// number only if a service finds no version.
        pub(crate) index_entries_skipped: IntCounter = "weir_origin_index_entries_skipped_total";
        /// Tokens that the token services of registries issued. A token is used for 90 % of its lifetime.
        pub(crate) registry_tokens: IntCounter = "weir_origin_registry_tokens_total";
        /// LFS objects fetched and verified.
        pub(crate) lfs_objects: IntCounter = "weir_origin_lfs_objects_fetched_total";
        /// Bytes of LFS objects fetched and verified.
        pub(crate) lfs_bytes: IntCounter = "weir_origin_lfs_bytes_fetched_total";
        /// Commits, tags, charts and artifacts checked by `[repository.verify]`. `failed`: a program or a file is missing, or a
        /// signature cannot be fetched.
        pub(crate) verifications: IntCounterVec = "weir_origin_verifications_total"
            { repository, result: VERIFICATION_RESULTS };
        /// Packs of the mirror after its last maintenance. Above 30 for long: find out why repacks fail.
        pub(crate) mirror_packs: IntGaugeVec = "weir_origin_mirror_packs" { repository };
        /// Bytes of the mirror's packs and indices after its last maintenance; of charts those of unpacked archives after the
        /// last poll. The bound is `upstreams.max_mirror`.
        pub(crate) mirror_bytes: IntGaugeVec = "weir_origin_mirror_bytes" { repository };
        /// Repacks of the mirror. `joined`: small packs only. `full`: everything. After `failed` the log has the reason, and
        /// it is retried later.
        pub(crate) repacks: IntCounterVec = "weir_origin_repacks_total" { repository, result: REPACK_RESULTS };
    }
}

/// Results of verifying a commit or a tag.
const VERIFICATION_RESULTS: [&str; 3] = ["verified", "refused", "failed"];
/// Results of repacks.
const REPACK_RESULTS: [&str; 3] = ["joined", "full", "failed"];

impl SourceMetrics {
    /// Creates a repository's series with 0, because alerts on increases do not see the first value of a series.
    pub fn expect_repository(&self, name: &str) {
        for result in VERIFICATION_RESULTS {
            self.verifications.with_label_values(&[name, result]);
        }
        for result in REPACK_RESULTS {
            self.repacks.with_label_values(&[name, result]);
        }
    }

    /// Removes the series of a deleted repository.
    pub fn forget_repository(&self, name: &str) {
        // A missing series is no error.
        let _ = self.mirror_packs.remove_label_values(&[name]);
        let _ = self.mirror_bytes.remove_label_values(&[name]);
        for result in VERIFICATION_RESULTS {
            let _ = self.verifications.remove_label_values(&[name, result]);
        }
        for result in REPACK_RESULTS {
            let _ = self.repacks.remove_label_values(&[name, result]);
        }
    }
}

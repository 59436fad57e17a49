//! The metrics of access.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use weir_runtime::metric_families;

use super::decision::AccessDecision;
use super::key_set::KeySet;

metric_families! {
    /// The families of authorization.
    pub(crate) struct AccessFamilies {
        /// Authorization decisions. `open`, `token` and `certificate`: allowed by this. `out_of_scope`: valid, and not for
        /// this service. The others: rejected, by reason.
        decisions: IntCounterVec = "weir_edge_authorisations_total" { result: [
            "open", "token", "certificate", "out_of_scope", "no_credential", "malformed", "unknown_key",
            "key_of_origins", "keys_not_fetched", "revoked_key", "bad_signature", "wrong_audience", "wrong_subject", "no_agent", "expired", "not_yet_valid", "denied"
        ] };
        /// Keys that verify tokens, without revoked ones: of the edge's files and of its origins together.
        keys: IntGauge = "weir_edge_access_keys";
        /// Revoked keys.
        revoked_keys: IntGauge = "weir_edge_access_revoked_keys";
        /// Denied tokens.
        denied_tokens: IntGauge = "weir_edge_access_denied_tokens";
        /// Denied agents.
        denied_agents: IntGauge = "weir_edge_access_denied_agents";
        /// Keys of issuers, of the configuration and of origins.
        issuer_keys: IntGauge = "weir_edge_access_issuer_keys";
        /// Issuers whose keys could not be read or fetched at the last attempt. Their last valid keys stay in use. Alert
        /// above 0.
        pub(super) issuers_failing: IntGauge = "weir_edge_access_issuers_failing";
        /// Issuers of origins whose keys are at a URL and not fetched. `host`: `[auth] key_hosts` does not have it; the log names
        /// each such host once. `limit`: there are more than `[auth] max_issuer_urls`, and these were defined last. Alert above 0.
        pub(super) issuers_not_fetched: IntGaugeVec = "weir_edge_access_issuers_not_fetched" { reason: ["host", "limit"] };
        /// Fetches of the keys of issuers by URL.
        key_set_fetches: IntCounterVec = "weir_edge_access_key_set_fetches_total" { result: ["applied", "failed"] };
        /// 1 while the files of `[auth]` can be used. At 0 the lists that were read last are in force. Alert on 0.
        pub(super) files_readable: IntGauge = "weir_edge_access_files_readable";
        /// Agents, assignments and issuers that operators of two clusters of origins define differently. The definitions from
        /// the cluster with the lower id apply.
        pub(super) fleet_conflicts: IntGauge = "weir_edge_access_fleet_conflicts";
        /// Lists from origins, and shards of them, that could not be read or are too many. The previous lists stay in force.
        pub(super) lists_refused: IntCounter = "weir_edge_access_lists_refused_total";
        /// Origins with a list of which shards were not fetched yet. Its keys and denials apply, with the agents, assignments and
        /// issuers of the list before. Alert above 0 for minutes.
        pub(super) lists_incomplete: IntGauge = "weir_edge_access_lists_incomplete";
        /// 1 while lists of keys and denials from origins cannot be written to disk.
        pub(super) lists_unsaved: IntGauge = "weir_edge_access_lists_unsaved";
    }
}

/// The families of one edge's access.
pub(super) struct AccessMetrics {
    families: AccessFamilies,
    /// In the order of [`AccessDecision::ALL`].
    decisions: Vec<IntCounter>,
}

impl std::ops::Deref for AccessMetrics {
    type Target = AccessFamilies;

    fn deref(&self) -> &AccessFamilies {
        &self.families
    }
}

impl AccessMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let families = AccessFamilies::register(registry)?;
        let decision = |each: &AccessDecision| families.decisions.with_label_values(&[each.as_str()]);
        Ok(Self { decisions: AccessDecision::ALL.iter().map(decision).collect(), families })
    }

    pub(super) fn decided(&self, decision: AccessDecision) {
        self.decisions[decision.index()].inc();
    }

    pub(super) fn key_set_fetched(&self, is_applied: bool) {
        self.key_set_fetches.with_label_values(&[if is_applied { "applied" } else { "failed" }]).inc();
    }

    pub(super) fn set_key_set(&self, key_set: &KeySet) {
        let (keys, revoked, denied) = key_set.sizes();
        for (gauge, value) in [
            (&self.keys, keys),
            (&self.revoked_keys, revoked),
            (&self.denied_tokens, denied),
            (&self.denied_agents, key_set.denied_agents()),
            (&self.issuer_keys, key_set.issuers().keys()),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }
}

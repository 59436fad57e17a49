//! What the decisions count.

use prometheus::{IntCounter, IntGauge, Registry};
use weir_runtime::metric_families::MetricFamilies;

use super::decision::AccessDecision;
use super::key_set::KeySet;

/// The families of one edge's access.
pub(super) struct AccessMetrics {
    /// In the order of [`AccessDecision::ALL`].
    decisions: Vec<IntCounter>,
    keys: IntGauge,
    revoked_keys: IntGauge,
    denied_tokens: IntGauge,
    pub(super) files_readable: IntGauge,
    pub(super) lists_refused: IntCounter,
    pub(super) unsaved: IntGauge,
}

impl AccessMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let family = MetricFamilies(registry);
        let decisions = family.counters(
            "weir_edge_authorisations_total",
            "Requests by what was decided about their reader.",
            &["result"],
        )?;
        Ok(Self {
            decisions: AccessDecision::ALL.iter().map(|each| decisions.with_label_values(&[each.as_str()])).collect(),
            keys: family.gauge("weir_edge_access_keys", "Keys that verify tokens, without the revoked ones.")?,
            revoked_keys: family.gauge("weir_edge_access_revoked_keys", "Keys that are revoked.")?,
            denied_tokens: family.gauge("weir_edge_access_denied_tokens", "Tokens that are denied.")?,
            files_readable: family.gauge(
                "weir_edge_access_files_readable",
                "1 while the files of keys and denials can be used; at 0 what was read last is in force.",
            )?,
            lists_refused: family.counter(
                "weir_edge_access_lists_refused_total",
                "Lists of keys and denials that origins sent and that could not be read.",
            )?,
            unsaved: family.gauge(
                "weir_edge_access_heard_unsaved",
                "1 while what origins said of keys and denials cannot be written to disk.",
            )?,
        })
    }

    pub(super) fn decided(&self, decision: AccessDecision) {
        self.decisions[decision.index()].inc();
    }

    pub(super) fn set_key_set(&self, key_set: &KeySet) {
        let (keys, revoked, denied) = key_set.sizes();
        for (gauge, value) in [(&self.keys, keys), (&self.revoked_keys, revoked), (&self.denied_tokens, denied)] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }
}

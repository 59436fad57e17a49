//! What metrics show of the fleet, counted every few seconds where that may block, and not when they are collected.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use weir_protocol::name::ServiceName;
use weir_runtime::shutdown::Drain;

use crate::catalog::Catalog;
use crate::metrics::Metrics;
use crate::observed::Observed;

/// How often it is counted.
const INTERVAL: Duration = Duration::from_secs(10);

/// Counts until the drain.
pub(crate) fn start(observed: Observed, catalog: Arc<Catalog>, metrics: Metrics, drain: &Drain) {
    let draining = drain.clone();
    drain.spawn(async move {
        let mut shown = BTreeSet::new();
        loop {
            tokio::select! {
                () = draining.begun() => return,
                () = tokio::time::sleep(INTERVAL) => show(&observed, &catalog, &metrics, &mut shown).await,
            }
        }
    });
}

/// `shown`: the problems and services that have series.
async fn show(observed: &Observed, catalog: &Catalog, metrics: &Metrics, shown: &mut BTreeSet<(&'static str, String)>) {
    let snapshot = catalog.snapshot();
    // Edges may name any service.
    let is_known = move |service: &ServiceName| snapshot.services.contains_key(service);
    let Some(gauges) = observed.look(move |table, now| table.gauges(now, is_known)).await else { return };
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    metrics.observed_incomplete.set(number(gauges.incomplete));
    metrics.observed_duplicated.set(number(gauges.duplicated));
    metrics.observed_duplicated_edges.set(number(gauges.duplicated_edges));
    for (state, count) in gauges.states {
        metrics.observed_agents.with_label_values(&[state]).set(number(count));
    }
    let mut before = std::mem::take(shown);
    for (kind, service, rows) in gauges.problems {
        let series = (kind, service.map_or_else(String::new, |service| service.to_string()));
        metrics.observed_problems.with_label_values(&[series.0, &series.1]).set(number(rows));
        before.remove(&series);
        shown.insert(series);
    }
    for (kind, service) in before {
        // A missing series is no error.
        let _ = metrics.observed_problems.remove_label_values(&[kind, &service]);
    }
}

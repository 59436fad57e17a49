//! The document of `/v1/summary`: what a person wants to know of an origin first. The page at `/` shows it.

use std::collections::BTreeMap;

use prometheus::proto::MetricFamily;
use serde_json::{Value, json};

use crate::catalog::Snapshot;
use crate::reconcile::Phase;
use crate::status;

/// The most repositories, services, and each kind of work that it lists.
const MAX_LISTED: usize = 25;

/// What it says of the store and of edges: names in the document, and gauges.
const GAUGES: [(&str, &str); 6] = [
    ("bytes", "weir_origin_store_bytes"),
    ("superseded_versions", "weir_origin_superseded_versions"),
    ("unreferenced_objects", "weir_origin_store_unreferenced_objects"),
    ("gc_blocked_repositories", "weir_origin_store_gc_blocked_repositories"),
    ("disk_free_bytes", "weir_origin_disk_free_bytes"),
    ("event_streams", "weir_origin_event_streams"),
];

/// Adds to the head of `/status` how many repositories and services there are, those first that somebody should look at.
pub(crate) fn summary(mut head: Value, snapshot: &Snapshot, families: &[MetricFamily]) -> Value {
    head["repositories"] = repositories(snapshot);
    head["services"] = services(snapshot);
    head["work"] = work(snapshot);
    let gauge = |name: &str| sum(families, name, |_| true);
    head["store"] = GAUGES.iter().map(|(name, family)| ((*name).to_owned(), json!(gauge(family)))).collect();
    head["bounds"] = bounds(families);
    head
}

/// How many there are of each kind, and the first of them: `order` has the kinds of which somebody should look first.
fn ranked<T>(all: impl Iterator<Item = (&'static str, T)>, order: &[&str], describe: impl Fn(T) -> Value) -> Value {
    let (mut counts, mut ranked) = (BTreeMap::new(), Vec::new());
    for (kind, one) in all {
        *counts.entry(kind).or_insert(0_u64) += 1;
        ranked.push((order.iter().position(|each| *each == kind).unwrap_or(order.len()), one));
    }
    let total = ranked.len();
    // The names are in order, and stay so among equals.
    ranked.sort_by_key(|(rank, _)| *rank);
    let listed = ranked.into_iter().take(MAX_LISTED).map(|(_, one)| describe(one));
    json!({ "total": total, "listed": listed.collect::<Vec<_>>(), "counts": counts })
}

fn repositories(snapshot: &Snapshot) -> Value {
    let all = snapshot.definitions.repositories.iter();
    let all = all.map(|(name, defined)| (status::health_of(snapshot, name), (name, defined)));
    ranked(all, &["suspended", "unhealthy", "unknown", "healthy"], |one| status::repository_entry(snapshot, one))
}

fn services(snapshot: &Snapshot) -> Value {
    let all = snapshot.definitions.services.iter();
    let all = all.map(|(name, defined)| (status::condition_of(snapshot, name, &defined.document), (name, defined)));
    ranked(all, &["unhealthy", "pending", "pinned", "following"], |one| status::service_entry(snapshot, one))
}

/// What the origin does now: fetches and builds.
fn work(snapshot: &Snapshot) -> Value {
    let (mut fetches, mut builds) = (Vec::new(), Vec::new());
    for (name, worker) in snapshot.workers.iter() {
        let state = worker.state();
        if let Phase::Fetching { progress } | Phase::Polling { progress } = &state.phase {
            fetches.push(json!({
                "repository": name, "phase": state.phase.as_str(), "progress": status::progress(progress),
            }));
        }
        builds.extend(
            state.building.iter().map(
                |(service, since)| json!({ "repository": name, "service": service, "since": status::time(*since) }),
            ),
        );
    }
    let (fetching, building) = (fetches.len(), builds.len());
    fetches.truncate(MAX_LISTED);
    builds.truncate(MAX_LISTED);
    json!({ "fetches": fetches, "fetches_total": fetching, "builds": builds, "builds_total": building })
}

/// The sum of a gauge's series whose label `bound` is wanted.
fn sum(families: &[MetricFamily], name: &str, is_wanted: impl Fn(&str) -> bool) -> f64 {
    let series = families.iter().filter(|family| family.name() == name).flat_map(|family| family.get_metric());
    let bound = |metric: &prometheus::proto::Metric| {
        metric
            .get_label()
            .iter()
            .find(|label| label.name() == "bound")
            .map_or(String::new(), |label| label.value().into())
    };
    series.filter(|metric| is_wanted(&bound(metric))).map(|metric| metric.get_gauge().get_value()).sum()
}

fn bounds(families: &[MetricFamily]) -> Value {
    let limits =
        families.iter().filter(|family| family.name() == "weir_bound_limit").flat_map(|family| family.get_metric());
    let limits = limits.flat_map(|limit| Some((limit.get_label().first()?.value(), limit.get_gauge().get_value())));
    let of = |name: &str| sum(families, "weir_bound_in_use", |bound| bound == name);
    limits.map(|(name, limit)| json!({ "bound": name, "in_use": of(name), "limit": limit })).collect()
}

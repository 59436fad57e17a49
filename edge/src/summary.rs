//! The document of `/v1/summary`: what a person wants to know of an edge first. The page at `/` shows it.

use std::cmp::Reverse;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use prometheus::Registry;
use prometheus::proto::{Metric, MetricFamily};
use serde_json::{Value, json};

use crate::status::Status;

/// The most services that it names: those that were validated longest ago.
const MAX_SERVICES: usize = 5;

/// The most agents that it lists.
const MAX_AGENTS: usize = 25;

/// For so long it is the same for all who ask: many who look cost no more than one.
const FRESH: Duration = Duration::from_secs(2);

/// The gauges of connections and of their limits.
const CONNECTIONS: [&str; 2] = ["weir_http_connections", "weir_http_connections_limit"];

impl Status {
    /// What `/status` has without its services; the limits, the oldest services, the agents with problems, and the last hour.
    /// Up to two seconds old. Blocks.
    pub(crate) fn summary(&self, registry: &Registry) -> Value {
        let mut summed = self.summed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, document)) = &*summed
            && self.clock.now().since(*at) < FRESH
        {
            return document.clone();
        }
        let document = self.sum(&registry.gather());
        *summed = Some((self.clock.now(), document.clone()));
        document
    }

    fn sum(&self, families: &[MetricFamily]) -> Value {
        let mut document = self.head();
        document["now"] = humantime::format_rfc3339_millis(SystemTime::now()).to_string().into();
        document["agents"]["listed"] = self.observed.worst(MAX_AGENTS).into();
        document["services"] = self.oldest();
        let mut bounds = self.bounds().into_iter().map(|(name, in_use, limit)| bound(name, in_use, limit)).collect();
        connections(families, &mut bounds);
        document["bounds"] = bounds.into();
        document["last_hour"] = self.history.document(families);
        document
    }

    /// How many services there are by freshness, and those that were validated longest ago.
    fn oldest(&self) -> Value {
        let now = self.clock.now();
        let mut all = self.catalog.all();
        all.retain(|(_, entry)| entry.version.is_some());
        let mut document = json!({
            "total": all.len(), "fresh": 0, "stale-while-revalidate": 0, "revalidate": 0, "expired": 0,
        });
        let mut aged: Vec<_> =
            all.into_iter().map(|(name, entry)| (self.catalog.age(&entry, now), name, entry)).collect();
        for (age, _, entry) in &aged {
            let count = &mut document[entry.evaluate(*age).into_str()];
            *count = json!(count.as_u64().unwrap_or_default() + 1);
        }
        if aged.len() > MAX_SERVICES {
            aged.select_nth_unstable_by_key(MAX_SERVICES, |(age, ..)| Reverse(*age));
            aged.truncate(MAX_SERVICES);
        }
        aged.sort_by(|(age, name, _), (other, of, _)| (Reverse(age), name).cmp(&(Reverse(other), of)));
        let failures = self.lookup.failures(|failed| aged.iter().any(|(_, name, _)| name == failed));
        let described =
            aged.iter().map(|(_, name, entry)| self.service(name, Some(entry), entry.version.as_deref(), &failures));
        document["oldest"] = described.collect();
        document
    }
}

fn bound(name: &str, in_use: u64, limit: u64) -> Value {
    json!({ "bound": name, "in_use": in_use, "limit": limit })
}

/// Adds the connections of each listener, which are no bound of the edge's own.
fn connections(families: &[MetricFamily], bounds: &mut Vec<Value>) {
    let [open, limits] = CONNECTIONS
        .map(|name| families.iter().filter(move |family| family.name() == name).flat_map(|family| family.get_metric()));
    let value = |metric: &Metric| metric.get_gauge().get_value() as u64;
    let open: Vec<_> = open.map(|metric| (labels(metric), value(metric))).collect();
    for limit in limits {
        let [listener, transport] = labels(limit);
        let of = open.iter().filter(|(labels, _)| *labels == [listener, transport]);
        let name = format!("connections_{listener}_{transport}");
        bounds.push(bound(&name, of.map(|(_, open)| open).sum(), value(limit)));
    }
}

fn labels(metric: &Metric) -> [&str; 2] {
    let label = |name| metric.get_label().iter().find(|label| label.name() == name);
    ["listener", "transport"].map(|name| label(name).map_or("", |label| label.value()))
}

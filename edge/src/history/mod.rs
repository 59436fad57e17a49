//! The last hour of what the edge counts, in memory: for people who look at the edge without Prometheus.

mod ring;

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::Registry;
use prometheus::proto::{Metric, MetricFamily};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use weir_cache::clock::Clock;
use weir_runtime::shutdown::Drain;

use self::ring::{INTERVAL, Ring};

/// A number of the history: the sum of the series of a counter whose labels have one of these values. `4xx`: what begins so.
struct Counted {
    group: &'static str,
    name: &'static str,
    family: &'static str,
    labels: &'static [Filter],
}

/// A label, and the values of which it has one.
type Filter = (&'static str, &'static [&'static str]);

/// The routes of agents for which the cache works. The others are polls, streams and reports.
const CACHED: Filter = (
    "route",
    &[
        "service",
        "tarball",
        "tarball_version",
        "tarball_frames",
        "versions",
        "version",
        "object",
        "oci_manifest",
        "oci_blob",
        "oci_tags",
        "oci_referrers",
    ],
);

/// The requests to origins and shields that a request for something cached can lead to.
const FETCHES: Filter = ("kind", &["service", "version", "versions", "object", "shield"]);

/// The requests of other edges for something cached.
const PEERS: Filter = ("route", &["service", "version", "versions", "object"]);

const ERROR: Filter = ("cache", &["error"]);
const REFUSED: Filter = ("status", &["4xx"]);
const FAILED: Filter = ("status", &["5xx"]);

const fn counted(group: &'static str, name: &'static str, family: &'static str, labels: &'static [Filter]) -> Counted {
    Counted { group, name, family, labels }
}

/// All numbers, in the order of a sample.
const COUNTED: [Counted; 37] = [
    counted("requests", "hit", "weir_edge_requests_total", &[CACHED, ("cache", &["hit"])]),
    counted("requests", "stale", "weir_edge_requests_total", &[CACHED, ("cache", &["stale"])]),
    counted("requests", "miss", "weir_edge_requests_total", &[CACHED, ("cache", &["miss"])]),
    counted("requests", "collapsed", "weir_edge_requests_total", &[CACHED, ("cache", &["collapsed"])]),
    counted("requests", "revalidated", "weir_edge_requests_total", &[CACHED, ("cache", &["revalidated"])]),
    counted("requests", "forced", "weir_edge_requests_total", &[CACHED, ("cache", &["forced"])]),
    counted("requests", "error_4xx", "weir_edge_requests_total", &[CACHED, ERROR, REFUSED]),
    counted("requests", "error_5xx", "weir_edge_requests_total", &[CACHED, ERROR, FAILED]),
    counted("agents", "requests", "weir_edge_requests_total", &[]),
    counted("agents", "error_4xx", "weir_edge_requests_total", &[ERROR, REFUSED]),
    counted("agents", "error_5xx", "weir_edge_requests_total", &[ERROR, FAILED]),
    counted("downloads", "memory", "weir_edge_tarballs_served_total", &[("tier", &["memory"])]),
    counted("downloads", "disk", "weir_edge_tarballs_served_total", &[("tier", &["disk"])]),
    counted("downloads", "origin", "weir_edge_tarballs_served_total", &[("tier", &["origin"])]),
    counted("sent_bytes", "memory", "weir_edge_sent_bytes_total", &[("tier", &["memory"])]),
    counted("sent_bytes", "disk", "weir_edge_sent_bytes_total", &[("tier", &["disk"])]),
    counted("sent_bytes", "origin", "weir_edge_sent_bytes_total", &[("tier", &["origin"])]),
    counted("objects", "memory", "weir_edge_cache_hits_total", &[("tier", &["memory"])]),
    counted("objects", "disk", "weir_edge_cache_hits_total", &[("tier", &["disk"])]),
    counted("objects", "shields", "weir_edge_origin_requests_total", &[("kind", &["shield"]), ("status", &["200"])]),
    counted("objects", "origins", "weir_edge_origin_requests_total", &[("kind", &["object"]), ("status", &["200"])]),
    counted("evictions", "memory", "weir_edge_cache_memory_evictions_total", &[]),
    counted("evictions", "disk", "weir_edge_evictions_total", &[("reason", &["size"])]),
    counted("fills", "ok", "weir_edge_fills_total", &[("result", &["ok"])]),
    counted("fills", "not_found", "weir_edge_fills_total", &[("result", &["not_found"])]),
    counted("fills", "origin_failed", "weir_edge_fills_total", &[("result", &["origin_failed"])]),
    counted("fills", "broken", "weir_edge_fills_total", &[("result", &["broken"])]),
    counted("fills", "slow", "weir_edge_fills_total", &[("result", &["slow"])]),
    counted("fills", "corrupt", "weir_edge_fills_total", &[("result", &["corrupt"])]),
    counted("fills", "abandoned", "weir_edge_fills_total", &[("result", &["abandoned"])]),
    counted("fills", "collapsed", "weir_edge_fills_collapsed_total", &[]),
    counted("origins", "requests", "weir_edge_origin_requests_total", &[FETCHES]),
    counted("origins", "not_sent", "weir_edge_origin_requests_total", &[FETCHES, ("status", &["circuit_open"])]),
    counted("origins", "received_bytes", "weir_edge_origin_received_bytes_total", &[]),
    counted("peers", "requests", "weir_edge_peer_requests_total", &[]),
    counted("peers", "cached_requests", "weir_edge_peer_requests_total", &[PEERS]),
    counted("peers", "sent_bytes", "weir_edge_peer_sent_bytes_total", &[]),
];

const NUMBERS: usize = COUNTED.len();

/// The last hour. Cheap to clone.
#[derive(Clone)]
pub(crate) struct History {
    ring: Arc<Mutex<Ring<NUMBERS>>>,
    registry: Registry,
    clock: Clock,
}

impl History {
    /// Starts the task that takes the samples, until the drain begins.
    pub(crate) fn start(registry: Registry, clock: Clock, drain: &Drain) -> Self {
        let history = Self { ring: Arc::new(Mutex::new(Ring::new(clock.now()))), registry, clock };
        drain.spawn(history.clone().record(drain.clone()));
        history
    }

    async fn record(self, drain: Drain) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = drain.begun() => return,
            }
            let registry = self.registry.clone();
            // Some families are counted when they are read.
            if let Ok(counters) = spawn_blocking(move || read(&registry.gather())).await {
                self.ring.lock().unwrap_or_else(PoisonError::into_inner).push(self.clock.now(), counters);
            }
        }
    }

    /// For `/v1/summary`: what was counted in each interval, of which `families` ends the last. Blocks.
    pub(crate) fn document(&self, families: &[MetricFamily]) -> Value {
        let (now, counters) = (self.clock.now(), read(families));
        let (intervals, gaps, reach) = {
            let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
            let (intervals, gaps) = ring.intervals(now, counters);
            (intervals, gaps, ring.reach(now))
        };
        let ago = |at| now.since(at).as_secs();
        let ends: Vec<_> = intervals.iter().map(|interval| ago(interval.end)).collect();
        let mut document = json!({
            "seconds": reach.as_secs(),
            "interval_seconds": INTERVAL.as_secs(),
            "seconds_ago": ends,
            "gaps": gaps.iter().map(|(from, to)| json!([ago(*from).min(reach.as_secs()), ago(*to)])).collect::<Vec<_>>(),
        });
        for (number, Counted { group, name, .. }) in COUNTED.iter().enumerate() {
            document[*group][*name] = intervals.iter().map(|interval| interval.counts[number]).collect();
        }
        document
    }
}

/// The numbers of the families of a registry.
fn read(families: &[MetricFamily]) -> [u64; NUMBERS] {
    COUNTED.map(|Counted { family, labels, .. }| {
        let series = families.iter().filter(|read| read.name() == family).flat_map(|read| read.get_metric());
        series.filter(|metric| has(metric, labels)).map(|metric| metric.get_counter().get_value() as u64).sum()
    })
}

fn has(metric: &Metric, labels: &[(&str, &[&str])]) -> bool {
    let is_one = |value: &str, of: &str| of.strip_suffix("xx").map_or(value == of, |begin| value.starts_with(begin));
    let is_of = |(name, values): &(&str, &[&str])| {
        let mut all = metric.get_label().iter();
        all.any(|label| label.name() == *name && values.iter().any(|of| is_one(label.value(), of)))
    };
    labels.iter().all(is_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_of_a_family_with_these_labels() {
        for Counted { family, labels, .. } in COUNTED {
            let found = crate::families().into_iter().find(|known| known.name == family).expect(family);
            assert_eq!(found.kind, "counter");
            for (label, wanted) in labels {
                let (_, values) = found.labels.iter().find(|(name, _)| name == label).expect(label);
                let are_known = values.is_empty() || wanted.iter().all(|value| values.contains(value));
                assert!(are_known, "{family} {label}={wanted:?}");
            }
        }
    }
}

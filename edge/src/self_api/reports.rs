//! The last report of each agent: `POST /v1/agents/self/report`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::{Request, Response, StatusCode};
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use serde_json::{Value, json};
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::report::{INTERVAL_SECONDS, Instance, MAX_REPORT_BYTES, Report};
use weir_runtime::bounds::Bound;
use weir_runtime::serve::{Body, RequestBody};

use super::Inner;
use crate::access;
use crate::agent_api::ApiError;

/// After this time without a report an instance is taken for ended.
const ENDED_AFTER: Duration = Duration::from_secs(2 * INTERVAL_SECONDS);

/// The most agents that a document of `/v1/explain` lists.
const MAX_LISTED: usize = 100;

/// The most instances of one name that are told apart.
const MAX_INSTANCES: usize = 4;

/// The last reports, within a bound of memory: the agents whose reports are the oldest are forgotten first. In memory
/// only. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Reports {
    agents: Cache<NodeName, Arc<Agent>>,
    max_bytes: u64,
    /// Names that two living instances have, as of the last report of each.
    duplicated: Arc<Mutex<std::collections::BTreeSet<NodeName>>>,
}

/// The reports of an agent, of each of its instances.
#[derive(Debug, Clone, Default)]
struct Agent {
    /// Sorted by the time of the last report.
    instances: Vec<Reported>,
}

#[derive(Debug, Clone)]
struct Reported {
    report: Arc<Report>,
    bytes: u32,
    began: SystemTime,
    at: SystemTime,
}

impl Agent {
    /// Takes in a report. `None`: it is not newer than what is known of its instance.
    fn with(&self, report: Report, bytes: u32, now: SystemTime) -> Option<Self> {
        let is_alive = |one: &&Reported| now.duration_since(one.at).is_ok_and(|ago| ago <= ENDED_AFTER);
        let mut instances: Vec<Reported> = self.instances.iter().filter(is_alive).cloned().collect();
        let known = instances.iter().position(|one| one.report.instance == report.instance);
        let known = known.map(|index| instances.remove(index));
        if known.as_ref().is_some_and(|known| report.seq < known.report.seq) {
            return None;
        }
        if instances.len() == MAX_INSTANCES {
            instances.remove(0);
        }
        let began = known.map_or(now, |known| known.began);
        instances.push(Reported { report: Arc::new(report), bytes, began, at: now });
        Some(Self { instances })
    }

    /// Two instances that live at the same time: one has reported after the other had begun. A restart is not that.
    fn living(&self) -> Vec<&Instance> {
        let overlaps = |one: &&Reported| {
            self.instances.iter().any(|other| {
                other.report.instance != one.report.instance && one.began < other.at && other.began < one.at
            })
        };
        self.instances.iter().filter(overlaps).map(|one| &one.report.instance).collect()
    }

    fn weight(&self) -> u32 {
        self.instances.iter().map(|one| one.bytes.saturating_add(200)).fold(0, u32::saturating_add)
    }
}

impl Reports {
    pub(super) fn new(max_bytes: u64) -> Self {
        let agents = Cache::builder().max_capacity(max_bytes).weigher(|_, agent: &Arc<Agent>| agent.weight());
        let agents = agents.eviction_policy(EvictionPolicy::lru());
        Self { agents: agents.build(), max_bytes, duplicated: Arc::default() }
    }

    pub(super) fn bound(&self) -> Bound {
        self.agents.run_pending_tasks();
        ("agent_report_bytes", self.agents.weighted_size(), self.max_bytes)
    }

    /// Takes in a report of `bytes` bytes.
    fn insert(&self, agent: &NodeName, report: Report, bytes: u32, now: SystemTime) {
        let mut living = None;
        self.agents.entry_by_ref(agent).and_compute_with(|known| {
            let known = known.map(|entry| entry.into_value()).unwrap_or_default();
            match known.with(report, bytes, now) {
                Some(agent) => {
                    living = Some(agent.living().into_iter().cloned().collect::<Vec<_>>());
                    Op::Put(Arc::new(agent))
                }
                None => Op::Nop,
            }
        });
        let Some(living) = living else { return };
        let mut duplicated = self.duplicated.lock().unwrap_or_else(PoisonError::into_inner);
        if living.is_empty() {
            duplicated.remove(agent);
        } else if duplicated.insert(agent.clone()) {
            tracing::warn!(
                %agent,
                instances = living.iter().map(Instance::as_str).collect::<Vec<_>>().join(", "),
                "two agents use the same name: give each cluster its own identity"
            );
        }
    }

    /// For `/status`: how many agents reported, and what is wrong with which.
    pub(crate) fn summary(&self) -> Value {
        let (mut failing, mut reporting) = (Vec::new(), 0);
        for (name, agent) in &self.agents {
            let Some(last) = agent.instances.last() else { continue };
            reporting += 1;
            if failing.len() < MAX_LISTED && last.report.services.iter().any(|row| row.error.is_some()) {
                failing.push(name.to_string());
            }
        }
        failing.sort();
        let duplicated = self.duplicated.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "reporting": reporting,
            "failing": failing,
            "duplicated": duplicated.iter().take(MAX_LISTED).map(NodeName::as_str).collect::<Vec<_>>(),
        })
    }

    /// For `/v1/explain`: what agents say of a service.
    pub(crate) fn of_service(&self, service: &ServiceName) -> Vec<Value> {
        let mut rows = Vec::new();
        for (name, agent) in &self.agents {
            let Some(last) = agent.instances.last() else { continue };
            let Some(row) = last.report.services.iter().find(|row| row.service == *service) else { continue };
            let mut row = serde_json::to_value(row).expect("plain data");
            row["agent"] = json!(name.as_str());
            row["version"] = json!(last.report.version);
            row["labels"] = json!(last.report.labels);
            row["reported"] = json!(humantime::format_rfc3339_seconds(last.at).to_string());
            rows.push((name.clone(), row));
            if rows.len() == MAX_LISTED {
                break;
            }
        }
        rows.sort_by(|(one, _), (other, _)| one.cmp(other));
        rows.into_iter().map(|(_, row)| row).collect()
    }
}

impl Inner {
    pub(super) async fn report(
        &self,
        request: &mut Request<RequestBody>,
        agent: &access::Agent,
    ) -> Result<Response<Body>, ApiError> {
        let body = std::mem::replace(request.body_mut(), RequestBody::Empty).read(MAX_REPORT_BYTES).await?;
        let mut report = Report::parse(&body).map_err(|error| ApiError::Malformed(error.to_string()))?;
        let rows = report.services.len();
        report.services.retain(|row| agent.may_read(&row.service));
        self.metrics.dropped_rows.inc_by((rows - report.services.len()) as u64);
        self.metrics.reports.inc();
        self.reports.insert(&agent.name, report, body.len() as u32, SystemTime::now());
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn report(instance: &str, seq: u64, error: Option<&str>) -> Report {
        let json = json!({
            "instance": instance, "seq": seq, "version": "0.2.0",
            "services": [{
                "service": "shop", "digest": null, "generation": null, "since": "2026-01-01T00:00:00Z", "error": error,
            }],
        });
        Report::parse(json.to_string().as_bytes()).unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
    }

    #[test]
    fn the_last_report_is_shown_and_a_lower_number_is_dropped() {
        let reports = Reports::new(1 << 20);
        let agent = "cluster-1".parse().unwrap();
        reports.insert(&agent, report("a", 2, Some("disk full")), 100, at(0));
        reports.insert(&agent, report("a", 1, None), 100, at(1));
        let shown = reports.of_service(&"shop".parse().unwrap());
        assert_eq!(
            (shown.len(), &shown[0]["error"], &shown[0]["agent"]),
            (1, &json!("disk full"), &json!("cluster-1"))
        );
        assert_eq!(reports.summary(), json!({"reporting": 1, "failing": ["cluster-1"], "duplicated": []}));
        reports.insert(&agent, report("a", 3, None), 100, at(2));
        assert_eq!(reports.summary()["failing"], json!([]));
        assert!(reports.of_service(&"other".parse().unwrap()).is_empty());
    }

    #[test]
    fn two_instances_at_a_time_are_flagged_and_a_restart_is_not() {
        let reports = Reports::new(1 << 20);
        let agent = "cluster-1".parse().unwrap();
        let duplicated = |instance: &str, seq, seconds| {
            reports.insert(&agent, report(instance, seq, None), 100, at(seconds));
            reports.summary()["duplicated"] == json!(["cluster-1"])
        };
        assert!(!duplicated("a", 1, 0));
        assert!(!duplicated("b", 1, 10), "it was restarted");
        assert!(!duplicated("b", 2, 20));
        assert!(duplicated("a", 2, 30), "the first lives");
        assert!(!duplicated("b", 3, 30 + 2 * INTERVAL_SECONDS + 1), "the first has ended");
    }

    #[test]
    fn memory_is_bounded() {
        let reports = Reports::new(10_000);
        for n in 0..100 {
            reports.insert(&format!("cluster-{n}").parse().unwrap(), report("a", 1, None), 800, at(n));
        }
        let (_, used, most) = reports.bound();
        assert!(0 < used && used <= most, "{used}");
    }
}

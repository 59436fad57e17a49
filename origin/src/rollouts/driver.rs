//! The task that decides what follows for what plans stage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use prometheus::Registry;
use weir_protocol::name::ServiceName;
use weir_publish::{Author, StagedByPlan, VersionChange};
use weir_rollout::{Counts, Facts, Now, Soak, Step, next};
use weir_runtime::shutdown::Drain;

use super::facts::all_facts;
use super::metrics::RolloutMetrics;
use super::state_name::state_name;
use super::steps::Steps;
use crate::cluster::Cluster;
use crate::observed::Observed;
use crate::versions::Versions;

/// The pause between two passes. It is longer where it took long to count agents, so that at most a tenth of one processor is used.
const INTERVAL: Duration = Duration::from_secs(2);

/// What decides about rollouts, and what operators are shown of them. Clones share it.
#[derive(Clone)]
pub(crate) struct Rollouts {
    versions: Versions,
    observed: Observed,
    /// `None`: this origin is the only one.
    cluster: Option<Cluster>,
    metrics: RolloutMetrics,
    /// How long the agents of rollouts run their versions, as far as this process has seen it.
    soaks: Arc<Mutex<BTreeMap<ServiceName, Soak>>>,
}

/// What the task remembers from one pass to the next.
#[derive(Default)]
struct Seen {
    /// The services that have series.
    shown: BTreeSet<ServiceName>,
    /// What is being stored.
    steps: Steps,
}

impl Rollouts {
    pub(crate) fn new(
        versions: Versions,
        observed: Observed,
        cluster: Option<Cluster>,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let metrics = RolloutMetrics::register(registry)?;
        Ok(Self { versions, observed, cluster, metrics, soaks: Arc::default() })
    }

    /// Decides until the drain.
    pub(crate) fn start(&self, drain: &Drain) {
        let (rollouts, draining) = (self.clone(), drain.clone());
        drain.spawn(async move {
            let (mut seen, mut pause) = (Seen::default(), INTERVAL);
            loop {
                tokio::select! {
                    () = draining.begun() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = INTERVAL.max(rollouts.pass(&mut seen).await * 10);
            }
        });
    }

    /// What follows for a rollout. `None`: nothing can be said now.
    pub(super) async fn facts(&self, rollouts: &[StagedByPlan]) -> Option<Vec<Facts>> {
        self.observed.query(all_facts(rollouts, self.cluster.as_ref(), &self.versions.publisher.freezes)?).await
    }

    /// What follows for a rollout by its facts.
    pub(super) fn next(&self, rollout: &StagedByPlan, facts: &Facts) -> (Step, Soak) {
        let soak = self.soaks().get(&rollout.service).copied().unwrap_or_default();
        next(&rollout.state, facts, soak, Now { monotonic: Instant::now(), wall: SystemTime::now() })
    }

    fn soaks(&self) -> MutexGuard<'_, BTreeMap<ServiceName, Soak>> {
        self.soaks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what follows for everything that plans stage here. Returns how long it took to count agents.
    async fn pass(&self, seen: &mut Seen) -> Duration {
        let catalog = &self.versions.catalog;
        let mut all = self.versions.publisher.staged_by_plans();
        all.retain(|rollout| catalog.repository(&rollout.repository).is_some());
        let present: BTreeSet<_> = all.iter().map(|rollout| rollout.service.clone()).collect();
        self.soaks().retain(|service, _| present.contains(service));
        seen.steps.retain(&present);
        for gone in seen.shown.difference(&present) {
            self.metrics.hide(gone);
        }
        seen.shown = present;
        if all.is_empty() {
            return Duration::ZERO;
        }
        let begun = Instant::now();
        let Some(facts) = self.facts(&all).await else {
            all.iter().for_each(|rollout| self.metrics.show(rollout, &Counts::default(), "waiting"));
            return Duration::ZERO;
        };
        let took = begun.elapsed();
        for (rollout, facts) in all.into_iter().zip(facts) {
            let (step, soak) = self.next(&rollout, &facts);
            if let Step::Stay(standing) = &step {
                self.soaks().insert(rollout.service.clone(), soak);
                self.metrics.show(&rollout, &facts.counts, state_name(standing));
            } else {
                self.metrics.show(&rollout, &facts.counts, "running");
                // At once, so that the writers write them together. No rollout waits for the store of another one.
                let (rollouts, service) = (self.clone(), rollout.service.clone());
                seen.steps.begin(&service, async move { rollouts.advance(rollout, step).await });
            }
        }
        took
    }

    /// Does a step. Returns whether it could be stored.
    async fn advance(&self, rollout: StagedByPlan, step: Step) -> bool {
        let (name, plan) = (rollout.service.clone(), rollout.state.plan.name().to_owned());
        let service = self.versions.catalog.service(&name).filter(|it| it.repository == rollout.repository);
        let Some(service) = service else { return true };
        let author = Author::origin(&format!("all stages of rollout `{plan}` are done"));
        let change = VersionChange { expected: None, author, now: SystemTime::now() };
        let done = self.versions.publisher.advance(&service, rollout, step.clone(), change).await;
        match (done, &step) {
            (Err(error), _) => {
                tracing::warn!(service = %name, rollout = plan, %error, "a step of the rollout could not be stored; it is tried again");
                return false;
            }
            (Ok(false), _) | (_, Step::Stay(_)) => {}
            (Ok(true), Step::Begin { stage, .. }) => {
                tracing::info!(service = %name, rollout = plan, stage, "a stage of the rollout begins");
            }
            (Ok(true), Step::Promote) => {
                tracing::info!(service = %name, rollout = plan, "the rollout is done: the version is published for all");
            }
            (Ok(true), Step::Stop(cause)) => {
                tracing::warn!(service = %name, rollout = plan, reason = cause.reason, "the rollout has stopped");
            }
            (Ok(true), Step::Abort(cause)) => {
                tracing::warn!(service = %name, rollout = plan, reason = cause.reason, "the rollout was aborted");
            }
        }
        self.soaks().remove(&name);
        if matches!(step, Step::Promote | Step::Abort(_)) {
            self.versions.resolve_again(&service);
        }
        true
    }
}

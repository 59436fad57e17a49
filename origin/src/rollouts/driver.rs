//! The task that decides what follows for what plans stage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use prometheus::Registry;
use weir_protocol::name::ServiceName;
use weir_publish::{Author, StagedByPlan, VersionChange};
use weir_rollout::{Facts, Now, Soak, Standing, Step, next};
use weir_runtime::shutdown::Drain;

use super::facts::all_facts;
use super::metrics::RolloutMetrics;
use super::state_name::state_name;
use crate::cluster::Cluster;
use crate::observed::Observed;
use crate::versions::Versions;

/// The pause between two passes. It is longer where a pass took long, so that at most a tenth of one processor is used.
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
            let (mut shown, mut pause) = (BTreeSet::new(), INTERVAL);
            loop {
                tokio::select! {
                    () = draining.begun() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                let begun = Instant::now();
                rollouts.pass(&mut shown).await;
                pause = INTERVAL.max(begun.elapsed() * 10);
            }
        });
    }

    /// What follows for a rollout. `None`: nothing can be said now.
    pub(super) async fn facts(&self, rollouts: &[StagedByPlan]) -> Option<Vec<Facts>> {
        self.observed.query(all_facts(rollouts, self.cluster.as_ref())?).await
    }

    /// What follows for a rollout by its facts.
    pub(super) fn next(&self, rollout: &StagedByPlan, facts: &Facts) -> (Step, Soak) {
        let soak = self.soaks().get(&rollout.service).copied().unwrap_or_default();
        next(&rollout.state, facts, soak, Now { monotonic: Instant::now(), wall: SystemTime::now() })
    }

    fn soaks(&self) -> MutexGuard<'_, BTreeMap<ServiceName, Soak>> {
        self.soaks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what follows for everything that plans stage here. `shown`: the services that have series.
    async fn pass(&self, shown: &mut BTreeSet<ServiceName>) {
        let catalog = &self.versions.catalog;
        let mut all = self.versions.publisher.staged_by_plans();
        all.retain(|rollout| catalog.repository(&rollout.repository).is_some());
        let present: BTreeSet<_> = all.iter().map(|rollout| rollout.service.clone()).collect();
        self.soaks().retain(|service, _| present.contains(service));
        for gone in shown.difference(&present) {
            self.metrics.hide(gone);
        }
        shown.clone_from(&present);
        if all.is_empty() {
            return;
        }
        let Some(facts) = self.facts(&all).await else { return };
        for (rollout, facts) in all.into_iter().zip(facts) {
            let (step, soak) = self.next(&rollout, &facts);
            if let Step::Stay(standing) = &step {
                self.soaks().insert(rollout.service.clone(), soak);
                self.metrics.show(&rollout, &facts.counts, state_name(standing));
            } else {
                self.advance(rollout, step).await;
            }
        }
    }

    async fn advance(&self, rollout: StagedByPlan, step: Step) {
        let (name, plan) = (rollout.service.clone(), rollout.state.plan.name().to_owned());
        let Some(service) = self.versions.catalog.service(&name).filter(|it| it.repository == rollout.repository)
        else {
            return;
        };
        let author = Author::origin(&format!("all stages of rollout `{plan}` are done"));
        let change = VersionChange { expected: None, author, now: SystemTime::now() };
        let done = self.versions.publisher.advance(&service, rollout, step.clone(), change).await;
        match (done, &step) {
            (Err(error), _) => {
                tracing::warn!(service = %name, rollout = plan, %error, "a step of the rollout could not be stored; it is tried again");
            }
            (Ok(false), _) | (_, Step::Stay(Standing::Running(_) | Standing::Waiting(_) | Standing::Ended(_))) => {}
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
    }
}

//! The worker of a repository: one loop that handles events and starts tasks.
//!
//! Handlers only decide; everything that takes time is a task. Dropping the worker stops all of them.
//!
//! | event | handler | what it does |
//! |---|---|---|
//! | the next poll is due ([`Schedule`]) | `start_poll` | starts a poll |
//! | the poll ended | `handle_poll_result` | marks services due if refs changed, schedules the next poll, starts maintenance |
//! | services are due ([`ServiceStates`]) | `start_resolve` | starts to resolve their refs |
//! | the refs were resolved | `handle_resolved` | collects candidates, restricts LFS fetches of outdated builds |
//! | there are candidates | `start_publish_cached` | starts to publish candidates whose content is cached |
//! | candidates were published, or need a build | `handle_cached` | records results, starts builds |
//! | a build ended | `handle_build_end` | records the result, with a back-off after a failure |
//! | a build started or ended to fetch LFS objects | `handle_lfs_progress` | updates the state |
//! | a back-off ended ([`BackOffs`]) | `run` | marks its service due |
//! | a rebuild of a lost version was requested, or ended | `start_rebuild`, `handle_rebuild_end` | starts it, answers its waiters |
//! | maintenance ended | `poll_if_needed` | triggers a poll that repairs the mirror |
//! | a signal ([`WorkerSignals`]) | `run` | triggers a poll, marks all or all composed services due, or ends back-offs |
//! | a new configuration | `reconfigure` | changes the schedule, ends back-offs |
//! | other services were assigned | `reassign` | forgets removed services, marks new ones due |
//!
//! After each event, `advance` starts what can start, and updates the observable state.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;
use weir_protocol::event::RevisionSeen;
use weir_protocol::name::ServiceName;
use weir_source::{Candidate, Condition, ResolvedServices, Service, ServiceFailure, Source};
use weir_upstream::RepositoryConfig;

use super::back_offs::BackOffs;
use super::context::Context;
use super::handle::{Terminated, WorkerSignals};
use super::lfs::LfsProgress;
use super::maintenance::Maintenance;
use super::pipeline::Pipeline;
use super::poll::{PollResult, Poller};
use super::rebuild::{LostVersions, RebuildEnd, RebuildRequest, RunningRebuilds};
use super::revisions::Revisions;
use super::schedule::Schedule;
use super::service_states::{Cause, ServiceStates};
use super::state::{Phase, RepositoryState};
use super::steps::{BuildEnd, CachedResults, RunningBuild};

type Services = BTreeMap<ServiceName, Arc<Service>>;

/// The receiving ends of a worker's handle.
pub(super) struct Inputs {
    pub(super) signals: WorkerSignals,
    pub(super) config_updates: watch::Receiver<Arc<RepositoryConfig>>,
    pub(super) service_updates: watch::Receiver<Vec<Arc<Service>>>,
    pub(super) rebuild_requests: mpsc::Receiver<Box<RebuildRequest>>,
}

pub(super) struct Worker {
    pub(super) config: Arc<RepositoryConfig>,
    /// The services that it publishes.
    pub(super) services: Services,
    /// The parts of its repository that services have, its own or others.
    pub(super) parts: Vec<Arc<Service>>,
    /// Whether the publishers of the parts resolve them after the next poll even if no ref changes.
    pub(super) owes_parts: bool,
    pub(super) context: Arc<Context>,
    pub(super) source: Arc<Source>,
    pub(super) state: Arc<watch::Sender<RepositoryState>>,

    pub(super) poller: Arc<Poller>,
    pub(super) schedule: Schedule,
    pub(super) poll_task: Option<AbortOnDropHandle<PollResult>>,
    /// The content that the mirror had at the start is being published. No poll starts meanwhile.
    pub(super) restoring: bool,
    /// Whether the content of the repository at other URLs was removed since the start.
    pub(super) removed_siblings: bool,
    pub(super) maintenance: Maintenance,

    pub(super) pipeline: Pipeline,
    pub(super) states: ServiceStates,
    /// The services of `resolve_task`.
    pub(super) resolving: Vec<Arc<Service>>,
    pub(super) resolve_task: Option<AbortOnDropHandle<Result<ResolvedServices, ServiceFailure>>>,
    /// The candidates of the next `cached_task`.
    pub(super) candidates: Vec<Candidate>,
    /// The candidates of `cached_task`.
    pub(super) cached_candidates: Vec<Candidate>,
    /// Publishes candidates whose content is cached.
    pub(super) cached_task: Option<AbortOnDropHandle<CachedResults>>,
    pub(super) build_tasks: JoinSet<BuildEnd>,
    pub(super) builds: HashMap<ServiceName, RunningBuild>,
    pub(super) lfs_progress: (mpsc::UnboundedSender<Box<LfsProgress>>, mpsc::UnboundedReceiver<Box<LfsProgress>>),

    pub(super) back_offs: BackOffs,
    /// The services that are due after the next poll even if no ref changes.
    pub(super) needs_reconcile: HashSet<ServiceName>,
    /// The services that have not applied all polls, each with the number of the first missing one.
    pub(super) unapplied_polls: HashMap<ServiceName, u64>,
    /// The services that wait for LFS objects: since when, and for how many.
    pub(super) waits_for_lfs: BTreeMap<ServiceName, (SystemTime, usize)>,
    pub(super) revisions: Revisions,
    pub(super) revision_sender: watch::Sender<Vec<RevisionSeen>>,
    /// The number of results since the revisions were last sent to edges.
    pub(super) unreported_results: usize,
    pub(super) reported_at: Instant,

    pub(super) rebuild_tasks: JoinSet<RebuildEnd>,
    pub(super) running_rebuilds: RunningRebuilds,
    pub(super) lost_versions: LostVersions,
}

impl Worker {
    pub(super) fn new(
        config: Arc<RepositoryConfig>,
        services: &[Arc<Service>],
        pipeline: Pipeline,
        schedule: Schedule,
        revision_sender: watch::Sender<Vec<RevisionSeen>>,
    ) -> Self {
        let poller = pipeline.poller.clone();
        let (services, parts) = split(services);
        #[expect(clippy::disallowed_methods, reason = "a running build sends two")]
        let lfs_progress = mpsc::unbounded_channel();
        Self {
            needs_reconcile: services.keys().cloned().collect(),
            services,
            parts,
            owes_parts: true,
            context: pipeline.context.clone(),
            source: poller.source.clone(),
            state: poller.state.clone(),
            poller,
            schedule,
            poll_task: None,
            restoring: false,
            removed_siblings: false,
            maintenance: Maintenance::new(),
            pipeline,
            states: ServiceStates::default(),
            resolving: Vec::new(),
            resolve_task: None,
            candidates: Vec::new(),
            cached_candidates: Vec::new(),
            cached_task: None,
            build_tasks: JoinSet::new(),
            builds: HashMap::new(),
            lfs_progress,
            back_offs: BackOffs::default(),
            unapplied_polls: HashMap::new(),
            waits_for_lfs: BTreeMap::new(),
            revisions: Revisions::new(config.name.clone()),
            revision_sender,
            unreported_results: 0,
            reported_at: Instant::now(),
            rebuild_tasks: JoinSet::new(),
            running_rebuilds: RunningRebuilds::default(),
            lost_versions: LostVersions::default(),
            config,
        }
    }

    /// Runs once the predecessor, which used the same mirror, has terminated.
    pub(super) async fn run_after(mut self, predecessor: Option<Terminated>, inputs: Inputs) {
        if let Some(predecessor) = predecessor.filter(|predecessor| !predecessor.is_over()) {
            self.state.send_modify(|state| state.phase = Phase::Overdue);
            predecessor.wait().await;
            self.state.send_modify(|state| state.phase = Phase::Idle);
        }
        self.run(inputs).await;
    }

    async fn run(&mut self, inputs: Inputs) {
        let Inputs { signals, mut config_updates, mut service_updates, mut rebuild_requests } = inputs;
        self.restore();
        loop {
            self.advance();
            let poll_due = Some(self.schedule.next()).filter(|_| self.poll_task.is_none() && !self.restoring);
            let retry_due = self.back_offs.next();
            tokio::select! {
                result = ended(&mut self.poll_task) => {
                    self.poll_task = None;
                    self.handle_poll_result(result.unwrap_or_else(PollResult::panicked));
                    self.start_maintenance();
                }
                () = self.maintenance.ended() => self.poll_if_needed(),
                resolved = ended(&mut self.resolve_task) => {
                    self.resolve_task = None;
                    self.handle_resolved(resolved);
                }
                results = ended(&mut self.cached_task) => {
                    self.cached_task = None;
                    self.handle_cached(results);
                }
                Some(end) = self.build_tasks.join_next() => self.handle_build_end(end),
                Some(progress) = self.lfs_progress.1.recv() => self.handle_lfs_progress(&progress),
                Some(end) = self.rebuild_tasks.join_next() => self.handle_rebuild_end(end),
                Some(request) = rebuild_requests.recv() => self.start_rebuild(*request),
                () = signals.poll.notified() => self.schedule.trigger(Instant::now()),
                () = signals.reset_back_offs.notified() => self.reset_back_offs(),
                () = signals.resolve_all.notified() => self.mark_all_due(Cause::Changed),
                () = signals.parts_changed.notified() => {
                    let composed = self.services.values().filter(|service| !service.parts.is_empty());
                    composed.for_each(|service| self.states.mark_due(&service.name, Cause::Changed));
                }
                // The senders are dropped with the last handle, and the loop is stopped soon after.
                Ok(()) = config_updates.changed() => self.reconfigure(config_updates.borrow_and_update().clone()),
                Ok(()) = service_updates.changed() => {
                    // If both changed, the configuration changed first, and the new services need it.
                    self.reconfigure(config_updates.borrow_and_update().clone());
                    self.reassign(&service_updates.borrow_and_update());
                }
                () = reached(retry_due) => {
                    let due = self.back_offs.take_due(Instant::now());
                    due.iter().for_each(|name| self.states.mark_due(name, Cause::Changed));
                }
                () = reached(poll_due) => self.start_poll(),
            }
        }
    }

    /// Publishes the content of the mirror without querying the upstream. Failures are not recorded, because a poll follows.
    fn restore(&mut self) {
        if !self.source.has_content() {
            return;
        }
        // In a cluster another origin may have reported newer revisions.
        let fetched_at = self
            .source
            .mirror()
            .and_then(|mirror| mirror.refs_changed_at())
            .filter(|_| !self.context.publisher.repositories.is_in_cluster());
        if let Some(fetched_at) = fetched_at {
            self.revisions.restored(fetched_at);
        }
        self.restoring = !self.services.is_empty();
        self.mark_all_due(Cause::Started);
    }

    pub(super) fn mark_all_due(&mut self, cause: Cause) {
        self.services.keys().for_each(|name| self.states.mark_due(name, cause));
    }

    /// Starts what can start, and updates the observable state.
    fn advance(&mut self) {
        self.start_resolve();
        self.start_publish_cached();
        if self.restoring && self.resolve_task.is_none() && self.cached_task.is_none() {
            self.restoring = false;
            if self.services.values().any(|service| service.condition() == Condition::Following) {
                self.state.send_modify(|state| state.mirrored = true);
            }
        }
        self.report_revisions();
        self.update_lfs_state();
        self.update_applied_polls();
        self.update_next_poll();
    }

    fn update_applied_polls(&mut self) {
        let polls = self.state.borrow().polls;
        let applied_polls = self.unapplied_polls.values().min().map_or(polls, |first| first - 1);
        if applied_polls > self.state.borrow().applied_polls {
            self.poll_if_needed();
            self.state.send_modify(|state| state.applied_polls = applied_polls);
        }
    }

    fn start_poll(&mut self) {
        self.schedule.start(Instant::now());
        self.poll_task = Some(self.spawn(self.poller.clone().poll()));
    }

    /// Adopts the assigned services. New ones are resolved from the current mirror. If that fails, a poll follows, and only its
    /// failure is recorded.
    fn reassign(&mut self, assigned: &[Arc<Service>]) {
        let (services, parts) = split(assigned);
        let before = std::mem::replace(&mut self.services, services);
        let is_new = |part: &Arc<Service>| !self.parts.iter().any(|known| Arc::ptr_eq(known, part));
        if parts.iter().any(is_new) {
            self.owes_parts = true;
            self.schedule.trigger(Instant::now());
        }
        self.parts = parts;
        for removed in difference(&before, &self.services) {
            self.states.remove(&removed.name);
            self.back_offs.remove(&removed.name);
            self.needs_reconcile.remove(&removed.name);
            self.waits_for_lfs.remove(&removed.name);
            self.builds.remove(&removed.name);
            self.unapplied_polls.remove(&removed.name);
        }
        self.reset_back_offs();
        self.maintenance.last_lfs_sweep = None;
        for new in difference(&self.services, &before) {
            self.needs_reconcile.insert(new.name.clone());
            if self.source.has_content() {
                self.states.mark_due(&new.name, Cause::Assigned);
            } else {
                self.schedule.trigger(Instant::now());
            }
        }
        // The remaining services of a ref may have a common revision.
        self.unreported_results += 1;
    }

    /// Ends all back-offs except a server's `Retry-After`, because somebody may have fixed the cause.
    fn reset_back_offs(&mut self) {
        let reset = self.back_offs.reset();
        reset.iter().for_each(|name| self.states.mark_due(name, Cause::Changed));
        self.lost_versions.clear();
        self.source.reset_back_offs();
    }

    /// Adopts another configuration of the same upstream. If it changes what may be published, the services are assigned
    /// again, and so resolved.
    fn reconfigure(&mut self, config: Arc<RepositoryConfig>) {
        let before = std::mem::replace(&mut self.config, config);
        self.schedule.reconfigure(self.config.poll_interval, self.config.min_poll_interval, Instant::now());
        if self.config != before {
            self.reset_back_offs();
        }
    }

    /// Triggers a poll if the source needs one, such as to repair a damaged mirror.
    pub(super) fn poll_if_needed(&mut self) {
        let now = Instant::now();
        if self.source.needs_poll(now) {
            self.schedule.trigger(now);
        }
    }

    /// Whether a service is assigned, and has not been redefined.
    pub(super) fn is_assigned(&self, service: &Arc<Service>) -> bool {
        self.services.get(&service.name).is_some_and(|known| Arc::ptr_eq(known, service))
    }

    /// Starts a task. Dropping its handle stops it.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> AbortOnDropHandle<T> {
        AbortOnDropHandle::new(tokio::spawn(self.context.threads.track(task)))
    }
}

/// The services to publish, by name, and the parts.
fn split(assigned: &[Arc<Service>]) -> (Services, Vec<Arc<Service>>) {
    let (parts, services): (Vec<_>, Vec<_>) = assigned.iter().cloned().partition(|service| service.part_of.is_some());
    (services.into_iter().map(|service| (service.name.clone(), service)).collect(), parts)
}

/// The services that `others` does not have with the same definition.
fn difference(services: &Services, others: &Services) -> Vec<Arc<Service>> {
    let is_common =
        |service: &&Arc<Service>| others.get(&service.name).is_some_and(|other| Arc::ptr_eq(other, service));
    services.values().filter(|service| !is_common(service)).cloned().collect()
}

/// Waits for a time; forever if there is none.
async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits for the end of a task; forever if there is none. Returns `None` if the task panicked.
async fn ended<T>(task: &mut Option<AbortOnDropHandle<T>>) -> Option<T> {
    match task {
        Some(task) => task.await.ok(),
        None => std::future::pending().await,
    }
}

//! The worker of a repository: one loop that decides what follows from each event. It owns the parts, which do not know each
//! other.
//!
//! Everything that takes time is a task. Dropping the worker stops all of them.
//!
//! | event | handler | what it does |
//! |---|---|---|
//! | the next poll is due ([`Polls`]) | `run` | starts a poll |
//! | the poll ended | `handle_poll` | marks services due if refs changed; `run` then starts maintenance |
//! | services are due ([`ServiceStates`]) | `advance` | starts to resolve their refs ([`Steps`]) |
//! | the refs were resolved | `handle_resolved` | collects candidates, restricts LFS fetches of outdated builds; what steps back waits for further polls ([`StepBacks`]) |
//! | there are candidates | `advance` | starts to publish candidates whose content is cached |
//! | candidates were published, or need a build | `handle_cached` | records results, starts builds |
//! | a build ended | `handle_build_end` | records the result, with a back-off after a failure |
//! | a build started or ended to fetch LFS objects | `handle_step` | updates the state |
//! | a back-off ended ([`BackOffs`]) | `run` | marks its service due |
//! | a rebuild of a lost version was requested, or ended ([`Rebuilds`]) | `run` | starts it; marks a service due whose current version stays lost, and triggers a poll that repairs the mirror |
//! | maintenance ended, or can start after that of another mirror ([`Maintenance`]) | `run` | triggers a poll that repairs the mirror; starts it |
//! | a signal ([`WorkerSignals`](super::signals::WorkerSignals)) | `run` | triggers a poll, marks all or all composed services due, or ends back-offs |
//! | a new configuration | `reconfigure` | changes the schedule, ends back-offs |
//! | other services were assigned | `reassign` | forgets removed services, marks new ones due |
//!
//! After each event, `advance` starts what can start, and updates the observable state.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use weir_protocol::event::RevisionSeen;
use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;
use weir_publish::Cached;
use weir_source::{Candidate, Condition, ResolvedServices, Service, ServiceFailure};
use weir_upstream::RepositoryConfig;

use super::back_offs::BackOffs;
use super::handle::Terminated;
use super::lfs_state;
use super::maintenance::Maintenance;
use super::part_changes::PartChanges;
use super::pipeline::Pipeline;
use super::poll::{PollResult, Poller};
use super::polls::{PollEnd, Polls};
use super::rebuild::{RebuildRequest, Rebuilds};
use super::repository::{Repository, Services, difference, split};
use super::revision_reports::RevisionReports;
use super::schedule::Schedule;
use super::service_states::{Action, Cause, ServiceStates};
use super::state::{Phase, RepositoryState};
use super::step_backs::{StepBacks, Verdict};
use super::steps::{StepEnd, Steps};
use super::threads::reached;

/// The receiving ends of a worker's handle.
pub(super) struct Inputs {
    pub(super) config_updates: watch::Receiver<Arc<RepositoryConfig>>,
    pub(super) service_updates: watch::Receiver<Vec<Arc<Service>>>,
    pub(super) rebuild_requests: mpsc::Receiver<Box<RebuildRequest>>,
}

pub(super) struct Worker {
    repository: Arc<Repository>,
    config: Arc<RepositoryConfig>,
    state: Arc<watch::Sender<RepositoryState>>,
    /// The services that it publishes.
    services: Services,
    /// The parts of its repository that services have, its own or others.
    parts: Vec<Arc<Service>>,
    /// Whether the publishers of the parts resolve them after the next poll even if no ref changes.
    owes_parts: bool,
    part_changes: PartChanges,
    /// The content that the mirror had at the start is being published. No poll starts meanwhile.
    restoring: bool,

    polls: Polls,
    maintenance: Maintenance,
    states: ServiceStates,
    steps: Steps,
    back_offs: BackOffs,
    rebuilds: Rebuilds,
    reports: RevisionReports,
    step_backs: StepBacks,
}

impl Worker {
    pub(super) fn new(
        poller: Arc<Poller>,
        services: &[Arc<Service>],
        pipeline: Pipeline,
        schedule: Schedule,
        revision_sender: watch::Sender<Vec<RevisionSeen>>,
    ) -> Self {
        let (repository, state) = (poller.repository.clone(), poller.state.clone());
        let config = repository.config.borrow().clone();
        let (services, parts) = split(services);
        let mut states = ServiceStates::default();
        services.keys().for_each(|name| states.reconcile_after_poll(name));
        Self {
            config,
            reports: RevisionReports::new(repository.clone(), revision_sender),
            repository,
            state,
            services,
            parts,
            owes_parts: true,
            part_changes: PartChanges::default(),
            restoring: false,
            polls: Polls::new(poller, schedule),
            maintenance: Maintenance::new(),
            states,
            rebuilds: Rebuilds::new(pipeline.clone()),
            steps: Steps::new(pipeline),
            back_offs: BackOffs::default(),
            step_backs: StepBacks::default(),
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
        let Inputs { mut config_updates, mut service_updates, mut rebuild_requests } = inputs;
        let signals = self.repository.signals.clone();
        self.restore();
        loop {
            self.advance();
            let poll_due = self.polls.due().filter(|_| !self.restoring);
            let retry_due = self.back_offs.next();
            tokio::select! {
                poll = self.polls.ended() => {
                    self.handle_poll(poll);
                    self.start_maintenance();
                }
                () = self.maintenance.ended() => {
                    self.polls.trigger_if_needed();
                    if self.maintenance.can_start() {
                        self.start_maintenance();
                    }
                }
                end = self.steps.next() => self.handle_step(end),
                due = self.rebuilds.next(&self.services) => {
                    self.states.mark_each_due(&due);
                    self.polls.trigger_if_needed();
                }
                Some(request) = rebuild_requests.recv() => self.rebuilds.start(*request, &self.services),
                () = signals.poll.notified() => self.polls.trigger(),
                () = signals.refresh.notified() => self.refresh(),
                () = signals.resolve_all.notified() => self.mark_all_due(Cause::Changed),
                () = signals.parts_applied.notified() => {}
                () = signals.part_changes.arrived.notified() => {
                    self.part_changes.receive(&signals.part_changes);
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
                () = reached(retry_due) => self.states.mark_each_due(&self.back_offs.take_due(Instant::now())),
                () = reached(poll_due) => self.polls.start(),
            }
        }
    }

    /// Publishes the content of the mirror without querying the upstream. Failures are not recorded, because a poll follows.
    fn restore(&mut self) {
        let Repository { source, context, .. } = &*self.repository;
        if !source.has_content() {
            let of_services = self.services.values().filter(|service| service.is_of_services());
            return of_services.for_each(|service| self.states.mark_due(&service.name, Cause::Started));
        }
        // In a cluster another origin may have reported newer revisions.
        let fetched_at = source
            .mirror()
            .and_then(|git| git.mirror.refs_changed_at().ok())
            .filter(|_| !context.publisher.repositories.is_in_cluster());
        if let Some(fetched_at) = fetched_at {
            self.reports.revisions.restored(fetched_at);
        }
        self.restoring = !self.services.is_empty();
        self.mark_all_due(Cause::Started);
    }

    fn start_maintenance(&mut self) {
        let (mirrored, candidates) = (self.state.borrow().mirrored, self.steps.candidates());
        self.maintenance.start(&self.repository, mirrored, &self.services, &self.parts, candidates);
    }

    fn mark_all_due(&mut self, cause: Cause) {
        self.services.keys().for_each(|name| self.states.mark_due(name, cause));
    }

    /// Starts what can start, and updates the observable state.
    fn advance(&mut self) {
        if !self.steps.is_resolving() && self.states.has_due() {
            let due = self.states.start_resolve();
            self.steps.start_resolve(due.iter().filter_map(|name| self.services.get(name).cloned()).collect());
        }
        self.steps.start_publish_cached();
        if self.restoring && !self.steps.is_publishing_cached() {
            self.restoring = false;
            if self.services.values().any(|service| service.condition() == Condition::Following) {
                self.state.send_modify(|state| state.mirrored = true);
            }
        }
        self.reports.send(self.states.busy(), &self.services);
        let lfs_held_until = self.steps.pipeline.lfs.held_until(Instant::now()).map(|(until, _)| until);
        let data_dir = &self.repository.context.data_dir;
        lfs_state::update(&self.state, &self.states, &self.back_offs, lfs_held_until, data_dir);
        self.step_backs.show(&self.state);
        self.update_applied_polls();
        self.polls.show_next();
    }

    fn update_applied_polls(&mut self) {
        if !self.services.values().any(|service| !service.parts.is_empty() && self.states.is_busy(&service.name)) {
            self.part_changes.apply();
        }
        let polls = self.state.borrow().polls;
        let applied_polls = self.states.applied_polls(polls).min(self.part_changes.applied_polls(polls));
        if applied_polls > self.state.borrow().applied_polls {
            self.polls.trigger_if_needed();
            self.state.send_modify(|state| state.applied_polls = applied_polls);
        }
    }

    /// Marks services due whose result the poll may change.
    fn handle_poll(&mut self, poll: PollResult) {
        let (now, hydrated) = (SystemTime::now(), poll.hydrated);
        let end = self.polls.record(poll, now);
        let part_sources = &self.repository.context.part_sources;
        let change = self.part_changes.begin(self.state.borrow().polls, &self.repository.signals.parts_applied);
        match end {
            PollEnd::Succeeded { changed, complete } => {
                self.maintenance.is_due |= changed;
                self.maintenance.needs_bundle |= changed;
                if changed {
                    // The poll may have fetched the commit of a lost version.
                    self.rebuilds.retry_lost();
                }
                let polls = self.state.borrow().polls;
                let revisions = self.reports.record();
                for name in self.services.keys().filter(|name| self.states.polled(name, changed, polls)) {
                    revisions.set_published(name, None);
                }
                if changed || std::mem::take(&mut self.owes_parts) {
                    part_sources.notify_publishers(&self.parts, &change);
                }
                revisions.poll_succeeded(complete, now);
            }
            PollEnd::Failed { step, is_new } => {
                // It may have fetched a part, or the disk may be full.
                self.maintenance.is_due |= step == "fetch";
                // Some refs may have changed before the failure, and the next poll does not report them as changed.
                self.services.keys().for_each(|name| self.states.reconcile_after_poll(name));
                self.owes_parts = true;
                if is_new {
                    part_sources.notify_publishers(&self.parts, &change);
                }
                // Those that step back may do so by a part of another repository.
                let composed = |each: &&ServiceName| self.services.get(*each).is_some_and(|of| !of.parts.is_empty());
                let waiting: Vec<_> = self.step_backs.all().map(|each| &each.service).filter(composed).collect();
                waiting.iter().for_each(|name| self.states.mark_due(name, Cause::Changed));
                self.reports.record().poll_failed(now);
                self.polls.trigger_if_needed();
            }
        }
        if hydrated && !matches!(end, PollEnd::Succeeded { changed: true, complete: true }) {
            // Services without a version can be built, even if the upstream is down.
            part_sources.notify_publishers(&self.parts, &change);
            self.mark_all_due(Cause::Changed);
        }
    }

    fn handle_step(&mut self, end: StepEnd) {
        match end {
            StepEnd::Resolved(resolved) => self.handle_resolved(resolved),
            StepEnd::Cached(results) => {
                for (candidate, cached) in results {
                    self.handle_cached(candidate, cached);
                }
            }
            StepEnd::Built((candidate, result)) => self.handle_build_end(candidate, result),
            StepEnd::Lfs(progress) => {
                self.states.set_lfs_fetch(&progress.service, progress.missing, SystemTime::now());
                self.maintenance.needs_bundle |= progress.missing.is_none();
            }
        }
    }

    fn handle_resolved(&mut self, mut resolved: ResolvedServices) {
        resolved.retain(|(service, _)| self.is_assigned(service));
        let action = |(service, found): &(Arc<Service>, Result<Candidate, _>)| {
            self.states.resolved(&service.name, found.as_ref().ok().map(|candidate| &candidate.key))
        };
        let actions: Vec<Action> = resolved.iter().map(action).collect();
        self.states.end_resolve();
        for (action, (service, found)) in actions.into_iter().zip(resolved) {
            match (action, found) {
                (Action::PublishCached, Ok(candidate)) => self.add_candidate(candidate),
                (Action::RestrictFetch, Ok(candidate)) => self.steps.restrict_fetch(candidate),
                (Action::RecordFailure, Err(failure)) => {
                    self.step_backs.ended(&service.name);
                    self.record_result(&service, Err(failure));
                }
                _ => {}
            }
        }
    }

    /// Publishes a candidate, unless it steps back: then it waits until further polls confirm it, and nothing else changes.
    fn add_candidate(&mut self, mut candidate: Candidate) {
        let (service, times) = (candidate.service.clone(), (Instant::now(), SystemTime::now()));
        let RepositoryConfig { step_back_after, poll_interval, .. } = *self.config;
        let after = if step_back_after.is_zero() { step_back_after } else { step_back_after.max(poll_interval) };
        let verdict = self.step_backs.decide(&candidate, candidate.admit(times.0), after, times);
        if service.awaits_poll() {
            self.states.reconcile_after_poll(&service.name);
        }
        let (name, revision, reason) = (&service.name, &candidate.revision, &candidate.age.behind);
        match verdict {
            Verdict::Publish(stepped_back) => {
                candidate.stepped_back = stepped_back;
                self.steps.add_candidate(candidate);
            }
            Verdict::Wait { begins, is_new } => {
                if begins {
                    self.repository.count_step_back("held");
                }
                if is_new {
                    let seconds = after.as_secs();
                    tracing::warn!(service = %name, %revision, reason, seconds, "stepping back: the older revision is published once every poll for this time has found it, or a refresh");
                }
                candidate.held_back();
                self.states.cached_ended(name, None);
                self.states.reconcile_after_poll(name);
                self.reports.record().set_published(name, None);
                self.states.ended(name, self.state.borrow().polls, false);
            }
        }
    }

    /// A service follows a candidate.
    fn end_step_back(&mut self, candidate: &Candidate) {
        let Candidate { service, revision, age, stepped_back, .. } = candidate;
        self.step_backs.ended(&service.name);
        if let Some(by) = stepped_back.filter(|_| !service.is_pinned()) {
            self.repository.count_step_back("published");
            let reason = &age.behind;
            tracing::warn!(service = %service.name, %revision, reason, ?by, "the service stepped back");
        }
    }

    fn handle_cached(&mut self, candidate: Candidate, cached: Result<Cached, ServiceFailure>) {
        let service = candidate.service.clone();
        if !self.is_assigned(&service) {
            return;
        }
        let blocked_by = self.back_offs.blocked_by(&service.name, &candidate.key, Instant::now());
        let result = match (cached, blocked_by) {
            (Ok(Cached::NeedsBuild), None) => {
                self.states.cached_ended(&service.name, Some(candidate.key));
                let may_fetch = !self.suppress_errors(&service.name);
                return self.steps.start_build(candidate, may_fetch);
            }
            (Ok(Cached::UpToDate), _) => {
                candidate.followed();
                self.end_step_back(&candidate);
                Ok(candidate.revision)
            }
            (Ok(Cached::NeedsBuild), Some(failure)) | (Err(failure), _) => Err(failure),
            (Ok(Cached::Refused(error)), _) => Err(self.content_failed(&candidate, error.into())),
        };
        self.states.cached_ended(&service.name, None);
        self.record_result(&service, result);
    }

    fn content_failed(&mut self, of: &Candidate, failure: ServiceFailure) -> ServiceFailure {
        let (interval, times) = (self.config.poll_interval, (Instant::now(), SystemTime::now()));
        self.back_offs.failed(&of.service.name, of.key, &failure, interval, times, fastrand::f64());
        failure
    }

    /// False: the service needs another content meanwhile.
    fn handle_build_end(&mut self, candidate: Candidate, result: Result<bool, ServiceFailure>) {
        self.states.build_ended(&candidate.service.name);
        if matches!(result, Ok(true)) {
            self.end_step_back(&candidate);
        }
        let result = result.map_err(|failure| self.content_failed(&candidate, failure));
        let Candidate { service, revision, .. } = candidate;
        if result.is_err() {
            // The build may have found that something must be fetched again.
            self.polls.trigger_if_needed();
        }
        match result {
            Ok(true) => self.record_result(&service, Ok(revision)),
            Ok(false) => {}
            Err(failure) => self.record_result(&service, Err(failure)),
        }
    }

    /// Whether failures of a service are not recorded, and its build does not query the upstream: a poll follows, after a start
    /// or an assignment, and while the mirror is incomplete. Failures of a part say themselves whether a poll of it follows.
    fn suppress_errors(&self, service: &ServiceName) -> bool {
        let is_composed = self.services.get(service).is_some_and(|service| !service.parts.is_empty());
        self.states.last_cause(service) != Some(Cause::Changed) || !(is_composed || self.state.borrow().mirrored)
    }

    /// Records the published revision of a service, or why it does not follow its ref.
    fn record_result(&mut self, service: &Service, result: Result<RevisionId, ServiceFailure>) {
        let (name, polls) = (&service.name, self.state.borrow().polls);
        // If it is due again, its ref may be at another commit.
        let published = result.as_ref().ok().filter(|_| !self.states.is_due(name));
        self.reports.record().set_published(name, published.cloned());
        self.states.ended(name, polls, matches!(&result, Err(failure) if failure.step == "lfs"));
        let Err(failure) = result else { return self.back_offs.remove(name) };
        let suppressed = failure.awaits_poll || self.suppress_errors(name);
        if !suppressed {
            let reason = self.repository.context.data_dir.redact(&failure.reason);
            service.mark_failed(failure.step, reason, SystemTime::now());
        }
        if suppressed || self.back_offs.waits_for_poll(name, failure.retry) {
            self.states.reconcile_after_poll(name);
        }
        if self.states.last_cause(name) == Some(Cause::Assigned) {
            self.polls.trigger();
        }
    }

    /// Adopts the assigned services. New ones are resolved from the current mirror. If that fails, a poll follows, and only its
    /// failure is recorded.
    fn reassign(&mut self, assigned: &[Arc<Service>]) {
        let (services, parts) = split(assigned);
        let before = std::mem::replace(&mut self.services, services);
        let is_new = |part: &Arc<Service>| !self.parts.iter().any(|known| Arc::ptr_eq(known, part));
        if parts.iter().any(is_new) {
            self.owes_parts = true;
            self.polls.trigger();
        }
        self.parts = parts;
        for removed in difference(&before, &self.services) {
            self.states.remove(&removed.name);
            self.back_offs.remove(&removed.name);
            self.step_backs.remove(&removed.name);
            self.steps.stop_build(&removed.name);
        }
        self.reset_back_offs();
        self.maintenance.last_lfs_sweep = None;
        for new in difference(&self.services, &before) {
            self.states.reconcile_after_poll(&new.name);
            if self.repository.source.has_content() || new.is_of_services() {
                self.states.mark_due(&new.name, Cause::Assigned);
            } else {
                self.polls.trigger();
            }
        }
        // The remaining services of a ref may have a common revision.
        self.reports.record();
    }

    /// An operator asked for a poll. All services are resolved after it, because what it finds is published.
    fn refresh(&mut self) {
        self.reset_back_offs();
        self.services.keys().for_each(|name| self.states.reconcile_after_poll(name));
        self.owes_parts = true;
    }

    /// Ends all back-offs except a server's `Retry-After`, because somebody may have fixed the cause.
    fn reset_back_offs(&mut self) {
        self.states.mark_each_due(&self.back_offs.reset());
        self.rebuilds.retry_lost();
        self.repository.source.reset_back_offs();
    }

    /// Adopts another configuration of the same upstream. If it changes what may be published, the services are assigned
    /// again, and so resolved.
    fn reconfigure(&mut self, config: Arc<RepositoryConfig>) {
        let before = std::mem::replace(&mut self.config, config);
        self.polls.schedule.reconfigure(self.config.poll_interval, self.config.min_poll_interval, Instant::now());
        if self.config != before {
            self.reset_back_offs();
        }
    }

    /// Whether a service is assigned, and has not been redefined.
    fn is_assigned(&self, service: &Arc<Service>) -> bool {
        self.services.get(&service.name).is_some_and(|known| Arc::ptr_eq(known, service))
    }
}

//! Bringing services to where their refs are: resolve, publish what is known, work on what is not.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::task::{AbortHandle, JoinError};
use tokio_util::task::AbortOnDropHandle;
use weir_protocol::commit_id::CommitId;
use weir_protocol::event::EventKind;
use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;

use super::job::JobPanicked;
use super::lfs::{Ask, LfsNews, Narrowed};
use super::state::{LfsFailure, LfsState};
use super::work_list::{Cause, Next};
use super::worker::Worker;
use crate::publish::{Cached, Candidate, PublishError};
use crate::service::Service;
use crate::source::{ResolvedServices, RetryPolicy, ServiceFailure};

/// While more services than this are at work, edges are not told of refs after each: that takes a time that grows with the
/// number of services.
const FEW_BUSY: usize = 16;

/// So long edges wait to be told all the same.
const LONGEST_SILENCE: Duration = Duration::from_secs(1);

/// What decisions came to.
pub(super) type Decided = Result<Vec<Cached>, PublishError>;

/// How the work on a candidate ended. False: its service has moved on to another content meanwhile.
pub(super) type WorkEnd = (Candidate, Result<bool, ServiceFailure>);

/// Work under way. Dropped, it is told to stop.
pub(super) struct Running {
    pub(super) candidate: Candidate,
    work: AbortHandle,
    narrowed: Narrowed,
    /// Finds out what the content that the service has moved on to needs.
    narrowing: Option<AbortOnDropHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl Worker {
    /// Begins to resolve the refs of the services that are due.
    pub(super) fn begin_look(&mut self) {
        if self.look.is_some() || !self.list.has_due() {
            return;
        }
        let due = self.list.begin_look();
        // From now on only what fails anew is looked at again though nothing moves.
        for name in &due {
            self.needs_reconcile.remove(name);
        }
        self.looking = due.iter().filter_map(|name| self.services.get(name).cloned()).collect();
        let (work, services) = (self.work.clone(), self.looking.clone());
        self.look = Some(self.spawn(async move { work.resolve(services).await }));
    }

    /// Refs were resolved. None: that panicked.
    pub(super) fn looked(&mut self, found: Option<Result<ResolvedServices, ServiceFailure>>) {
        let looking = std::mem::take(&mut self.looking);
        let fault = || Err(ServiceFailure::transient("resolve", JobPanicked.to_string()));
        let found = found
            .unwrap_or_else(fault)
            .unwrap_or_else(|failure| looking.into_iter().map(|service| (service, Err(failure.clone()))).collect());
        let found = found.into_iter().filter(|(service, _)| self.is_assigned(service));
        let found: Vec<_> = found.collect();
        let next = |(service, found): &(Arc<Service>, Result<Candidate, _>)| {
            self.list.resolved(&service.name, found.as_ref().ok().map(|candidate| &candidate.key))
        };
        let nexts: Vec<Next> = found.iter().map(next).collect();
        self.list.looked();
        for (next, (service, found)) in nexts.into_iter().zip(found) {
            match (next, found) {
                (Next::Decide, Ok(candidate)) => self.to_decide.push(candidate),
                (Next::Fail, Err(failure)) => self.settle(&service, Err(failure)),
                (next, found) => {
                    // It fetches LFS objects, and nobody waits for that.
                    self.awaited.remove(&service.name);
                    if let (Next::Narrow, Ok(candidate)) = (next, found) {
                        self.narrow(candidate);
                    }
                }
            }
        }
    }

    /// Begins to publish what is known among the contents that were resolved.
    pub(super) fn begin_decision(&mut self) {
        if self.deciding.is_some() || self.to_decide.is_empty() {
            return;
        }
        self.decided_on = std::mem::take(&mut self.to_decide);
        let (publisher, name) = (self.context.publisher.clone(), self.config.name.clone());
        let candidates = self.decided_on.clone();
        self.deciding =
            Some(self.spawn(async move { publisher.publish_cached(&name, &candidates, SystemTime::now()).await }));
    }

    /// It is known which contents must be built. None: that panicked.
    pub(super) fn decided(&mut self, decided: Option<Decided>) {
        let candidates = std::mem::take(&mut self.decided_on);
        let failed = |failure: ServiceFailure| candidates.iter().map(|_| Err(failure.clone())).collect();
        let decided: Vec<Result<Cached, ServiceFailure>> = match decided {
            Some(Ok(cached)) => cached.into_iter().map(Ok).collect(),
            Some(Err(error)) => failed(error.into()),
            None => failed(ServiceFailure::transient("store", JobPanicked.to_string())),
        };
        for (candidate, decided) in candidates.into_iter().zip(decided) {
            let service = candidate.service.clone();
            if !self.is_assigned(&service) {
                continue;
            }
            let put_off = self.back_offs.why_not(&service.name, &candidate.key, Instant::now());
            let settled = match (decided, put_off) {
                (Ok(Cached::NeedsBuild), None) => {
                    self.list.decided(&service.name, Some(candidate.key));
                    self.begin_work(candidate);
                    continue;
                }
                (Ok(Cached::UpToDate), _) => {
                    service.followed(&candidate.commit);
                    Ok(candidate.commit)
                }
                (Ok(Cached::NeedsBuild), Some(failure)) | (Err(failure), _) => Err(failure),
                (Ok(Cached::Refused(error)), _) => Err(error.into()),
            };
            self.list.decided(&service.name, None);
            self.settle(&service, settled);
        }
    }

    fn begin_work(&mut self, candidate: Candidate) {
        let (name, work) = (candidate.service.name.clone(), self.work.clone());
        let may_ask = !self.is_quiet(&name);
        let narrowed = Narrowed::default();
        let ask = Ask { may_ask, told: Some(self.lfs_news.0.clone()), narrowed: narrowed.clone() };
        let of = candidate.clone();
        let work = self.works.spawn(self.context.threads.track(async move {
            let result = work.publish(&of, &ask).await;
            (of, result)
        }));
        self.running.insert(name, Running { candidate, work, narrowed, narrowing: None });
    }

    /// The service that LFS objects are fetched for has moved on to this content.
    fn narrow(&mut self, candidate: Candidate) {
        let Some(running) = self.running.get(&candidate.service.name) else { return };
        let (work, narrowed, name) = (self.work.clone(), running.narrowed.clone(), candidate.service.name.clone());
        let narrowing = self.spawn(async move {
            // What cannot be told is found out when the service is looked at again.
            let needed = work.missing(&candidate.service, &candidate.commit).await.unwrap_or_default();
            let needed = needed.into_iter().map(|file| file.pointer.oid).collect();
            narrowed.send_replace(Some(needed));
        });
        self.running.entry(name).and_modify(|running| running.narrowing = Some(narrowing));
    }

    /// The work on a candidate has ended.
    pub(super) fn work_ended(&mut self, end: Result<WorkEnd, JoinError>) {
        let (candidate, result) = match end {
            Ok(end) => end,
            Err(error) => {
                // Nobody waits for what was told to stop.
                let panicked = self.running.iter().find(|(_, running)| running.work.id() == error.id());
                let Some(running) = panicked.filter(|_| error.is_panic()) else { return };
                (running.1.candidate.clone(), Err(ServiceFailure::transient("build", JobPanicked.to_string())))
            }
        };
        let Candidate { service, commit, key } = candidate;
        if !self.is_assigned(&service) {
            return;
        }
        self.running.remove(&service.name);
        self.list.ended(&service.name);
        if let Err(failure) = &result {
            let (interval, times) = (self.config.poll_interval, (Instant::now(), SystemTime::now()));
            self.back_offs.failed(&service.name, key, failure, interval, times, fastrand::f64());
        }
        match result {
            Ok(true) => self.settle(&service, Ok(commit)),
            Ok(false) => {}
            Err(failure) => self.settle(&service, Err(failure)),
        }
    }

    /// Whether the failure of a service is kept to ourselves, because a poll follows, and the upstream is not asked before.
    /// While it is cloned anew, too, the mirror lacks what the upstream has.
    fn is_quiet(&self, service: &ServiceName) -> bool {
        self.list.cause(service) != Some(Cause::Follow) || !self.state.borrow().mirrored
    }

    /// Notes what a service is at, and whether it must be looked at again though nothing moves.
    fn settle(&mut self, service: &Service, result: Result<CommitId, ServiceFailure>) {
        let name = &service.name;
        // What was found before the ref moved says nothing of what it is at now.
        let at = result.as_ref().ok().filter(|_| !self.list.is_due(name));
        self.revisions.settle(name, at.map(RevisionId::from));
        self.settled += 1;
        self.followed(name);
        let Err(failure) = result else {
            self.back_offs.forget(name);
            self.waits_for_lfs.remove(name);
            return;
        };
        if failure.step != "lfs" {
            self.waits_for_lfs.remove(name);
        }
        let is_quiet = self.is_quiet(name);
        if !is_quiet {
            let reason = self.context.data_dir.redact(&failure.reason);
            service.mark_failed(failure.step, reason, SystemTime::now());
        }
        let with_the_next_poll = match failure.retry {
            RetryPolicy::NextPoll => true,
            // Unless it has a time of its own.
            RetryPolicy::BackOff => !self.back_offs.holds(name),
            RetryPolicy::Never => false,
        };
        if is_quiet || with_the_next_poll {
            self.needs_reconcile.insert(name.clone());
        }
        if self.list.cause(name) == Some(Cause::Assigned) {
            self.schedule.kick(Instant::now());
        }
    }

    /// What a service is at is known, or waits for LFS objects: whoever waits for a poll does not wait for it any more, unless
    /// it is to be looked at again because of a later one.
    fn followed(&mut self, service: &ServiceName) {
        if self.list.is_due(service) {
            let polls = self.state.borrow().polls;
            self.awaited.entry(service.clone()).and_modify(|poll| *poll = polls);
        } else {
            self.awaited.remove(service);
        }
    }

    /// Tells edges up to which revision the published content of each ref is right, when that changed.
    pub(super) fn report_revisions(&mut self, busy: usize) {
        if self.settled == 0 || (busy > FEW_BUSY && self.reported.elapsed() < LONGEST_SILENCE) {
            return;
        }
        (self.settled, self.reported) = (0, Instant::now());
        let services = self.services.values().filter(|service| !service.is_withdrawn());
        let changed = self.revisions.update(services.map(|service| (&service.name, service.revision.to_string())));
        for seen in changed {
            self.context.log.append(EventKind::Revision(seen));
        }
        self.seen.send_replace(self.revisions.all());
    }

    /// A mirror that was found damaged is set aside by the next poll: soon.
    pub(super) fn mend_mirror(&mut self) {
        let now = Instant::now();
        if self.source.needs_repair(now) {
            self.schedule.kick(now);
        }
    }

    /// The fetch of LFS objects for a service has begun, or ended.
    pub(super) fn lfs_moved(&mut self, LfsNews { service, objects }: &LfsNews) {
        if !self.running.contains_key(service) {
            return;
        }
        self.list.fetches_lfs(service, objects.is_some());
        if let Some(objects) = *objects {
            self.awaited.remove(service);
            let (_, waits_for) = self.waits_for_lfs.entry(service.clone()).or_insert((SystemTime::now(), objects));
            *waits_for = objects;
        }
    }

    pub(super) fn show_lfs(&mut self) {
        let (now, clock) = (Instant::now(), SystemTime::now());
        let on_the_clock = |at: Instant| clock + at.saturating_duration_since(now);
        let held_until = self.work.lfs.held_until(now).map(|(until, _)| on_the_clock(until));
        if self.waits_for_lfs.is_empty() && held_until.is_none() && self.state.borrow().lfs.is_none() {
            return;
        }
        let failure = self.back_offs.first_of_step("lfs").map(|setback| LfsFailure {
            since: setback.since,
            reason: self.context.data_dir.redact(&setback.failure.reason),
            attempts: setback.attempts,
        });
        let shown = LfsState {
            services: self.waits_for_lfs.iter().map(|(name, (since, _))| (name.clone(), *since)).collect(),
            objects: self.waits_for_lfs.values().map(|(_, objects)| objects).sum(),
            fetching: self.list.any_fetches_lfs(),
            waits_for: None,
            failure,
            next_attempt: self.back_offs.next().map(on_the_clock),
            held_until,
        };
        let shown = Some(shown).filter(|_| !self.waits_for_lfs.is_empty() || held_until.is_some());
        self.state.send_if_modified(|state| {
            let before = std::mem::replace(&mut state.lfs, shown);
            if let (Some(before), Some(lfs)) = (&before, &mut state.lfs) {
                lfs.waits_for = before.waits_for;
            }
            before != state.lfs
        });
    }
}

//! The owner of a repository: what happens, in one loop. It decides and begins; whatever takes time goes on beside it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;
use weir_protocol::event::RevisionSeen;
use weir_protocol::name::ServiceName;

use super::back_offs::BackOffs;
use super::context::Context;
use super::follow::{Decided, Running, WorkEnd};
use super::handle::{Calls, Gone};
use super::lfs::LfsNews;
use super::maintenance::{KeepingUp, kept_up};
use super::poll::{PollEnd, Poller};
use super::rebuild::{LostVersions, Rebuild, RebuildEnd, Rebuilding};
use super::revisions::Revisions;
use super::schedule::Schedule;
use super::state::{Phase, RepositoryState};
use super::work::Work;
use super::work_list::{Cause, WorkList};
use crate::config::RepositoryConfig;
use crate::publish::Candidate;
use crate::service::{Condition, Service};
use crate::source::{ResolvedServices, ServiceFailure, Source};

/// Services by their names.
pub(super) type Services = BTreeMap<ServiceName, Arc<Service>>;

/// The owner of a repository.
pub(super) struct Worker {
    pub(super) config: Arc<RepositoryConfig>,
    /// The same, as it changes.
    pub(super) configured: watch::Receiver<Arc<RepositoryConfig>>,
    pub(super) services: Services,
    /// The same, as they change.
    pub(super) assigned: watch::Receiver<Vec<Arc<Service>>>,
    pub(super) source: Arc<dyn Source>,
    pub(super) poller: Arc<Poller>,
    pub(super) state: Arc<watch::Sender<RepositoryState>>,
    pub(super) schedule: Schedule,
    /// The services that must be looked at after a poll even if nothing moved.
    pub(super) needs_reconcile: HashSet<ServiceName>,
    /// What is not built just now, though a service is at it.
    pub(super) back_offs: BackOffs,
    pub(super) lost_versions: LostVersions,
    pub(super) rebuilding: Rebuilding,
    /// Whether mirrors that are of no use any more were removed since the start.
    pub(super) tidied: bool,
    pub(super) revisions: Revisions,
    /// What is known of them, as others see it.
    pub(super) seen: watch::Sender<Vec<RevisionSeen>>,
    /// Services whose revision was settled since edges were last told.
    pub(super) settled: usize,
    /// When they were.
    pub(super) reported: Instant,
    /// Since when services wait for LFS objects, and for how many.
    pub(super) waits_for_lfs: BTreeMap<ServiceName, (SystemTime, usize)>,
    /// When LFS objects were last removed that nothing needs.
    pub(super) lfs_swept: Option<Instant>,
    /// Something was fetched since the mirror was last looked after, or was to be.
    pub(super) upkeep_due: bool,
    /// When the mirror was last looked after.
    pub(super) looked_after: Option<Instant>,
    pub(super) context: Arc<Context>,
    /// What is under way with each service, and what comes next.
    pub(super) list: WorkList,
    pub(super) work: Work,
    /// The services whose refs are being resolved.
    pub(super) looking: Vec<Arc<Service>>,
    pub(super) look: Option<AbortOnDropHandle<Result<ResolvedServices, ServiceFailure>>>,
    /// Contents that were resolved, and wait for a decision.
    pub(super) to_decide: Vec<Candidate>,
    /// Those that are being decided on.
    pub(super) decided_on: Vec<Candidate>,
    pub(super) deciding: Option<AbortOnDropHandle<Decided>>,
    pub(super) works: JoinSet<WorkEnd>,
    pub(super) running: HashMap<ServiceName, Running>,
    pub(super) lfs_news: (mpsc::UnboundedSender<Box<LfsNews>>, mpsc::UnboundedReceiver<Box<LfsNews>>),
    /// What the mirror holds since before the start is being found out; the upstream is asked after that.
    pub(super) starting: bool,
    /// The services that are not where the first poll says that was to bring them there, with its number.
    pub(super) awaited: HashMap<ServiceName, u64>,
}

impl Worker {
    /// Runs once the agent that had the mirror before is gone.
    pub(super) async fn run_after(
        mut self,
        before: Option<Gone>,
        calls: Calls,
        rebuilds: mpsc::Receiver<Box<Rebuild>>,
    ) {
        if let Some(before) = before.filter(|before| !before.has_come()) {
            self.state.send_modify(|state| state.phase = Phase::Overdue);
            before.wait().await;
            self.state.send_modify(|state| state.phase = Phase::Idle);
        }
        self.run(calls, rebuilds).await;
    }

    async fn run(&mut self, calls: Calls, mut requests: mpsc::Receiver<Box<Rebuild>>) {
        let mut polling: Option<AbortOnDropHandle<PollEnd>> = None;
        let mut keeping_up: Option<KeepingUp> = None;
        let mut rebuilds: JoinSet<RebuildEnd> = JoinSet::new();
        self.restore();
        loop {
            self.advance();
            self.show_next_poll(polling.is_some());
            let poll_due = Some(self.schedule.next()).filter(|_| polling.is_none() && !self.starting);
            let retry_due = self.back_offs.next();
            tokio::select! {
                end = ended(&mut polling) => {
                    polling = None;
                    self.polled(end.unwrap_or_else(PollEnd::fault));
                    if keeping_up.is_none() {
                        keeping_up = self.begin_upkeep();
                    }
                }
                () = kept_up(&mut keeping_up) => {
                    keeping_up = None;
                    self.mend_mirror();
                }
                looked = ended(&mut self.look) => {
                    self.look = None;
                    self.looked(looked);
                }
                decided = ended(&mut self.deciding) => {
                    self.deciding = None;
                    self.decided(decided);
                }
                Some(end) = self.works.join_next() => self.work_ended(end),
                Some(news) = self.lfs_news.1.recv() => self.lfs_moved(&news),
                Some(end) = rebuilds.join_next() => self.rebuild_ended(end, &mut rebuilds),
                Some(request) = requests.recv() => self.begin_rebuild(*request, &mut rebuilds),
                () = calls.kicks.notified() => self.schedule.kick(Instant::now()),
                () = calls.retries.notified() => self.try_anew(),
                () = calls.looks.notified() => self.look_at_all(Cause::Follow),
                // Whoever assigns holds the handle, which the loop outlives only for a moment.
                Ok(()) = self.configured.changed() => self.reconfigure(),
                Ok(()) = self.assigned.changed() => {
                    // Of two changes the configuration came first, and new services are for it.
                    self.reconfigure();
                    self.reassign();
                }
                () = reached(retry_due) => {
                    let due = self.back_offs.take_due(Instant::now());
                    due.iter().for_each(|name| self.list.due(name, Cause::Follow));
                }
                () = reached(poll_due) => {
                    self.schedule.begin(Instant::now());
                    let poll = self.poller.clone().poll();
                    polling = Some(AbortOnDropHandle::new(tokio::spawn(self.context.threads.track(poll))));
                }
            }
        }
    }

    /// What the mirror holds since before the start is published without asking the upstream. What fails here is not
    /// held against a service: the poll that follows will tell.
    fn restore(&mut self) {
        if !self.source.has_content() {
            return;
        }
        if let Some(named_at) = self.source.refs_changed_at() {
            self.revisions.restored(named_at);
        }
        self.starting = !self.services.is_empty();
        self.look_at_all(Cause::Start);
    }

    fn look_at_all(&mut self, cause: Cause) {
        self.services.keys().for_each(|name| self.list.due(name, cause));
    }

    /// Begins what can begin, and shows what came of what has ended.
    fn advance(&mut self) {
        self.begin_look();
        self.begin_decision();
        if self.starting && self.look.is_none() && self.deciding.is_none() {
            self.starting = false;
            if self.services.values().any(|service| service.condition() == Condition::Following) {
                self.state.send_modify(|state| state.mirrored = true);
            }
        }
        let busy = self.list.busy();
        self.report_revisions(busy);
        self.show_lfs();
        // Polls before the first of which anything is awaited still.
        let polls = self.state.borrow().polls;
        let attempts = self.awaited.values().min().map_or(polls, |poll| poll - 1);
        if attempts > self.state.borrow().attempts {
            self.mend_mirror();
            self.state.send_modify(|state| state.attempts = attempts);
        }
    }

    /// Takes over the services that it is to publish. What is new is looked at in the mirror as it is, and where that does not
    /// do again after a poll that comes soon: only then it is known what the upstream does not have. The others are left alone.
    fn reassign(&mut self) {
        let before = std::mem::replace(&mut self.services, by_name(&self.assigned.borrow_and_update()));
        for gone in not_among(&before, &self.services) {
            self.list.forget(&gone.name);
            self.back_offs.forget(&gone.name);
            self.needs_reconcile.remove(&gone.name);
            self.waits_for_lfs.remove(&gone.name);
            self.running.remove(&gone.name);
            self.awaited.remove(&gone.name);
        }
        self.try_anew();
        self.lfs_swept = None;
        for new in not_among(&self.services, &before) {
            self.needs_reconcile.insert(new.name.clone());
            if self.source.has_content() {
                self.list.due(&new.name, Cause::Assigned);
            } else {
                self.schedule.kick(Instant::now());
            }
        }
        // Fewer services may be settled where all were not.
        self.settled += 1;
    }

    /// Somebody may have put right what failed: it is not put off any longer, unless a server asked for that.
    fn try_anew(&mut self) {
        let put_off = self.back_offs.forget_pauses();
        put_off.iter().for_each(|name| self.list.due(name, Cause::Follow));
        self.lost_versions.clear();
    }

    /// Goes by another configuration of the same upstream. Whoever changes what may be published assigns its services anew, so
    /// that they are looked at by it.
    fn reconfigure(&mut self) {
        let before = std::mem::replace(&mut self.config, self.configured.borrow_and_update().clone());
        self.schedule.set(self.config.poll_interval, self.config.min_poll_interval, Instant::now());
        if self.config != before {
            self.try_anew();
        }
    }

    /// Whether this service is one of those that it is to publish, and not one that another took the place of.
    pub(super) fn is_assigned(&self, service: &Arc<Service>) -> bool {
        self.services.get(&service.name).is_some_and(|known| Arc::ptr_eq(known, service))
    }

    /// Begins something that takes time. Dropped, it is told to stop.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> AbortOnDropHandle<T> {
        AbortOnDropHandle::new(tokio::spawn(self.context.threads.track(task)))
    }
}

pub(super) fn by_name(services: &[Arc<Service>]) -> Services {
    services.iter().map(|service| (service.name.clone(), service.clone())).collect()
}

/// Those of the services that are not among others.
fn not_among(services: &Services, others: &Services) -> Vec<Arc<Service>> {
    let is_there = |service: &&Arc<Service>| others.get(&service.name).is_some_and(|one| Arc::ptr_eq(one, service));
    services.values().filter(|service| !is_there(service)).cloned().collect()
}

/// Waits for a moment; for ever when there is none.
async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits until a task has ended, for ever when there is none. Nothing: it panicked.
async fn ended<T>(task: &mut Option<AbortOnDropHandle<T>>) -> Option<T> {
    match task {
        Some(task) => task.await.ok(),
        None => std::future::pending().await,
    }
}

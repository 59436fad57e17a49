//! The owner of a repository: what happens, in one loop.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use weir_shared::event::RevisionSeen;
use weir_shared::name::ServiceName;

use super::back_offs::BackOffs;
use super::context::Context;
use super::handle::{Calls, Gone};
use super::lfs::{Fetching, Lfs, fetched};
use super::maintenance::{KeepingUp, kept_up};
use super::mirror_slot::MirrorSlot;
use super::poll::{PollEnd, Poller};
use super::rebuild::{LostVersions, Rebuild};
use super::revisions::Revisions;
use super::schedule::Schedule;
use super::state::{Phase, RepositoryState};
use crate::commit_policy::Policy;
use crate::config::{RepositoryConfig, VerifyConfig};
use crate::revision::Reach;
use crate::service::{Condition, Service};

/// A poll under way. A task of its own, so that it keeps its deadline, and gives back its place among the polls, while the
/// owner builds. Dropped, it is told to stop.
type Polling = AbortOnDropHandle<PollEnd>;

/// The owner of a repository.
pub(super) struct Task {
    pub(super) config: Arc<RepositoryConfig>,
    /// The same, as it changes.
    pub(super) configured: watch::Receiver<Arc<RepositoryConfig>>,
    pub(super) services: Vec<Arc<Service>>,
    /// The same, as they change.
    pub(super) assigned: watch::Receiver<Vec<Arc<Service>>>,
    pub(super) mirror: Arc<MirrorSlot>,
    /// Which commits may be published; none: all.
    pub(super) policy: Option<Arc<Policy>>,
    pub(super) poller: Arc<Poller>,
    pub(super) state: Arc<watch::Sender<RepositoryState>>,
    pub(super) schedule: Schedule,
    /// The services that must be looked at after a poll even if nothing moved.
    pub(super) needs_reconcile: HashSet<ServiceName>,
    /// What is not built just now, though a service is at it.
    pub(super) back_offs: BackOffs,
    pub(super) lost_versions: LostVersions,
    /// Whether mirrors that are of no use any more were removed since the start.
    pub(super) tidied: bool,
    /// Which commits that services name were found on a branch or a tag.
    pub(super) reach: Arc<Mutex<Reach>>,
    pub(super) revisions: Revisions,
    /// What is known of them, as others see it.
    pub(super) seen: watch::Sender<Vec<RevisionSeen>>,
    pub(super) lfs: Lfs,
    /// When LFS objects were last removed that nothing needs.
    pub(super) lfs_swept: Option<Instant>,
    /// Something was fetched since the mirror was last looked after, or was to be.
    pub(super) upkeep_due: bool,
    /// When the mirror was last looked after.
    pub(super) looked_after: Option<Instant>,
    pub(super) context: Context,
}

impl Task {
    /// Runs once the agent that had the mirror before is gone.
    pub(super) async fn run_after(self, before: Option<Gone>, calls: Calls, rebuilds: mpsc::Receiver<Rebuild>) {
        if let Some(before) = before.filter(|before| !before.has_come()) {
            self.state.send_modify(|state| state.phase = Phase::Overdue);
            before.wait().await;
            self.state.send_modify(|state| state.phase = Phase::Idle);
        }
        self.run(calls, rebuilds).await;
    }

    /// What an agent does is boxed when it does it: thousands of them wait, and hold no more than waiting takes.
    async fn run(mut self, calls: Calls, mut rebuilds: mpsc::Receiver<Rebuild>) {
        Box::pin(self.restore()).await;
        self.show_next_poll(false);
        let mut polling: Option<Polling> = None;
        let mut keeping_up: Option<KeepingUp> = None;
        let mut fetching: Option<Fetching> = None;
        loop {
            let poll_due = Some(self.schedule.next()).filter(|_| polling.is_none() && keeping_up.is_none());
            let lfs_due = self.lfs.wanted.due().filter(|_| fetching.is_none());
            tokio::select! {
                end = ended(&mut polling) => {
                    polling = None;
                    Box::pin(self.polled(end)).await;
                    keeping_up = self.begin_upkeep();
                }
                () = kept_up(&mut keeping_up) => {
                    keeping_up = None;
                    self.upkeep_ended();
                }
                (asked, attempted) = fetched(&mut fetching) => {
                    fetching = None;
                    Box::pin(self.lfs_attempted(asked, attempted)).await;
                }
                // It reads the mirror only, so it need not wait for a poll that hangs.
                Some(request) = rebuilds.recv() => Box::pin(self.rebuild(request)).await,
                () = calls.kicks.notified() => self.schedule.kick(Instant::now()),
                () = calls.retries.notified() => self.try_anew(),
                () = calls.looks.notified() => {
                    let services = self.services.clone();
                    // While it is cloned anew the mirror lacks what the upstream has.
                    let suppress_errors = !self.state.borrow().mirrored;
                    Box::pin(self.reconcile(&services, suppress_errors)).await;
                }
                // Whoever assigns holds the handle, which the loop outlives only for a moment.
                Ok(()) = self.configured.changed() => self.reconfigure(),
                Ok(()) = self.assigned.changed() => {
                    // Of two changes the configuration came first, and new services are for it.
                    self.reconfigure();
                    Box::pin(self.reassign()).await;
                }
                // It reads and writes what no poll and no upkeep does.
                () = reached(lfs_due) => fetching = self.begin_lfs(),
                () = reached(poll_due) => {
                    self.schedule.begin(Instant::now());
                    self.state.send_modify(|state| state.next_poll = None);
                    let poll = self.poller.clone().poll();
                    polling = Some(AbortOnDropHandle::new(tokio::spawn(self.context.threads.counted(poll))));
                }
            }
            self.show_next_poll(polling.is_some());
        }
    }

    /// What the mirror holds since before the start is published without asking the upstream. What fails here is not
    /// held against a service: the poll that follows will tell.
    async fn restore(&mut self) {
        if self.mirror.exists() {
            let services = self.services.clone();
            if let Ok(named_at) = self.mirror.refs_moved_at() {
                self.revisions.restored(named_at);
            }
            self.reconcile(&services, true).await;
            if services.iter().any(|service| service.condition() == Condition::Following) {
                self.state.send_modify(|state| state.mirrored = true);
            }
        }
    }

    /// Takes over the services that it is to publish. What is new is looked at in the mirror as it is, and where that does not
    /// do again after a poll that comes soon: only then it is known what the upstream does not have. The others are left alone.
    async fn reassign(&mut self) {
        let before = std::mem::replace(&mut self.services, self.assigned.borrow_and_update().clone());
        let new = not_among(&self.services, &before);
        for service in &new {
            self.back_offs.forget(&service.name);
        }
        let names: HashSet<_> = self.services.iter().map(|service| &service.name).collect();
        self.back_offs.retain(|name| names.contains(name));
        self.needs_reconcile.retain(|name| names.contains(name));
        self.try_anew();
        self.lfs_swept = None;
        if new.is_empty() {
            return;
        }
        self.needs_reconcile.extend(new.iter().map(|service| service.name.clone()));
        if self.mirror.exists() {
            self.reconcile(&new, true).await;
        }
        if new.iter().any(|service| self.needs_reconcile.contains(&service.name)) {
            self.schedule.kick(Instant::now());
        }
    }

    /// Somebody may have put right what failed: it is not put off any longer, unless a server asked for that.
    fn try_anew(&mut self) {
        self.back_offs.forget_pauses();
        self.lost_versions.clear();
        self.lfs.wanted.forget_failures();
        self.settle_lfs();
    }

    /// Goes by another configuration of the same upstream.
    fn reconfigure(&mut self) {
        let before = std::mem::replace(&mut self.config, self.configured.borrow_and_update().clone());
        self.schedule.set(self.config.poll_interval, self.config.shortest_gap, Instant::now());
        if self.config != before {
            self.try_anew();
        }
        if self.config.verify != before.verify {
            // Whoever changes it assigns its services anew, so that they are looked at by it.
            self.policy = self.config.verify.as_ref().map(|verify| policy(verify, &self.config, &self.context));
        }
    }
}

/// Those of the services that are not among others.
fn not_among(services: &[Arc<Service>], others: &[Arc<Service>]) -> Vec<Arc<Service>> {
    let others: HashSet<*const Service> = others.iter().map(Arc::as_ptr).collect();
    services.iter().filter(|service| !others.contains(&Arc::as_ptr(service))).cloned().collect()
}

/// Waits for a moment; for ever when there is none.
async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

pub(super) fn policy(verify: &VerifyConfig, config: &RepositoryConfig, context: &Context) -> Arc<Policy> {
    Arc::new(Policy::new(verify.clone(), config.name.clone(), context.metrics.verifications.clone()))
}

/// Waits until a poll has ended; for ever when there is none.
async fn ended(polling: &mut Option<Polling>) -> PollEnd {
    match polling {
        Some(polling) => polling.await.unwrap_or_else(|_| PollEnd::fault()),
        None => std::future::pending().await,
    }
}

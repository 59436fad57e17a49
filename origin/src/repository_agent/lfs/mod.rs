//! Bringing the LFS objects of services' content to the disk, before it is built.
//!
//! Not while it is built: a slow storage would hold one of the few places for builds. And beside everything else that the
//! agent does: who needs none of the objects does not wait for them. When an attempt has ended, who waited is looked at
//! anew, at whatever the mirror holds by then.

mod attempt;
mod sweep;
mod wanted;

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use tokio_util::task::AbortOnDropHandle;
use weir_shared::commit_id::CommitId;

use self::attempt::Attempt;
pub(super) use self::sweep::{Commits, is_due as sweep_is_due};
pub(super) use self::wanted::{Attempted, Wanted, Who};
use super::build::{Builder, ServiceFailure, tarball_failure};
use super::job::{Job, JobFault};
use super::rebuild::{REBUILD_QUEUE, Rebuild};
use super::task::Task;
use crate::lfs::{LfsFile, LfsOid};
use crate::service::Service;
use crate::tarball;

/// What an agent knows of LFS.
#[derive(Default)]
pub(super) struct Lfs {
    pub(super) wanted: Wanted,
    /// What is wanted, for an attempt under way to look at.
    still_wanted: Arc<Mutex<HashSet<LfsOid>>>,
    /// Rebuilds that wait for objects.
    rebuilds: Vec<Rebuild>,
}

/// An attempt under way, and what it is to fetch. A task of its own, like a poll. Dropped, it is told to stop.
pub(super) struct Fetching {
    asked: Vec<LfsOid>,
    attempt: AbortOnDropHandle<Attempted>,
}

/// Waits until an attempt has ended; for ever when there is none. What it was to fetch, and how it went.
pub(super) async fn fetched(fetching: &mut Option<Fetching>) -> (Vec<LfsOid>, Attempted) {
    let Some(Fetching { asked, attempt }) = fetching else { return std::future::pending().await };
    let attempted = attempt.await.unwrap_or_else(|_| Attempted::failed(JobFault.to_string()));
    (std::mem::take(asked), attempted)
}

impl Task {
    /// Whether the LFS objects of a service's content at a commit are here, if it asks for them. If not, `who` waits for
    /// them from now on. Who may not ask the upstream has to do with those that are here.
    pub(super) async fn has_lfs(
        &mut self,
        who: Who,
        service: &Arc<Service>,
        commit: &CommitId,
        may_ask: bool,
    ) -> Result<bool, ServiceFailure> {
        if !service.selection.lfs {
            return Ok(true);
        }
        let (builder, of, at) = (self.builder(), service.clone(), commit.clone());
        let job = Job::begin("lfs", &self.context.threads, move |stop| builder.missing_lfs_files(&of, &at, stop));
        let missing = self.awaited("lfs", job, (), self.config.build_timeout).await?;
        if missing.is_empty() {
            return Ok(true);
        }
        if !may_ask {
            return Err(ServiceFailure::passing("lfs", "its LFS objects come with the next poll".to_owned()));
        }
        let failure = self.lfs.wanted.failure(&missing, Instant::now());
        self.lfs.wanted.waits(who, missing, SystemTime::now());
        failure.map_or(Ok(false), |reason| Err(ServiceFailure::passing("lfs", reason)))
    }

    /// A rebuild goes on when there are the objects that it waits for. Who finds too many others waiting asks again.
    pub(super) fn rebuild_later(&mut self, request: Rebuild) {
        if self.lfs.rebuilds.len() < REBUILD_QUEUE {
            self.lfs.rebuilds.push(request);
        } else {
            self.lfs.wanted.waits_no_more(&Who::Object(request.object));
        }
    }

    /// After changes of what is waited for.
    pub(super) fn settle_lfs(&mut self) {
        let lfs = &mut self.lfs;
        if lfs.wanted.is_idle() && self.state.borrow().lfs.is_none() {
            return;
        }
        lfs.rebuilds.retain(|request| !request.done.is_closed());
        let asking = self.services.iter().filter(|service| service.selection.lfs);
        let asking: HashSet<_> = asking.map(|service| &service.name).collect();
        lfs.wanted.retain(|who| match who {
            Who::Service(name) => asking.contains(name),
            Who::Object(object) => lfs.rebuilds.iter().any(|request| request.object == *object),
        });
        lfs.wanted.settle(Instant::now());
        *lfs.still_wanted.lock().unwrap_or_else(PoisonError::into_inner) = lfs.wanted.objects();
        self.show_lfs();
    }

    /// Begins to fetch what is due.
    pub(super) fn begin_lfs(&mut self) -> Option<Fetching> {
        let groups = self.lfs.wanted.due_now(Instant::now());
        let asked: Vec<LfsOid> = groups.iter().flatten().map(|file| file.pointer.oid).collect();
        if asked.is_empty() {
            // Nobody waits for it any more.
            self.settle_lfs();
            return None;
        }
        let attempt = Attempt {
            builder: self.builder(),
            poller: self.poller.clone(),
            services: self.services.clone(),
            groups,
            still_wanted: self.lfs.still_wanted.clone(),
        };
        let attempt = AbortOnDropHandle::new(tokio::spawn(self.context.threads.counted(attempt.run())));
        self.state.send_modify(|state| state.lfs.iter_mut().for_each(|lfs| lfs.fetching = true));
        Some(Fetching { asked, attempt })
    }

    /// An attempt has ended: looks at everybody who waits.
    pub(super) async fn lfs_attempted(&mut self, asked: Vec<LfsOid>, attempted: Attempted) {
        let times = (Instant::now(), SystemTime::now());
        self.lfs.wanted.attempted(&asked, &attempted, self.config.poll_interval, times, fastrand::f64());
        self.state.send_modify(|state| state.lfs.iter_mut().for_each(|lfs| lfs.fetching = false));
        let waits = |service: &&Arc<Service>| self.lfs.wanted.is_waited_for_by(&Who::Service(service.name.clone()));
        let services: Vec<_> = self.services.iter().filter(waits).cloned().collect();
        if !services.is_empty() {
            // While it is cloned anew the mirror lacks what the upstream has.
            let suppress_errors = !self.state.borrow().mirrored;
            self.reconcile(&services, suppress_errors).await;
        }
        for request in std::mem::take(&mut self.lfs.rebuilds) {
            self.lfs.wanted.waits_no_more(&Who::Object(request.object));
            self.rebuild(request).await;
        }
        self.settle_lfs();
    }

    fn show_lfs(&self) {
        let (now, clock) = (Instant::now(), SystemTime::now());
        let mut shown = self.lfs.wanted.show(|at| clock + at.saturating_duration_since(now));
        if let Some(failure) = shown.as_mut().and_then(|shown| shown.failure.as_mut()) {
            failure.reason = self.context.data_dir.redact(&failure.reason);
        }
        self.state.send_if_modified(|state| {
            let before = std::mem::replace(&mut state.lfs, shown);
            if let (Some(before), Some(lfs)) = (&before, &mut state.lfs) {
                (lfs.fetching, lfs.waits_for) = (before.fetching, before.waits_for);
            }
            before != state.lfs
        });
    }
}

impl Builder {
    /// The objects that a build needs and that are not here.
    fn missing_lfs_files(
        &self,
        service: &Service,
        commit: &CommitId,
        stop: &AtomicBool,
    ) -> Result<Vec<LfsFile>, ServiceFailure> {
        let repository = self.mirror.get()?.repository()?.to_thread_local();
        let mut files = tarball::lfs_files(&repository, commit, &service.selection, &self.options.limits, stop)
            .map_err(|error| tarball_failure(&self.mirror, "select", &error))?;
        let objects = self.mirror.lfs_objects();
        files.retain(|file| !objects.holds(&file.pointer));
        Ok(files)
    }
}

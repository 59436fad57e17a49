//! Bringing the LFS objects of a service's content to the disk, before it is built.
//!
//! Not while it is built: a slow storage would hold one of the few places for builds. It is asked like any upstream: in one
//! of the places for that, within the host's budget, and not before it wants to be asked again.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use weir_shared::commit_id::CommitId;
use weir_shared::name::RepositoryName;

use super::build::{ServiceFailure, Workshop, tarball_failure};
use super::job::Job;
use super::schedule::LONGEST_RETRY_AFTER;
use super::state::Phase;
use super::task::Task;
use crate::lfs::{LfsFile, Pointer};
use crate::mirror::{LfsError, LfsFetch, Upstream};
use crate::service::Service;
use crate::tarball;

/// How long an agent waits for a place. It does nothing else meanwhile, so it rather asks again with its next poll.
const PLACE_WAIT: Duration = Duration::from_secs(10);

/// A server asked to be left alone.
pub(super) struct Held {
    until: Instant,
    failure: ServiceFailure,
}

impl Task {
    /// Brings the LFS objects of a service's content at a commit to the disk, if the service asks for them. Who may not ask
    /// the upstream has to do with those that are here.
    pub(super) async fn fetch_lfs(
        &mut self,
        service: &Arc<Service>,
        commit: &CommitId,
        may_ask: bool,
    ) -> Result<(), ServiceFailure> {
        if !service.selection.lfs {
            return Ok(());
        }
        let (workshop, of, at) = (self.workshop(), service.clone(), commit.clone());
        let job = Job::begin("lfs", &self.crew.threads, move |stop| workshop.missing_lfs_files(&of, &at, stop));
        let missing = self.awaited("lfs", job, (), self.config.build_timeout).await?;
        if missing.is_empty() {
            return Ok(());
        }
        if !may_ask {
            return Err(ServiceFailure::passing("lfs", "its LFS objects come with the next poll".to_owned()));
        }
        if let Some(held) = self.lfs_held.as_ref().filter(|held| Instant::now() < held.until) {
            return Err(held.failure.clone());
        }
        self.lfs_held = None;
        let place = self.poller.places.to_fetch(&self.poller.at_host, true, |what| {
            self.state.send_modify(|state| state.waits_for = what);
        });
        let Ok(place) = tokio::time::timeout(PLACE_WAIT, place).await else {
            self.state.send_modify(|state| state.waits_for = None);
            let why = format!("no place to fetch its LFS objects was free within {} s", PLACE_WAIT.as_secs());
            return Err(ServiceFailure::passing("lfs", why));
        };
        let before = self.state.borrow().phase.clone();
        self.state.send_modify(|state| state.phase = Phase::FetchingLfs { service: service.name.clone() });
        let (workshop, poller, services) = (self.workshop(), self.poller.clone(), self.services.clone());
        let job = Job::begin("lfs", &self.crew.threads, move |stop| {
            let budget = || poller.at_host.request();
            let upstream = poller.upstream();
            let room = workshop.room_for(&missing, (&poller.name, &services), upstream.max_mirror, stop);
            room.map(|()| workshop.fetch_lfs_files(&upstream, &missing, &budget, stop))
        });
        let result = self.awaited("lfs", job, place, self.config.poll_timeout).await;
        self.state.send_modify(|state| state.phase = before);
        result?.map_err(|(failure, pause)| {
            if let Some(pause) = pause {
                let until = Instant::now() + pause.min(LONGEST_RETRY_AFTER);
                self.lfs_held = Some(Held { until, failure: failure.clone() });
            }
            failure
        })
    }
}

impl Workshop {
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

    /// Sees to it that there is room for them: on the disk, and among the objects of the mirror, from which those go first
    /// that nothing needs.
    fn room_for(
        &self,
        missing: &[LfsFile],
        (repository, services): (&RepositoryName, &[Arc<Service>]),
        max_mirror: u64,
        stop: &AtomicBool,
    ) -> Result<(), ServiceFailure> {
        let failed = |reason: String| ServiceFailure::passing("lfs", reason);
        let needed = missing.iter().fold(0u64, |sum, file| sum.saturating_add(file.pointer.size));
        let what = || format!("{} LFS objects of {} are to be fetched", missing.len(), ByteSize(needed));
        let mut held = self.mirror.lfs_objects().held().map_err(|error| failed(error.to_string()))?;
        let room = || self.publisher.require_room(self.options.min_free_bytes.saturating_add(needed));
        if held.bytes.saturating_add(needed) > max_mirror || room().is_err() {
            held = self.sweep_lfs(repository, services, Duration::ZERO, stop)?;
        }
        if held.bytes.saturating_add(needed) > max_mirror {
            let (held, limit) = (ByteSize(held.bytes), ByteSize(max_mirror));
            let why = "current and retained versions need them: raise it, or retain less";
            return Err(failed(format!(
                "{}, but with the {held} that are here they would be more than `[upstreams] max_mirror` = {limit} allows; {why}",
                what()
            )));
        }
        room().map_err(|error| failed(format!("{}, but {error}", what())))
    }

    /// Fetches them. What went wrong, and how long a server asks to be left alone.
    fn fetch_lfs_files(
        &self,
        upstream: &Upstream,
        missing: &[LfsFile],
        budget: &dyn Fn() -> Option<Duration>,
        interrupt: &AtomicBool,
    ) -> Result<(), (ServiceFailure, Option<Duration>)> {
        let fetched = |pointer: &Pointer| {
            self.metrics.lfs_objects.inc();
            self.metrics.lfs_bytes.inc_by(pointer.size);
        };
        let objects = self.mirror.lfs_objects();
        let fetch = LfsFetch { upstream, objects: &objects, budget, fetched: &fetched, interrupt };
        fetch.run(missing).map_err(|error: LfsError| {
            self.metrics.lfs_failures.inc();
            (ServiceFailure::passing("lfs", error.to_string()), error.retry_after())
        })
    }
}

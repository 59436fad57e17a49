//! Bringing the LFS objects of a service's content to the disk, before it is built: a step with a deadline and a permit.
//!
//! Several services of a repository fetch at a time. An object that two of them need is fetched once: who comes second waits
//! for the first. What cannot be had fails the step, which is tried again later and later like a build that takes too long.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use tokio::sync::{Notify, mpsc};
use weir_shared::commit_id::CommitId;
use weir_shared::name::ServiceName;

use super::back_off::kept;
use super::build::{Again, Builder, ServiceFailure, tarball_failure};
use super::job::Job;
use super::lfs_sweep::Commits;
use super::limiter::Kind;
use super::poll::Poller;
use super::state::WaitsFor;
use super::work::Work;
use crate::disk_watch;
use crate::lfs::{LfsFile, LfsOid};
use crate::mirror::LfsFetch;
use crate::service::Service;
use crate::source::git::tree::lfs_files;

/// What the fetches of a repository share.
#[derive(Debug, Default)]
pub(super) struct LfsFetches {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The objects that are being fetched.
    claimed: HashSet<LfsOid>,
    /// Bytes of them that have room, and may not be here yet.
    reserved: u64,
    /// Until then the server wants to be left alone, and what it said.
    held: Option<(Instant, String)>,
}

/// What is to be fetched for whom.
pub(super) struct Ask {
    /// Whether the upstream may be asked; otherwise what is here has to do.
    pub(super) may_ask: bool,
    /// Told of a fetch that begins, and of its end.
    pub(super) told: Option<mpsc::UnboundedSender<LfsNews>>,
    pub(super) narrowed: Narrowed,
}

/// How it goes with the objects of a service.
#[derive(Debug)]
pub(super) struct LfsNews {
    pub(super) service: ServiceName,
    /// How many are fetched; none: that has ended.
    pub(super) objects: Option<usize>,
}

/// The only objects that are needed still, once the service has moved on to another content.
pub(super) type Narrowed = Arc<Mutex<Option<HashSet<LfsOid>>>>;

/// How a fetch ended.
#[derive(Default)]
struct Fetched {
    /// Objects that came.
    brought: usize,
    /// Why objects did not come, each reason once.
    failures: Vec<String>,
    /// How long the server asks to be left alone.
    pause: Option<Duration>,
    interrupted: bool,
}

impl LfsFetches {
    /// Fetches that begin while a server wants to be left alone.
    pub(super) fn held(until: Option<Instant>) -> Self {
        let said = "the LFS server, or its storage, asked to be left alone".to_owned();
        let state = State { held: until.map(|until| (until, said)), ..State::default() };
        Self { state: Mutex::new(state), freed: Notify::new() }
    }

    /// Until when the server wants to be left alone, and what it said.
    pub(super) fn held_until(&self, now: Instant) -> Option<(Instant, String)> {
        self.state().held.clone().filter(|(until, _)| now < *until)
    }

    /// Waits until nobody else fetches any of these objects.
    async fn claim(&self, files: &[LfsFile]) -> Claim<'_> {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            {
                let mut state = self.state();
                if !files.iter().any(|file| state.claimed.contains(&file.pointer.oid)) {
                    state.claimed.extend(files.iter().map(|file| file.pointer.oid));
                    let oids: HashSet<_> = files.iter().map(|file| file.pointer.oid).collect();
                    return Claim { fetches: self, oids };
                }
            }
            freed.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Objects that nobody else fetches.
struct Claim<'a> {
    fetches: &'a LfsFetches,
    oids: HashSet<LfsOid>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.fetches.state();
        state.claimed.retain(|oid| !self.oids.contains(oid));
        drop(state);
        self.fetches.freed.notify_waiters();
    }
}

impl Work {
    /// Sees to it that the LFS objects of a service's content at a commit are here, if it asks for them. False: the service
    /// has moved on to another content meanwhile.
    pub(super) async fn fetch_lfs(
        &self,
        service: &Arc<Service>,
        commit: &CommitId,
        ask: &Ask,
    ) -> Result<bool, ServiceFailure> {
        if !service.selection.lfs {
            return Ok(true);
        }
        let missing = self.missing_lfs_files(service, commit).await?;
        if missing.is_empty() {
            return Ok(true);
        }
        if !ask.may_ask {
            return Err(ServiceFailure::passing("lfs", "its LFS objects come with the next poll".to_owned()));
        }
        ask.tell(service, Some(missing.len()));
        let fetched = self.fetch_missing(service, commit, ask, missing).await;
        ask.tell(service, None);
        fetched
    }

    async fn fetch_missing(
        &self,
        service: &Arc<Service>,
        commit: &CommitId,
        ask: &Ask,
        mut missing: Vec<LfsFile>,
    ) -> Result<bool, ServiceFailure> {
        loop {
            let _claim = self.lfs.claim(&missing).await;
            // Somebody else may have fetched some of them.
            missing = self.missing_lfs_files(service, commit).await?;
            if missing.is_empty() {
                return Ok(true);
            }
            if let Some((until, said)) = self.lfs.held_until(Instant::now()) {
                let pause = Some(until.saturating_duration_since(Instant::now()));
                return Err(ServiceFailure { again: Again::Later, pause, ..ServiceFailure::passing("lfs", said) });
            }
            let fetched = self.fetch(std::mem::take(&mut missing), ask).await?;
            if let Some(failure) = self.failure_of(fetched, ask) {
                return Err(failure);
            }
            if ask.is_narrowed() {
                return Ok(false);
            }
            // It brought something until its deadline, or all: go on with what is still missing.
            missing = self.missing_lfs_files(service, commit).await?;
        }
    }

    /// One fetch with a permit, until its deadline.
    async fn fetch(&self, files: Vec<LfsFile>, ask: &Ask) -> Result<Fetched, ServiceFailure> {
        let poller = self.poller.clone();
        let waits = |what: Option<WaitsFor>| {
            poller.state.send_modify(|state| state.lfs.iter_mut().for_each(|lfs| lfs.waits_for = what));
        };
        let permit = poller.limiter.acquire(Kind::Lfs, waits).await;
        let deadline = poller.config.borrow().poll_timeout;
        let published = self.context.publisher.commits(&poller.name).await;
        let (builder, lfs, narrowed) = (self.builder(), self.lfs.clone(), ask.narrowed.clone());
        let of = poller.clone();
        let job = Job::begin("lfs", &poller.threads, move |stop| {
            builder.fetch_lfs_files(&of, &lfs, &files, &published, &narrowed, stop)
        });
        let mut job =
            job.map_err(|error| ServiceFailure::passing("lfs", format!("no thread can be started: {error}")))?;
        let in_time = tokio::time::timeout(deadline, &mut job).await;
        if in_time.is_err() {
            job.interrupt();
            tracing::warn!(repository = %poller.name, seconds = deadline.as_secs(), "a fetch of LFS objects is overdue");
        }
        // Others must not wait for a thread that may never come back.
        drop(permit);
        let ended = match in_time {
            Ok(ended) => ended,
            Err(_) => job.await,
        };
        let mut fetched = ended.map_err(|fault| self.fault("lfs", &fault))??;
        if fetched.interrupted && fetched.brought == 0 && fetched.failures.is_empty() {
            let late = format!("its LFS objects did not come within {} s (`poll_timeout`)", deadline.as_secs());
            fetched.failures.push(late);
        }
        Ok(fetched)
    }

    fn failure_of(&self, fetched: Fetched, ask: &Ask) -> Option<ServiceFailure> {
        let Fetched { failures, pause, .. } = fetched;
        let others = failures.len().saturating_sub(1);
        let first = failures.into_iter().next()?;
        let reason = if others == 0 { first.clone() } else { format!("{first} (and {others} more)") };
        self.context.metrics.lfs_failures.inc();
        if let Some(pause) = pause {
            self.lfs.state().held = Some((Instant::now() + kept(pause, fastrand::f64()), first));
        }
        // What a newer content needs is asked for at once.
        (!ask.is_narrowed()).then(|| ServiceFailure {
            again: Again::Later,
            pause,
            ..ServiceFailure::passing("lfs", reason)
        })
    }

    /// The objects that a build needs and that are not here.
    pub(super) async fn missing_lfs_files(
        &self,
        service: &Arc<Service>,
        commit: &CommitId,
    ) -> Result<Vec<LfsFile>, ServiceFailure> {
        let (builder, of, at) = (self.builder(), service.clone(), commit.clone());
        let job = Job::begin("lfs", &self.context.threads, move |stop| builder.missing_lfs_files(&of, &at, stop));
        self.awaited("lfs", job, (), self.build_timeout()).await
    }
}

impl Ask {
    fn tell(&self, service: &Service, objects: Option<usize>) {
        if let Some(told) = &self.told {
            let _ = told.send(LfsNews { service: service.name.clone(), objects });
        }
    }

    fn is_narrowed(&self) -> bool {
        self.narrowed.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Room for objects that may not be here yet.
struct Reserved<'a> {
    fetches: &'a LfsFetches,
    bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.fetches.state().reserved -= self.bytes;
    }
}

impl Builder {
    fn missing_lfs_files(
        &self,
        service: &Service,
        commit: &CommitId,
        stop: &AtomicBool,
    ) -> Result<Vec<LfsFile>, ServiceFailure> {
        let repository = self.mirror.get()?.repository()?.to_thread_local();
        let mut files = lfs_files(&repository, commit, &service.selection, &self.options.limits, stop)
            .map_err(|error| tarball_failure(&self.mirror, "select", &error))?;
        let objects = self.mirror.lfs_objects();
        files.retain(|file| !objects.holds(&file.pointer));
        Ok(files)
    }

    /// Fetches objects, if there is room for them.
    fn fetch_lfs_files(
        &self,
        poller: &Poller,
        fetches: &LfsFetches,
        files: &[LfsFile],
        published: &Commits,
        narrowed: &Narrowed,
        stop: &AtomicBool,
    ) -> Result<Fetched, ServiceFailure> {
        let upstream = poller.upstream();
        let _room = self.reserve(poller, fetches, files, published, stop)?;
        let fetched = std::cell::RefCell::new(Fetched::default());
        let ended = |file: &LfsFile, result: Result<(), &crate::mirror::LfsError>| match result {
            Ok(()) => {
                self.metrics.lfs_objects.inc();
                self.metrics.lfs_bytes.inc_by(file.pointer.size);
                fetched.borrow_mut().brought += 1;
            }
            Err(error) if error.is_interrupted() => {}
            Err(error) => fetched.borrow_mut().fail(error.to_string()),
        };
        let wanted = |oid: &LfsOid| {
            narrowed.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_none_or(|only| only.contains(oid))
        };
        let (objects, budget) = (self.mirror.lfs_objects(), || poller.limiter.request());
        let fetch = LfsFetch {
            upstream: &upstream,
            objects: &objects,
            budget: &budget,
            wanted: &wanted,
            ended: &ended,
            interrupt: stop,
        };
        let result = fetch.run(files);
        let mut fetched = fetched.into_inner();
        if let Err(error) = result {
            fetched.interrupted = error.is_interrupted();
            fetched.pause = error.retry_after();
            if !fetched.interrupted {
                fetched.fail(error.to_string());
            }
        }
        Ok(fetched)
    }

    /// Sees to it that there is room for objects: on the disk, and among the objects of the mirror, from which those go first
    /// that nothing needs, unless the repository is being cloned anew.
    fn reserve<'a>(
        &self,
        poller: &Poller,
        fetches: &'a LfsFetches,
        files: &[LfsFile],
        published: &Commits,
        stop: &AtomicBool,
    ) -> Result<Reserved<'a>, ServiceFailure> {
        let failed = |reason: String| ServiceFailure::passing("lfs", reason);
        let bytes = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.pointer.size));
        let max_mirror = poller.upstream().max_mirror;
        let mut held = self.mirror.lfs_objects().held().map_err(|error| failed(error.to_string()))?;
        let has_room = |held: u64, reserved: u64| {
            let others = held.saturating_add(reserved);
            if others.saturating_add(bytes) > max_mirror {
                let (others, limit) = (ByteSize(others), ByteSize(max_mirror));
                return Err(format!(
                    "with the {others} that are here they would be more than `[upstreams] max_mirror` = {limit} allows"
                ));
            }
            let needed = self.options.min_free_bytes.saturating_add(reserved).saturating_add(bytes);
            disk_watch::require_room(&self.data_dir, needed)
        };
        let mut why = String::new();
        if has_room(held.bytes, fetches.state().reserved).is_err() {
            if !poller.state.borrow().mirrored {
                "; none of them goes before the repository is cloned again".clone_into(&mut why);
            } else {
                let services = poller.services.borrow().clone();
                match self.sweep_lfs(&poller.name, &services, published, Duration::ZERO, stop) {
                    Ok(stays) => held = stays,
                    Err(failure) => why = format!("; none of them goes, because {}", failure.reason),
                }
                if why.is_empty() {
                    "; current and retained versions need them: raise it, or retain less".clone_into(&mut why);
                }
            }
        }
        let mut state = fetches.state();
        match has_room(held.bytes, state.reserved) {
            Ok(()) => {
                state.reserved += bytes;
                Ok(Reserved { fetches, bytes })
            }
            Err(reason) => Err(failed(format!(
                "{} LFS objects of {} are to be fetched, but {reason}{why}",
                files.len(),
                ByteSize(bytes)
            ))),
        }
    }
}

impl Fetched {
    fn fail(&mut self, reason: String) {
        if !self.failures.contains(&reason) {
            self.failures.push(reason);
        }
    }
}

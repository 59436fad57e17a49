//! Bringing the LFS objects of a service's content to the disk, before it is built: a step with a deadline and a permit.
//!
//! Several services of a repository fetch at a time. An object that two of them need is fetched once: who comes second waits
//! for the first. What cannot be had fails the step, which is tried again later and later like a build that takes too long.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, mpsc, watch};
use weir_protocol::commit_id::CommitId;
use weir_protocol::name::ServiceName;

use super::back_off::kept;
use super::job::Job;
use super::limiter::Kind;
use super::state::WaitsFor;
use super::work::Work;
use crate::service::Service;
use crate::source::git::lfs::{LfsFile, LfsOid};
use crate::source::{LfsFetchRequest, LfsFetchResult, RetryPolicy, ServiceFailure};

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
    /// Until then the server wants to be left alone, and what it said.
    held: Option<(Instant, String)>,
}

/// What is to be fetched for whom.
pub(super) struct Ask {
    /// Whether the upstream may be asked; otherwise what is here has to do.
    pub(super) may_ask: bool,
    /// Told of a fetch that begins, and of its end.
    pub(super) told: Option<mpsc::UnboundedSender<Box<LfsNews>>>,
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
pub(super) type Narrowed = Arc<watch::Sender<Option<HashSet<LfsOid>>>>;

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

    /// Those of the objects that nobody else fetches; waits until there are some.
    async fn claim(&self, files: &[LfsFile]) -> Claim<'_> {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            {
                let mut state = self.state();
                let free = files.iter().map(|file| file.pointer.oid).filter(|oid| !state.claimed.contains(oid));
                let oids: HashSet<_> = free.collect();
                if !oids.is_empty() {
                    state.claimed.extend(&oids);
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
        let missing = self.missing(service, commit).await?;
        if missing.is_empty() {
            return Ok(true);
        }
        if !ask.may_ask {
            return Err(ServiceFailure::transient("lfs", "its LFS objects come with the next poll".to_owned()));
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
            let Some(claim) = ask.unless_narrowed(self.lfs.claim(&missing)).await else { return Ok(false) };
            // Somebody else may have fetched some of them.
            missing = self.missing(service, commit).await?;
            missing.retain(|file| claim.oids.contains(&file.pointer.oid));
            if !missing.is_empty() {
                let Some(fetched) = self.fetch(missing, ask).await? else { return Ok(false) };
                if let Some(failure) = self.failure_of(fetched, ask) {
                    return Err(failure);
                }
            }
            if ask.is_narrowed() {
                return Ok(false);
            }
            drop(claim);
            // It brought something until its deadline, or all, or others fetch the rest.
            missing = self.missing(service, commit).await?;
            if missing.is_empty() {
                return Ok(true);
            }
        }
    }

    /// One fetch with a permit, until its deadline. Nothing: the service has moved on before it could begin.
    async fn fetch(&self, files: Vec<LfsFile>, ask: &Ask) -> Result<Option<LfsFetchResult>, ServiceFailure> {
        let poller = self.poller.clone();
        let waits = |what: Option<WaitsFor>| {
            poller.state.send_modify(|state| state.lfs.iter_mut().for_each(|lfs| lfs.waits_for = what));
        };
        let Some(permit) = ask.unless_narrowed(poller.limiter.acquire(Kind::Lfs, waits)).await else {
            waits(None);
            return Ok(None);
        };
        // Whoever had a permit before may have been told.
        if let Some((until, said)) = self.lfs.held_until(Instant::now()) {
            let pause = Some(until.saturating_duration_since(Instant::now()));
            return Err(ServiceFailure {
                retry: RetryPolicy::BackOff,
                retry_after: pause,
                ..ServiceFailure::transient("lfs", said)
            });
        }
        let deadline = poller.config.borrow().poll_timeout;
        let published = self.context.publisher.commits(&poller.name).await;
        let (of, narrowed) = (poller.clone(), ask.narrowed.clone());
        let job = Job::start("lfs", &poller.threads, move |stop| {
            let (config, services) = (of.config.borrow().clone(), of.services.borrow().clone());
            let is_needed = |oid: &LfsOid| narrowed.borrow().as_ref().is_none_or(|only| only.contains(oid));
            let request = LfsFetchRequest {
                config: &config,
                files: &files,
                mirrored: of.state.borrow().mirrored,
                services: &services,
                published: &published,
                budget: &|| of.limiter.request(),
                is_needed: &is_needed,
            };
            of.source.fetch_lfs_files(&request, stop)
        });
        let mut job =
            job.map_err(|error| ServiceFailure::transient("lfs", format!("no thread can be started: {error}")))?;
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
        let ended = ended.map_err(|fault| self.fault("lfs", &fault)).flatten();
        let mut fetched = ended.inspect_err(|_| self.context.metrics.lfs_failures.inc())?;
        if fetched.interrupted && fetched.fetched == 0 && fetched.failures.is_empty() {
            let late = format!("its LFS objects did not come within {} s (`poll_timeout`)", deadline.as_secs());
            fetched.failures.push(late);
        }
        Ok(Some(fetched))
    }

    fn failure_of(&self, fetched: LfsFetchResult, ask: &Ask) -> Option<ServiceFailure> {
        let LfsFetchResult { failures, retry_after: pause, .. } = fetched;
        let others = failures.len().saturating_sub(1);
        let first = failures.into_iter().next()?;
        let reason = if others == 0 { first.clone() } else { format!("{first} (and {others} more)") };
        self.context.metrics.lfs_failures.inc();
        if let Some(pause) = pause {
            let until = Instant::now() + kept(pause, fastrand::f64());
            let mut state = self.lfs.state();
            if state.held.as_ref().is_none_or(|(held, _)| *held < until) {
                state.held = Some((until, first));
            }
        }
        // What a newer content needs is asked for at once.
        (!ask.is_narrowed()).then(|| ServiceFailure {
            retry: RetryPolicy::BackOff,
            retry_after: pause,
            ..ServiceFailure::transient("lfs", reason)
        })
    }

    /// The objects that a build needs and that are not here.
    pub(super) async fn missing(
        &self,
        service: &Arc<Service>,
        commit: &CommitId,
    ) -> Result<Vec<LfsFile>, ServiceFailure> {
        let (source, of, at) = (self.poller.source.clone(), service.clone(), commit.clone());
        let job = Job::start("lfs", &self.context.threads, move |stop| source.missing_lfs_files(&of, &at, stop));
        self.awaited("lfs", job, (), self.build_timeout()).await
    }
}

impl Ask {
    fn tell(&self, service: &Service, objects: Option<usize>) {
        if let Some(told) = &self.told {
            let _ = told.send(Box::new(LfsNews { service: service.name.clone(), objects }));
        }
    }

    fn is_narrowed(&self) -> bool {
        self.narrowed.borrow().is_some()
    }

    /// Awaits something; nothing when the service moves on to another content before.
    async fn unless_narrowed<T>(&self, wanted: impl Future<Output = T>) -> Option<T> {
        let mut narrowed = self.narrowed.subscribe();
        tokio::select! {
            value = wanted => Some(value),
            _ = narrowed.wait_for(Option::is_some) => None,
        }
    }
}

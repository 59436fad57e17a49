//! Fetches the missing LFS objects of a service before a build, with a permit and a deadline.
//!
//! Services of a repository fetch concurrently. An object that several need is fetched once, and the others wait for it. If an
//! object cannot be fetched, the step fails and backs off.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, Semaphore, mpsc, watch};
use weir_git::lfs::{LfsFile, LfsOid};
use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;
use weir_source::{LfsFetchRequest, LfsFetchResult, RetryPolicy, Service, ServiceFailure};

use super::bundles;
use super::job::Job;
use super::limiter::Kind;
use super::poll::Poller;
use super::repository::Repository;
use super::state::WaitsFor;
use weir_model::back_off::bounded_retry_after;

/// Fetches the LFS objects of a repository.
pub(super) struct LfsFetches {
    poller: Arc<Poller>,
    claims: Mutex<Claims>,
    /// Notified when objects are released.
    released: Notify,
    /// Walks of trees, as many as builds.
    walks: Arc<Semaphore>,
}

#[derive(Default)]
struct Claims {
    /// The objects being fetched.
    claimed: HashSet<LfsOid>,
    /// The end of the server's `Retry-After`, and its reason.
    held_until: Option<(Instant, String)>,
}

/// How a build fetches its LFS objects.
pub(super) struct LfsPolicy {
    /// Whether the upstream may be queried. Otherwise missing objects fail the build.
    pub(super) may_fetch: bool,
    /// Receives the start and the end of a fetch.
    pub(super) progress: Option<mpsc::UnboundedSender<Box<LfsProgress>>>,
    pub(super) needed_objects: NeededObjects,
}

/// A build started or ended to fetch LFS objects.
#[derive(Debug)]
pub(super) struct LfsProgress {
    pub(super) service: ServiceName,
    /// The number of missing objects. `None`: the fetch ended.
    pub(super) missing: Option<usize>,
}

/// Set once the service's ref has another content: the objects that this needs too.
pub(super) type NeededObjects = Arc<watch::Sender<Option<HashSet<LfsOid>>>>;

impl LfsFetches {
    /// `held_until`: the end of the server's `Retry-After`, which a predecessor received.
    pub(super) fn new(poller: Arc<Poller>, held_until: Option<Instant>) -> Self {
        let reason = || "the LFS server or its storage sent `Retry-After`".to_owned();
        let claims = Claims { held_until: held_until.map(|until| (until, reason())), ..Claims::default() };
        let walks = Arc::new(Semaphore::new(poller.repository.builds()));
        Self { poller, claims: Mutex::new(claims), released: Notify::new(), walks }
    }

    /// The end of the server's `Retry-After`, and its reason.
    pub(super) fn held_until(&self, now: Instant) -> Option<(Instant, String)> {
        self.claims().held_until.clone().filter(|(until, _)| now < *until)
    }

    /// Claims the objects that no other fetch has claimed. Waits until there are some.
    async fn claim(&self, files: &[LfsFile]) -> Claim<'_> {
        loop {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            {
                let mut claims = self.claims();
                let free = files.iter().map(|file| file.pointer.oid).filter(|oid| !claims.claimed.contains(oid));
                let oids: HashSet<_> = free.collect();
                if !oids.is_empty() {
                    claims.claimed.extend(&oids);
                    return Claim { fetches: self, oids };
                }
            }
            released.await;
        }
    }

    /// Fetches the missing LFS objects of a service at a revision, if it publishes LFS files. Returns false if the service needs
    /// another content meanwhile.
    pub(super) async fn fetch(
        &self,
        service: &Arc<Service>,
        revision: &RevisionId,
        policy: &LfsPolicy,
    ) -> Result<bool, ServiceFailure> {
        if !service.selection.lfs {
            return Ok(true);
        }
        let missing = self.missing_files(service, revision).await?;
        if missing.is_empty() {
            return Ok(true);
        }
        if !policy.may_fetch {
            return Err(ServiceFailure::transient("lfs", "its LFS objects are fetched after the next poll".to_owned()));
        }
        policy.report(service, Some(missing.len()));
        let fetched = self.fetch_missing(service, revision, policy, missing).await;
        policy.report(service, None);
        fetched
    }

    async fn fetch_missing(
        &self,
        service: &Arc<Service>,
        revision: &RevisionId,
        policy: &LfsPolicy,
        mut missing: Vec<LfsFile>,
    ) -> Result<bool, ServiceFailure> {
        loop {
            let Some(claim) = policy.unless_restricted(self.claim(&missing)).await else { return Ok(false) };
            // Another service may have fetched some of them.
            missing = self.missing_files(service, revision).await?;
            missing.retain(|file| claim.oids.contains(&file.pointer.oid));
            if !missing.is_empty() {
                let Some(fetched) = self.fetch_files(missing, policy).await? else { return Ok(false) };
                if let Some(failure) = self.failure_of(fetched, policy) {
                    return Err(failure);
                }
            }
            if policy.is_restricted() {
                return Ok(false);
            }
            drop(claim);
            // Files may be left after the deadline, or because another service fetches them.
            missing = self.missing_files(service, revision).await?;
            if missing.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Fetches once, with a permit and a deadline. Returns `None` if the service needs another content before the start.
    async fn fetch_files(
        &self,
        files: Vec<LfsFile>,
        policy: &LfsPolicy,
    ) -> Result<Option<LfsFetchResult>, ServiceFailure> {
        let Poller { repository, services, state, limiter } = &*self.poller;
        let Repository { name, config, source, threads, context, .. } = &**repository;
        let on_wait = |what: Option<WaitsFor>| {
            state.send_modify(|state| state.lfs.iter_mut().for_each(|lfs| lfs.waits_for = what));
        };
        let Some(permit) = policy.unless_restricted(limiter.acquire(Kind::Lfs, on_wait)).await else {
            on_wait(None);
            return Ok(None);
        };
        // Another fetch may have received it while this one waited.
        if let Some((until, reason)) = self.held_until(Instant::now()) {
            let retry_after = Some(until.saturating_duration_since(Instant::now()));
            return Err(ServiceFailure {
                retry: RetryPolicy::BackOff,
                retry_after,
                ..ServiceFailure::transient("lfs", reason)
            });
        }
        let deadline = config.borrow().poll_timeout;
        let published = context.publisher.queries.revisions(name, &BTreeSet::new()).await;
        let published = published.map_err(ServiceFailure::from);
        let (stored, reader) = (context.publisher.mirrors.stored_lfs(name).await, bundles::reader(repository));
        let (config, services) = (config.borrow().clone(), services.borrow().clone());
        let (source, limiter, mirrored) = (source.clone(), limiter.clone(), state.borrow().mirrored);
        let needed_objects = policy.needed_objects.clone();
        let job = Job::start("lfs", threads, move |stop| {
            let is_needed = |oid: &LfsOid| needed_objects.borrow().as_ref().is_none_or(|needed| needed.contains(oid));
            let request = LfsFetchRequest {
                config: &config,
                files: &files,
                mirrored,
                services: &services,
                published: &published,
                budget: &|| limiter.try_request(),
                is_needed: &is_needed,
                stored: &stored,
                read: &|part| reader.read(part, stop),
            };
            source.mirror().map_or_else(|| Ok(LfsFetchResult::default()), |mirror| mirror.fetch_lfs(&request, stop))
        });
        let mut job =
            job.map_err(|error| ServiceFailure::transient("lfs", format!("no thread can be started: {error}")))?;
        let result = tokio::time::timeout(deadline, &mut job).await;
        if result.is_err() {
            job.interrupt();
            tracing::warn!(repository = %name, seconds = deadline.as_secs(), "a fetch of LFS objects is overdue");
        }
        // Released before the thread ends, because that may take forever.
        drop(permit);
        let fetched = match result {
            Ok(fetched) => fetched,
            Err(_) => job.await,
        };
        let fetched = fetched.map_err(|panicked| repository.panicked("lfs", &panicked)).flatten();
        let mut fetched = fetched.inspect_err(|_| context.metrics.lfs_failures.inc())?;
        if fetched.interrupted && fetched.fetched == 0 && fetched.failures.is_empty() {
            let late = format!("its LFS objects could not be fetched within {} s (`poll_timeout`)", deadline.as_secs());
            fetched.failures.push(late);
        }
        Ok(Some(fetched))
    }

    fn failure_of(&self, fetched: LfsFetchResult, policy: &LfsPolicy) -> Option<ServiceFailure> {
        let LfsFetchResult { failures, retry_after, .. } = fetched;
        let others = failures.len().saturating_sub(1);
        let first = failures.into_iter().next()?;
        let reason = if others == 0 { first.clone() } else { format!("{first} (and {others} more)") };
        self.poller.repository.context.metrics.lfs_failures.inc();
        if let Some(retry_after) = retry_after {
            let until = Instant::now() + bounded_retry_after(retry_after, fastrand::f64());
            let mut claims = self.claims();
            if claims.held_until.as_ref().is_none_or(|(known, _)| *known < until) {
                claims.held_until = Some((until, first));
            }
        }
        // A newer content starts its own fetch at once.
        (!policy.is_restricted()).then(|| ServiceFailure {
            retry: RetryPolicy::BackOff,
            retry_after,
            ..ServiceFailure::transient("lfs", reason)
        })
    }

    /// The LFS files that a build needs and that are not stored.
    pub(super) async fn missing_files(
        &self,
        service: &Arc<Service>,
        revision: &RevisionId,
    ) -> Result<Vec<LfsFile>, ServiceFailure> {
        let repository = &self.poller.repository;
        let permit = self.walks.clone().acquire_owned().await.ok();
        let (source, service, revision) = (repository.source.clone(), service.clone(), revision.clone());
        let missing = move |stop: &AtomicBool| match source.mirror() {
            Some(mirror) => mirror.missing_lfs_files(&service, &revision, stop),
            None => Ok(Vec::new()),
        };
        repository.run("lfs", "lfs", permit, repository.build_timeout(), missing).await
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exclusively claimed objects. Dropping it releases them.
struct Claim<'a> {
    fetches: &'a LfsFetches,
    oids: HashSet<LfsOid>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut claims = self.fetches.claims();
        claims.claimed.retain(|oid| !self.oids.contains(oid));
        drop(claims);
        self.fetches.released.notify_waiters();
    }
}

impl LfsPolicy {
    fn report(&self, service: &Service, missing: Option<usize>) {
        if let Some(progress) = &self.progress {
            let _ = progress.send(Box::new(LfsProgress { service: service.name.clone(), missing }));
        }
    }

    fn is_restricted(&self) -> bool {
        self.needed_objects.borrow().is_some()
    }

    /// Awaits a future. Returns `None` if the service needs another content first.
    async fn unless_restricted<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut needed_objects = self.needed_objects.subscribe();
        tokio::select! {
            value = future => Some(value),
            _ = needed_objects.wait_for(Option::is_some) => None,
        }
    }
}

//! The tasks of a service's steps: resolve its ref; fetch LFS objects, build and publish its content.
//!
//! The tasks of a repository run concurrently with each other and with its polls. Dropping a task stops its current job.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Semaphore;
use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_source::{Candidate, ResolvedServices, RetryPolicy, Service, ServiceFailure};
use weir_tarball::{Built, Recipe};

use super::build::Builder;
use super::context::Context;
use super::job::{Job, JobPanicked};
use super::lfs::{LfsFetches, LfsPolicy};
use super::poll::Poller;
use crate::publish::Attempt;

/// The most contents of a repository that are being built or published. The writer of its record publishes all waiting ones
/// in one write. While the store stalls, each may have a few frames in memory.
const MAX_UNPUBLISHED: usize = 64;

/// The most versions of a repository that are being rebuilt. Waiters for rebuilds give up soon.
const MAX_REBUILDS: usize = 8;

/// What the tasks of a repository share. Clones are cheap.
#[derive(Clone)]
pub(super) struct Pipeline {
    pub(super) context: Arc<Context>,
    pub(super) poller: Arc<Poller>,
    pub(super) lfs: Arc<LfsFetches>,
    /// As many as the origin's builds, so that the services of one repository do not fill the origin's queue.
    builds: Arc<Semaphore>,
    unpublished: Arc<Semaphore>,
    pub(super) rebuilds: Arc<Semaphore>,
}

impl Pipeline {
    pub(super) fn new(context: Arc<Context>, poller: Arc<Poller>, lfs: LfsFetches) -> Self {
        let builds = Arc::new(Semaphore::new(context.concurrent_builds));
        let [unpublished, rebuilds] = [MAX_UNPUBLISHED, MAX_REBUILDS].map(|most| Arc::new(Semaphore::new(most)));
        Self { context, poller, lfs: Arc::new(lfs), builds, unpublished, rebuilds }
    }

    /// Resolves the refs of services. Few repositories do so at a time, because all mirrors are opened after a start.
    pub(super) async fn resolve(&self, services: Vec<Arc<Service>>) -> Result<ResolvedServices, ServiceFailure> {
        let permit = self.context.ref_lookups.clone().acquire_owned().await.ok();
        let (source, config) = (self.poller.source.clone(), self.poller.config.borrow().clone());
        let part_sources = self.context.part_sources.clone();
        let (composed, plain): (Vec<_>, Vec<_>) = services.into_iter().partition(|service| !service.parts.is_empty());
        let job = Job::start("resolve", &self.context.threads, move |stop| {
            let mut resolved = if plain.is_empty() { Vec::new() } else { source.resolve(&config, &plain, stop)? };
            resolved.extend(part_sources.resolve(&composed, stop));
            Ok(resolved)
        });
        self.await_job("resolve", job, permit, self.build_timeout()).await
    }

    /// Builds a candidate and publishes it. Returns false if its service needs another content meanwhile.
    pub(super) async fn build_and_publish(
        &self,
        candidate: &Candidate,
        policy: &LfsPolicy,
    ) -> Result<bool, ServiceFailure> {
        let Candidate { service, revision, parts, .. } = candidate;
        if !self.fetch_lfs(service, revision, policy).await? {
            return Ok(false);
        }
        let _unpublished = self.unpublished.acquire().await;
        let start = Instant::now();
        let published = async {
            let (built, attempt) = self.build(service, (revision, parts), true).await?;
            self.context.publisher.publish_built(candidate, built, attempt, SystemTime::now()).await?;
            service.followed(revision);
            Ok(true)
        };
        let result: Result<bool, ServiceFailure> = published.await;
        let metrics = &self.context.metrics;
        metrics.build_duration.observe(start.elapsed().as_secs_f64());
        metrics.builds.with_label_values(&[if result.is_ok() { "built" } else { "failed" }]).inc();
        result
    }

    /// Builds the content of a service at a revision, or at those of its parts, with a permit and a deadline. `reuse`: reuses frames of the current
    /// version.
    pub(super) async fn build(
        &self,
        service: &Arc<Service>,
        (revision, parts): (&RevisionId, &[Part]),
        reuse: bool,
    ) -> Result<(Built, Attempt), ServiceFailure> {
        let repository_permit = self.builds.clone().acquire_owned().await.ok();
        let permit = (repository_permit, self.context.builds.clone().acquire_owned().await.ok());
        let _shown = Building::show(self, service);
        let (builder, attempt) = (self.builder(), self.context.publisher.repositories.begin_attempt(&self.poller.name));
        // Read after the attempt began, which protects the current version's frames from garbage collection.
        let recipe = if reuse { self.recipe(service).await } else { None };
        let deadline = self.build_timeout().min(attempt.longest());
        let (service, runtime) = (service.clone(), tokio::runtime::Handle::current());
        let (revision, parts) = (revision.clone(), parts.to_vec());
        let job = Job::start(&format!("build {}", service.name), &self.context.threads, move |stop| {
            let built = builder.build(&service, (&revision, &parts), recipe, &attempt, &runtime, stop)?;
            Ok((built, attempt))
        });
        self.await_job("build", job, permit, deadline).await
    }

    /// The recipe of the current version.
    async fn recipe(&self, service: &Service) -> Option<Recipe> {
        let read = Recipe::parse(&self.context.publisher.queries.recipe(service).await?);
        read.inspect_err(
            |error| tracing::warn!(service = %service.name, %error, "the recipe cannot be read: no frames are reused"),
        )
        .ok()
    }

    fn builder(&self) -> Builder {
        let Context { publisher, data_dir, metrics, build, part_sources, .. } = &*self.context;
        Builder {
            source: self.poller.source.clone(),
            part_sources: part_sources.clone(),
            publisher: publisher.clone(),
            options: *build,
            data_dir: data_dir.clone(),
            metrics: metrics.clone(),
        }
    }

    pub(super) fn build_timeout(&self) -> Duration {
        self.poller.config.borrow().build_timeout
    }

    /// Awaits a job. At the deadline it is signalled to stop and its permit is released. It is still awaited, because a service
    /// never has two builds.
    pub(super) async fn await_job<T: Send + 'static, P>(
        &self,
        step: &'static str,
        job: io::Result<Job<Result<T, ServiceFailure>>>,
        permit: P,
        deadline: Duration,
    ) -> Result<T, ServiceFailure> {
        let mut job =
            job.map_err(|error| ServiceFailure::transient(step, format!("no thread can be started: {error}")))?;
        if let Ok(ended) = tokio::time::timeout(deadline, &mut job).await {
            return ended.map_err(|panicked| self.panicked(step, &panicked))?;
        }
        job.interrupt();
        drop(permit);
        tracing::warn!(repository = %self.poller.name, step, seconds = deadline.as_secs(), "a job is overdue");
        let late = |_| {
            let reason = format!("it took longer than {} s", deadline.as_secs());
            ServiceFailure { retry: RetryPolicy::BackOff, ..ServiceFailure::transient(step, reason) }
        };
        (&mut job).await.map_err(|panicked| self.panicked(step, &panicked))?.map_err(late)
    }

    /// The failure of a job that panicked, maybe because the mirror is damaged.
    pub(super) fn panicked(&self, step: &'static str, panicked: &JobPanicked) -> ServiceFailure {
        if let Some(mirror) = self.poller.source.mirror() {
            mirror.suspect_damage(Instant::now());
        }
        ServiceFailure::transient(step, panicked.to_string())
    }
}

/// Shows a running build in the repository's state.
struct Building<'a> {
    pipeline: &'a Pipeline,
    service: &'a Service,
}

impl<'a> Building<'a> {
    fn show(pipeline: &'a Pipeline, service: &'a Service) -> Self {
        pipeline.poller.state.send_modify(|state| state.building.push(service.name.clone()));
        Self { pipeline, service }
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.pipeline.poller.state.send_modify(|state| {
            let at = state.building.iter().position(|name| *name == self.service.name);
            at.map(|at| state.building.remove(at));
        });
    }
}

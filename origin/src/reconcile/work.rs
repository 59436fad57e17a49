//! The steps that bring a service to where its ref is: resolve, fetch LFS objects, build, publish.
//!
//! Works of one repository run beside each other and beside its polls. Each is a task; dropped, its step is told to stop.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Semaphore;
use weir_protocol::commit_id::CommitId;

use super::build::Builder;
use super::context::Context;
use super::job::{Job, JobPanicked};
use super::lfs::{Ask, LfsFetches};
use super::poll::Poller;
use crate::publish::{Attempt, Candidate};
use crate::service::Service;
use crate::source::{ResolvedServices, RetryPolicy, ServiceFailure};
use crate::tarball::{Built, Recipe};

/// Contents of a repository that are built or being published: the writer of its record puts all that wait into one write.
/// While the store stalls, each may hold a few frames in memory.
const MAX_UNPUBLISHED: usize = 64;

/// Versions of a repository that are rebuilt, or looked at for that, at a time.
const MAX_REBUILDS: usize = 8;

/// What the works of a repository share. Cheap to clone.
#[derive(Clone)]
pub(super) struct Work {
    pub(super) context: Arc<Context>,
    pub(super) poller: Arc<Poller>,
    pub(super) lfs: Arc<LfsFetches>,
    /// As many as build in the whole origin: the services of one repository are not a longer line than those of another.
    builds: Arc<Semaphore>,
    unpublished: Arc<Semaphore>,
    /// Versions that are rebuilt at a time: few, because who waits for one gives up soon.
    pub(super) rebuilds: Arc<Semaphore>,
}

impl Work {
    pub(super) fn new(context: Arc<Context>, poller: Arc<Poller>, lfs: LfsFetches) -> Self {
        let builds = Arc::new(Semaphore::new(context.concurrent_builds));
        let [unpublished, rebuilds] = [MAX_UNPUBLISHED, MAX_REBUILDS].map(|most| Arc::new(Semaphore::new(most)));
        Self { context, poller, lfs: Arc::new(lfs), builds, unpublished, rebuilds }
    }

    /// Finds out where the refs of services are, among the few look-ups at a time: after a start all mirrors are opened.
    pub(super) async fn resolve(&self, services: Vec<Arc<Service>>) -> Result<ResolvedServices, ServiceFailure> {
        let permit = self.context.ref_lookups.clone().acquire_owned().await.ok();
        let (source, config) = (self.poller.source.clone(), self.poller.config.borrow().clone());
        let job = Job::start("resolve", &self.context.threads, move |stop| source.resolve(&config, &services, stop));
        self.awaited("resolve", job, permit, self.build_timeout()).await
    }

    /// Builds a candidate and publishes it. False: its service has moved on to another content meanwhile.
    pub(super) async fn publish(&self, candidate: &Candidate, ask: &Ask) -> Result<bool, ServiceFailure> {
        let Candidate { service, commit, .. } = candidate;
        if !self.fetch_lfs(service, commit, ask).await? {
            return Ok(false);
        }
        let _unpublished = self.unpublished.acquire().await;
        let begun = Instant::now();
        let published = async {
            let (built, attempt) = self.build(service, commit, true).await?;
            self.context.publisher.publish_built(candidate, built, attempt, SystemTime::now()).await?;
            service.followed(commit);
            Ok(true)
        };
        let result: Result<bool, ServiceFailure> = published.await;
        let metrics = &self.context.metrics;
        metrics.build_duration.observe(begun.elapsed().as_secs_f64());
        metrics.builds.with_label_values(&[if result.is_ok() { "built" } else { "failed" }]).inc();
        result
    }

    /// Builds the content of a service at a commit, among the few builds at a time. `reuse`: with frames of the version that
    /// it has.
    pub(super) async fn build(
        &self,
        service: &Arc<Service>,
        commit: &CommitId,
        reuse: bool,
    ) -> Result<(Built, Attempt), ServiceFailure> {
        let of_the_repository = self.builds.clone().acquire_owned().await.ok();
        let permit = (of_the_repository, self.context.builds.clone().acquire_owned().await.ok());
        let _shown = Building::show(self, service);
        let (builder, attempt) = (self.builder(), self.context.publisher.begin_attempt(&self.poller.name));
        // After the attempt began: what is referred to then is there for longer than it may take.
        let recipe = if reuse { self.recipe(service).await } else { None };
        let deadline = self.build_timeout().min(attempt.longest());
        let (of, at, runtime) = (service.clone(), commit.clone(), tokio::runtime::Handle::current());
        let job = Job::start(&format!("build {}", service.name), &self.context.threads, move |stop| {
            let built = builder.build(&of, &at, recipe, &attempt, &runtime, stop)?;
            Ok((built, attempt))
        });
        self.awaited("build", job, permit, deadline).await
    }

    /// The recipe of what a service has.
    async fn recipe(&self, service: &Service) -> Option<Recipe> {
        let read = Recipe::parse(&self.context.publisher.recipe(service).await?);
        read.inspect_err(|error| tracing::warn!(service = %service.name, %error, "nothing is reused")).ok()
    }

    /// What a build works with.
    fn builder(&self) -> Builder {
        let Context { publisher, data_dir, metrics, build, .. } = &*self.context;
        Builder {
            source: self.poller.source.clone(),
            publisher: publisher.clone(),
            options: *build,
            data_dir: data_dir.clone(),
            metrics: metrics.clone(),
        }
    }

    pub(super) fn build_timeout(&self) -> Duration {
        self.poller.config.borrow().build_timeout
    }

    /// Awaits a job. At the deadline it is told to stop, and its permit is given to others; it is awaited still, because
    /// there are never two works of one service.
    pub(super) async fn awaited<T: Send + 'static, P>(
        &self,
        step: &'static str,
        job: io::Result<Job<Result<T, ServiceFailure>>>,
        permit: P,
        deadline: Duration,
    ) -> Result<T, ServiceFailure> {
        let mut job =
            job.map_err(|error| ServiceFailure::transient(step, format!("no thread can be started: {error}")))?;
        if let Ok(ended) = tokio::time::timeout(deadline, &mut job).await {
            return ended.map_err(|fault| self.fault(step, &fault))?;
        }
        job.interrupt();
        drop(permit);
        tracing::warn!(repository = %self.poller.name, step, seconds = deadline.as_secs(), "a build is overdue");
        let late = |_| {
            let reason = format!("it took longer than {} s", deadline.as_secs());
            ServiceFailure { retry: RetryPolicy::BackOff, ..ServiceFailure::transient(step, reason) }
        };
        (&mut job).await.map_err(|fault| self.fault(step, &fault))?.map_err(late)
    }

    /// What panics may have come upon a pack that is cut short.
    pub(super) fn fault(&self, step: &'static str, fault: &JobPanicked) -> ServiceFailure {
        self.poller.source.suspect_damage(Instant::now());
        ServiceFailure::transient(step, fault.to_string())
    }
}

/// A build under way, as others see it.
struct Building<'a> {
    work: &'a Work,
    service: &'a Service,
}

impl<'a> Building<'a> {
    fn show(work: &'a Work, service: &'a Service) -> Self {
        work.poller.state.send_modify(|state| state.building.push(service.name.clone()));
        Self { work, service }
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.work.poller.state.send_modify(|state| {
            let at = state.building.iter().position(|name| *name == self.service.name);
            at.map(|at| state.building.remove(at));
        });
    }
}

//! The tasks of a service's steps: resolve its ref; fetch LFS objects, build and publish its content.
//!
//! The tasks of a repository run concurrently with each other and with its polls. Dropping a task stops its current job.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime};

use tokio::sync::{Semaphore, watch};
use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_publish::{Attempt, Outcome, PastQuery, PublishError};
use weir_source::{Candidate, ResolvedServices, Service, ServiceFailure};
use weir_tarball::{Built, Recipe};

use super::build;
use super::context::Context;
use super::lfs::{LfsFetches, LfsPolicy};
use super::poll::Poller;
use super::repository::Repository;
use super::state::RepositoryState;

/// The most contents of a repository that are being built or published. The writer of its record publishes all waiting ones
/// in one write. While the store stalls, each may have a few frames in memory.
const MAX_UNPUBLISHED: usize = 64;

/// Runs the steps of a repository's services. Clones are cheap.
#[derive(Clone)]
pub(super) struct Pipeline {
    pub(super) repository: Arc<Repository>,
    pub(super) state: Arc<watch::Sender<RepositoryState>>,
    pub(super) lfs: Arc<LfsFetches>,
    /// See [`Repository::builds`].
    builds: Arc<Semaphore>,
    unpublished: Arc<Semaphore>,
}

impl Pipeline {
    /// `lfs_held_until`: the end of the LFS server's `Retry-After`, which a predecessor received.
    pub(super) fn new(poller: Arc<Poller>, lfs_held_until: Option<Instant>) -> Self {
        let (repository, state) = (poller.repository.clone(), poller.state.clone());
        let builds = Arc::new(Semaphore::new(repository.builds()));
        let unpublished = Arc::new(Semaphore::new(MAX_UNPUBLISHED));
        Self { repository, state, lfs: Arc::new(LfsFetches::new(poller, lfs_held_until)), builds, unpublished }
    }

    /// Resolves the refs of services. Few repositories do so at a time, because all mirrors are opened after a start.
    pub(super) async fn resolve(&self, services: Vec<Arc<Service>>) -> Result<ResolvedServices, ServiceFailure> {
        let Context { ref_lookups, part_sources, .. } = &self.repository.context;
        let (composed, plain): (Vec<_>, Vec<_>) = services.into_iter().partition(|service| !service.parts.is_empty());
        // Before the permit: the store may be slow.
        let versions = part_sources.versions(&composed).await;
        let permit = ref_lookups.clone().acquire_owned().await.ok();
        let (source, config) = (self.repository.source.clone(), self.repository.config.borrow().clone());
        let part_sources = part_sources.clone();
        let resolve = move |stop: &AtomicBool| {
            let mut resolved = if plain.is_empty() { Vec::new() } else { source.resolve(&config, &plain, stop)? };
            resolved.extend(part_sources.resolve(&composed, &versions, stop));
            Ok(resolved)
        };
        let timeout = self.repository.build_timeout();
        let mut resolved = self.repository.run("resolve", "resolve", permit, timeout, resolve).await?;
        self.compare_with_history(&mut resolved).await;
        Ok(resolved)
    }

    /// Says of which candidates the history has the revision before the current one.
    async fn compare_with_history(&self, resolved: &mut ResolvedServices) {
        let found = resolved.iter_mut().filter_map(|(_, found)| found.as_mut().ok());
        let is_moved = |candidate: &&mut Candidate| {
            let last = candidate.service.last_revision();
            // Of a composed service, each part that is behind counts.
            let is_unknown = candidate.age.behind.is_none() || !candidate.parts.is_empty();
            is_unknown && last.is_some_and(|last| last != candidate.revision)
        };
        let mut moved: Vec<&mut Candidate> = found.filter(is_moved).collect();
        if moved.is_empty() {
            return;
        }
        let Repository { name, context, .. } = &*self.repository;
        let positions = match context.publisher.queries.positions(name).await {
            Ok(positions) => positions,
            // It must not wait for what may never be known.
            Err(error) => {
                return tracing::warn!(repository = %name, %error, "whether a ref steps back cannot be read from the history");
            }
        };
        let refs: Vec<String> = moved.iter().map(|candidate| candidate.service.followed.to_string()).collect();
        let queries = moved.iter().zip(&refs).map(|(Candidate { service, revision, parts, .. }, followed_ref)| {
            PastQuery { service: &service.name, followed_ref, revision, parts }
        });
        let past = positions.past(queries);
        moved.iter_mut().zip(past).for_each(|(candidate, past)| candidate.followed_before(past.whole, &past.parts));
    }

    /// Builds a candidate and publishes it. Returns false if its service needs another content meanwhile.
    pub(super) async fn build_and_publish(
        &self,
        candidate: &Candidate,
        policy: &LfsPolicy,
    ) -> Result<bool, ServiceFailure> {
        let Candidate { service, revision, .. } = candidate;
        if !self.lfs.fetch(service, revision, policy).await? {
            return Ok(false);
        }
        let metrics = &self.repository.context.metrics;
        let _unpublished = self.unpublished.acquire().await;
        let start = Instant::now();
        let published = async {
            let mut published = self.publish(candidate, true).await?;
            if let Err(error @ PublishError::LostFrame(_)) = &published {
                tracing::warn!(service = %service.name, %error, "all frames are built again");
                published = self.publish(candidate, false).await?;
            }
            published?;
            candidate.followed();
            Ok(true)
        };
        let result: Result<bool, ServiceFailure> = published.await;
        metrics.build_duration.observe(start.elapsed().as_secs_f64());
        metrics.builds.with_label_values(&[if result.is_ok() { "built" } else { "failed" }]).inc();
        result
    }

    /// Builds a candidate and publishes it. `reuse`: as for a build.
    async fn publish(
        &self,
        candidate: &Candidate,
        reuse: bool,
    ) -> Result<Result<Outcome, PublishError>, ServiceFailure> {
        let Candidate { service, revision, parts, .. } = candidate;
        let (built, attempt) = self.build(service, (revision, parts), reuse).await?;
        let publisher = &self.repository.context.publisher;
        Ok(publisher.publish_built(candidate, built, attempt, SystemTime::now()).await)
    }

    /// Builds the content of a service at a revision, or at those of its parts, with a permit and a deadline. `reuse`: reuses frames of the current
    /// version.
    pub(super) async fn build(
        &self,
        service: &Arc<Service>,
        (revision, parts): (&RevisionId, &[Part]),
        reuse: bool,
    ) -> Result<(Built, Attempt), ServiceFailure> {
        let Context { builds, publisher, .. } = &self.repository.context;
        let repository_permit = self.builds.clone().acquire_owned().await.ok();
        let permit = (repository_permit, builds.clone().acquire_owned().await.ok());
        let _shown = Building::show(&self.state, service);
        let attempt = publisher.repositories.begin_attempt(&self.repository.name);
        // Read after the attempt began, which protects the current version's frames from garbage collection.
        let recipe = if reuse { self.recipe(service).await } else { None };
        let deadline = self.repository.build_timeout().min(attempt.longest());
        let (thread, service, runtime) =
            (format!("build {}", service.name), service.clone(), tokio::runtime::Handle::current());
        let (repository, revision, parts) = (self.repository.clone(), revision.clone(), parts.to_vec());
        let build = move |stop: &AtomicBool| {
            let built = build::build(&repository, &service, (&revision, &parts), recipe, &attempt, &runtime, stop)?;
            Ok((built, attempt))
        };
        self.repository.run("build", &thread, permit, deadline, build).await
    }

    /// The recipe of the current version.
    async fn recipe(&self, service: &Service) -> Option<Recipe> {
        let read = Recipe::parse(&self.repository.context.publisher.queries.recipe(service).await?);
        read.inspect_err(
            |error| tracing::warn!(service = %service.name, %error, "the recipe cannot be read: no frames are reused"),
        )
        .ok()
    }
}

/// Shows a running build in the repository's state.
struct Building<'a> {
    state: &'a watch::Sender<RepositoryState>,
    service: &'a Service,
}

impl<'a> Building<'a> {
    fn show(state: &'a watch::Sender<RepositoryState>, service: &'a Service) -> Self {
        let now = SystemTime::now();
        state.send_modify(|state| state.building.push((service.name.clone(), now)));
        Self { state, service }
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.state.send_modify(|state| {
            let at = state.building.iter().position(|(name, _)| *name == self.service.name);
            at.map(|at| state.building.remove(at));
        });
    }
}

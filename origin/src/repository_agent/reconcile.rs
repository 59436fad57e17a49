//! Bringing services to where their refs are: publish what is cached, build what is not.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio_util::task::AbortOnDropHandle;
use weir_shared::commit_id::CommitId;
use weir_shared::event::EventKind;
use weir_shared::revision_id::RevisionId;

use super::build::{Again, Builder, Resolved, ServiceFailure, resolve};
use super::context::Context;
use super::job::{Job, JobFault};
use super::lfs::Who;
use super::state::Phase;
use super::task::Task;
use crate::publish::{Attempt, Cached, Candidate};
use crate::service::Service;
use crate::tarball::{Built, Recipe};

/// Contents that are being published while the next one is built: the writer of the record puts all that wait into one
/// write. While the store stalls, each may hold a few frames in memory.
const MAX_PUBLISHING: usize = 64;

/// Contents that were built and are being published, and how that went. Each is a task, so that it goes on while another one
/// is built.
type Publishing = FuturesUnordered<BoxFuture<'static, (Candidate, Result<(), ServiceFailure>)>>;

/// What a look at a service found.
pub(super) enum Found {
    /// This is published, now or since before, or would be if the service were not pinned.
    Settled(CommitId),
    /// This must be built.
    ToBuild(Candidate),
}

impl Task {
    /// Brings services to where their refs are. `suppress_errors`: the upstream is not asked, and a failure is kept
    /// to ourselves, because a poll follows.
    pub(super) async fn reconcile(&mut self, services: &[Arc<Service>], suppress_errors: bool) {
        let mut looked = match self.look(services).await {
            Ok(looked) => looked,
            Err(failure) => services.iter().map(|service| (service.clone(), Err(failure.clone()))).collect(),
        };
        // Who failed before comes last: it must not be in the way of the others each time.
        looked.sort_by_key(|(service, _)| service.is_unhealthy());
        let mut publishing = Publishing::new();
        for (service, found) in looked {
            self.lfs.wanted.waits_no_more(&Who::Service(service.name.clone()));
            let result = match found {
                Ok(Found::Settled(commit)) => {
                    service.followed(&commit);
                    Ok(Some(commit))
                }
                Ok(Found::ToBuild(candidate)) => {
                    match self.back_offs.why_not(&service.name, &candidate.key, Instant::now()) {
                        Some(failure) => Err(failure),
                        None => self.build(candidate, !suppress_errors, &mut publishing).await.map(|()| None),
                    }
                }
                Err(failure) => Err(failure),
            };
            self.settle(&service, result, suppress_errors);
            self.settle_published(&mut publishing, MAX_PUBLISHING, suppress_errors).await;
        }
        self.settle_published(&mut publishing, 0, suppress_errors).await;
        self.settle_lfs();
        self.mend_mirror();
        self.report_revisions();
    }

    /// Notes the publications that have ended, and waits until no more than so many are under way.
    async fn settle_published(&mut self, publishing: &mut Publishing, at_most: usize, suppress_errors: bool) {
        loop {
            let is_full = publishing.len() > at_most;
            let next = publishing.next();
            let ended = if is_full { next.await } else { next.now_or_never().flatten() };
            let Some((Candidate { service, commit, key }, result)) = ended else { return };
            if let Err(failure) = &result {
                let (interval, now) = (self.config.poll_interval, Instant::now());
                self.back_offs.failed(&service.name, key, failure, interval, now, fastrand::f64());
            }
            self.settle(&service, result.map(|()| Some(commit)), suppress_errors);
        }
    }

    /// Notes what a service is at (none: that will be known later), and whether it must be looked at again though nothing
    /// moves.
    fn settle(&mut self, service: &Service, result: Result<Option<CommitId>, ServiceFailure>, suppress_errors: bool) {
        let settled_at = result.as_ref().ok().and_then(Option::as_ref).map(RevisionId::from);
        self.revisions.settle(&service.name, settled_at);
        self.needs_reconcile.remove(&service.name);
        match result {
            Ok(Some(_)) => self.back_offs.forget(&service.name),
            Ok(None) => {}
            Err(failure) => {
                let who = Who::Service(service.name.clone());
                let waits = failure.again == Again::Never || self.lfs.wanted.is_waited_for_by(&who);
                if !suppress_errors {
                    let reason = self.context.data_dir.redact(&failure.reason);
                    service.mark_failed(failure.step, reason, SystemTime::now());
                }
                if suppress_errors || !waits {
                    self.needs_reconcile.insert(service.name.clone());
                }
            }
        }
    }

    /// Tells edges up to which revision the published content of each ref is right, when that changed.
    pub(super) fn report_revisions(&mut self) {
        let services = self.services.iter().filter(|service| !service.is_withdrawn());
        let changed = self.revisions.update(services.map(|service| (&service.name, service.revision.to_string())));
        for seen in changed {
            self.context.log.append(EventKind::Revision(seen));
        }
        self.seen.send_replace(self.revisions.all());
    }

    /// A mirror that was found damaged is set aside by the next poll: soon.
    pub(super) fn mend_mirror(&mut self) {
        let now = Instant::now();
        if self.mirror.wants_poll(now) {
            self.schedule.kick(now);
        }
    }

    /// Looks where services are, and publishes what needs no build.
    pub(super) async fn look(
        &self,
        services: &[Arc<Service>],
    ) -> Result<Vec<(Arc<Service>, Result<Found, ServiceFailure>)>, ServiceFailure> {
        let (mirror, reach, of, policy) =
            (self.mirror.clone(), self.reach.clone(), services.to_vec(), self.policy.clone());
        let job = Job::begin("resolve", &self.context.threads, move |stop| {
            resolve(&mirror, &reach, &of, policy.as_deref(), stop)
        });
        let resolved: Resolved = self.awaited("resolve", job, (), self.config.build_timeout).await?;
        let candidates: Vec<Candidate> =
            resolved.iter().filter_map(|(_, found)| found.as_ref().ok().cloned()).collect();
        let publisher = &self.context.publisher;
        let cached = publisher.publish_cached(&self.config.name, &candidates, SystemTime::now()).await?;
        let mut cached = cached.into_iter();
        let found = resolved.into_iter().map(|(service, found)| {
            let found = found.and_then(|candidate| match cached.next() {
                Some(Cached::Settled) => Ok(Found::Settled(candidate.commit)),
                Some(Cached::ToBuild) | None => Ok(Found::ToBuild(candidate)),
                Some(Cached::Refused(error)) => Err(error.into()),
            });
            (service, found)
        });
        Ok(found.collect())
    }

    /// Builds a candidate, and begins to publish it. Where its service is, is known when that has ended, or after it waited
    /// for LFS objects.
    async fn build(
        &mut self,
        candidate: Candidate,
        may_ask: bool,
        publishing: &mut Publishing,
    ) -> Result<(), ServiceFailure> {
        let Candidate { service, commit, .. } = &candidate;
        if !self.has_lfs(Who::Service(service.name.clone()), service, commit, may_ask).await? {
            return Ok(());
        }
        let begun = Instant::now();
        let built = self.built(service, commit, true).await;
        let (of, publisher, metrics) =
            (candidate.clone(), self.context.publisher.clone(), self.context.metrics.clone());
        let publish = async move {
            let published = async {
                let (built, attempt) = built?;
                publisher.publish_built(&of, built, attempt, SystemTime::now()).await?;
                of.service.followed(&of.commit);
                Ok::<_, ServiceFailure>(())
            };
            let result = published.await;
            metrics.build_duration.observe(begun.elapsed().as_secs_f64());
            metrics.builds.with_label_values(&[if result.is_ok() { "built" } else { "failed" }]).inc();
            result
        };
        let publish = AbortOnDropHandle::new(tokio::spawn(self.context.threads.counted(publish)));
        publishing.push(Box::pin(async move {
            let fault = |_| Err(ServiceFailure::passing("store", JobFault.to_string()));
            (candidate, publish.await.unwrap_or_else(fault))
        }));
        Ok(())
    }

    /// The recipe of what a service has.
    async fn recipe(&self, service: &Service) -> Option<Recipe> {
        let read = Recipe::parse(&self.context.publisher.recipe(service).await?);
        read.inspect_err(|error| tracing::warn!(service = %service.name, %error, "nothing is reused")).ok()
    }

    /// Builds the content of a service at a commit, among the few builds at a time. `reuse`: with frames of the version that
    /// it has.
    pub(super) async fn built(
        &self,
        service: &Arc<Service>,
        commit: &CommitId,
        reuse: bool,
    ) -> Result<(Built, Attempt), ServiceFailure> {
        let permit = self.context.builds.clone().acquire_owned().await.ok();
        let before = self.state.borrow().phase.clone();
        self.state.send_modify(|state| state.phase = Phase::Building { service: service.name.clone() });
        let (builder, attempt) = (self.builder(), self.context.publisher.begin_attempt(&self.config.name));
        // After the attempt began: what is referred to then is there for longer than it may take.
        let recipe = if reuse { self.recipe(service).await } else { None };
        let deadline = self.config.build_timeout.min(attempt.longest());
        let (of, at, runtime) = (service.clone(), commit.clone(), tokio::runtime::Handle::current());
        let job = Job::begin(&format!("build {}", service.name), &self.context.threads, move |stop| {
            let built = builder.build(&of, &at, recipe, &attempt, &runtime, stop)?;
            Ok((built, attempt))
        });
        let result = self.awaited("build", job, permit, deadline).await;
        self.state.send_modify(|state| state.phase = before);
        result
    }

    /// What a job works with.
    pub(super) fn builder(&self) -> Builder {
        let Context { publisher, data_dir, metrics, build: options, .. } = self.context.clone();
        Builder { mirror: self.mirror.clone(), publisher, options, data_dir, metrics }
    }

    /// Awaits a job. At the deadline it is told to stop, and its permit is given to others; it is awaited still, because
    /// there are never two builds of one repository.
    pub(super) async fn awaited<T: Send + 'static, P>(
        &self,
        step: &'static str,
        job: io::Result<Job<Result<T, ServiceFailure>>>,
        permit: P,
        deadline: Duration,
    ) -> Result<T, ServiceFailure> {
        let mut job =
            job.map_err(|error| ServiceFailure::passing(step, format!("no thread can be started: {error}")))?;
        let fault = |fault: JobFault| {
            // What panics may have come upon a pack that is cut short.
            self.mirror.trouble(Instant::now());
            ServiceFailure::passing(step, fault.to_string())
        };
        if let Ok(ended) = tokio::time::timeout(deadline, &mut job).await {
            return ended.map_err(fault)?;
        }
        job.interrupt();
        drop(permit);
        tracing::warn!(repository = %self.config.name, step, seconds = deadline.as_secs(), "a build is overdue");
        self.state.send_modify(|state| state.phase = Phase::Overdue);
        let late = |_| {
            let reason = format!("it took longer than {} s", deadline.as_secs());
            ServiceFailure { again: Again::Later, ..ServiceFailure::passing(step, reason) }
        };
        (&mut job).await.map_err(fault)?.map_err(late)
    }
}

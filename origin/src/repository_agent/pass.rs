//! A pass over a repository's services: publish what is known, build what is not.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use weir_shared::commit_id::CommitId;

use super::build::{Again, Found, ServiceFailure, Survey, Workshop, survey};
use super::job::{Job, JobFault};
use super::lfs::Who;
use super::state::Phase;
use super::task::Task;
use crate::publisher::Sighting;
use crate::service::Service;

impl Task {
    /// Brings services to where their refs are. `quietly`: the upstream is not asked, and a failure is kept
    /// to ourselves, because a poll follows.
    pub(super) async fn pass(&mut self, services: &[Arc<Service>], quietly: bool) {
        let mut looked = match self.survey(services).await {
            Ok(looked) => looked,
            Err(failure) => services.iter().map(|service| (service.clone(), Err(failure.clone()))).collect(),
        };
        // Who failed before comes last: it must not be in the way of the others each time.
        looked.sort_by_key(|(service, _)| service.is_unhealthy());
        let mut unsettled = false;
        for (service, found) in looked {
            let who = Who::Service(service.name.clone());
            self.lfs.wanted.waits_no_more(&who);
            self.crew.publisher.look_for_lost(&service);
            let result = match found {
                Ok(Found::Settled(commit)) => Ok(Some(commit)),
                Ok(Found::ToBuild(seen)) => match self.setbacks.why_not(&service.name, &seen.key, Instant::now()) {
                    Some(failure) => Err(failure),
                    None => self.build(seen, !quietly).await,
                },
                Err(failure) => Err(failure),
            };
            match result {
                Ok(Some(commit)) => {
                    self.setbacks.forget(&service.name);
                    service.followed(&commit);
                    // What it is pinned to may be there again by the next poll, whether or not anything moves.
                    unsettled |= service.condition().lost().is_some();
                }
                // It is looked at again when they were asked for.
                Ok(None) => {}
                Err(failure) => {
                    unsettled |= quietly || !(failure.again == Again::Never || self.lfs.wanted.is_waited_for_by(&who));
                    if !quietly {
                        service.fell_ill(failure.step, self.crew.data_dir.redact(&failure.reason), SystemTime::now());
                    }
                }
            }
        }
        self.settle_lfs();
        let all = services.len() == self.services.len();
        self.unsettled = unsettled || (self.unsettled && !all);
        self.mend_mirror();
        self.crew.census.count();
        self.crew.published.notify_one();
    }

    /// A mirror that was found damaged is set aside by the next poll: soon.
    pub(super) fn mend_mirror(&mut self) {
        let now = Instant::now();
        if self.mirror.wants_poll(now) {
            self.schedule.kick(now);
        }
    }

    async fn survey(&self, services: &[Arc<Service>]) -> Result<Survey, ServiceFailure> {
        let (mirror, publisher) = (self.mirror.clone(), self.crew.publisher.clone());
        let (reach, services, policy) = (self.reach.clone(), services.to_vec(), self.policy.clone());
        let job = Job::begin("survey", &self.crew.threads, move |stop| {
            survey(&mirror, &publisher, &reach, &services, policy.as_deref(), stop)
        });
        self.awaited("resolve", job, (), self.config.build_timeout).await
    }

    /// Builds and publishes what was seen. The commit; none: it waits for LFS objects.
    async fn build(&mut self, seen: Sighting, may_ask: bool) -> Result<Option<CommitId>, ServiceFailure> {
        let (service, key, commit) = (seen.service.clone(), seen.key, seen.commit.clone());
        if !self.has_lfs(Who::Service(service.name.clone()), &service, &commit, may_ask).await? {
            return Ok(None);
        }
        let begun = Instant::now();
        let result = self.at_the_workshop(&service, move |workshop, stop| workshop.build(&seen, stop)).await;
        self.crew.metrics.build_duration.observe(begun.elapsed().as_secs_f64());
        let label = if result.is_ok() { "built" } else { "failed" };
        self.crew.metrics.builds.with_label_values(&[label]).inc();
        if let Err(failure) = &result {
            let (interval, now) = (self.config.poll_interval, Instant::now());
            self.setbacks.failed(&service.name, key, failure, interval, now, fastrand::f64());
        }
        result.map(|()| Some(commit))
    }

    /// Does a build, among the few that are done at a time.
    pub(super) async fn at_the_workshop<T: Send + 'static>(
        &self,
        service: &Arc<Service>,
        work: impl FnOnce(&Workshop, &AtomicBool) -> Result<T, ServiceFailure> + Send + 'static,
    ) -> Result<T, ServiceFailure> {
        let permit = self.crew.builds.clone().acquire_owned().await.ok();
        let before = self.state.borrow().phase.clone();
        self.state.send_modify(|state| state.phase = Phase::Building { service: service.name.clone() });
        let workshop = self.workshop();
        let job = Job::begin(&format!("build {}", service.name), &self.crew.threads, move |stop| work(&workshop, stop));
        let result = self.awaited("build", job, permit, self.config.build_timeout).await;
        self.state.send_modify(|state| state.phase = before);
        result
    }

    /// What a job works with.
    pub(super) fn workshop(&self) -> Workshop {
        let (mirror, publisher) = (self.mirror.clone(), self.crew.publisher.clone());
        Workshop { mirror, publisher, options: self.crew.build, metrics: self.crew.metrics.clone() }
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

//! A pass over a repository's services: publish what is known, build what is not.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use super::build::{Found, ServiceFailure, Survey, Workshop, survey};
use super::job::{Job, JobFault};
use super::state::Phase;
use super::task::Task;
use crate::publisher::Sighting;
use crate::service::Service;

impl Task {
    /// Brings services to where their refs are. `quietly`: the upstream is not asked, and a failure is kept
    /// to ourselves, because a poll follows.
    pub(super) async fn pass(&mut self, services: &[Arc<Service>], quietly: bool) {
        let looked = match self.survey(services).await {
            Ok(looked) => looked,
            Err(failure) => services.iter().map(|service| (service.clone(), Err(failure.clone()))).collect(),
        };
        let mut unsettled = false;
        for (service, found) in looked {
            let result = match found {
                Ok(Found::Settled(commit)) => Ok(commit),
                Ok(Found::ToBuild(seen)) => match self.hopeless.get(&service.name) {
                    Some((failed, failure)) if *failed == seen.key => Err(failure.clone()),
                    _ => {
                        let commit = seen.commit.clone();
                        self.build(seen, !quietly).await.map(|()| commit)
                    }
                },
                Err(failure) => Err(failure),
            };
            match result {
                Ok(commit) => {
                    self.hopeless.remove(&service.name);
                    service.followed(&commit);
                }
                Err(failure) => {
                    unsettled |= quietly || !failure.lasting;
                    if !quietly {
                        service.fell_ill(failure.step, self.crew.data_dir.redact(&failure.reason), SystemTime::now());
                    }
                }
            }
        }
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

    async fn build(&mut self, seen: Sighting, may_ask: bool) -> Result<(), ServiceFailure> {
        let begun = Instant::now();
        let (service, key) = (seen.service.clone(), seen.key);
        let result = match self.fetch_lfs(&service, &seen.commit, may_ask).await {
            Ok(()) => self.at_the_workshop(&service, move |workshop, stop| workshop.build(&seen, stop)).await,
            Err(failure) => Err(failure),
        };
        self.crew.metrics.build_duration.observe(begun.elapsed().as_secs_f64());
        let label = if result.is_ok() { "built" } else { "failed" };
        self.crew.metrics.builds.with_label_values(&[label]).inc();
        if let Err(failure) = &result
            && failure.lasting
        {
            self.hopeless.insert(service.name.clone(), (key, failure.clone()));
        }
        result
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
        let late = |_| ServiceFailure::passing(step, format!("it took longer than {} s", deadline.as_secs()));
        (&mut job).await.map_err(fault)?.map_err(late)
    }
}

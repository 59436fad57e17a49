//! What the tasks of one repository share, and its handle too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_source::{RetryPolicy, Service, ServiceFailure, Source};
use weir_upstream::RepositoryConfig;

use super::context::Context;
use super::job::{Job, JobPanicked};
use super::signals::WorkerSignals;
use super::threads::Threads;

/// The services that a worker publishes.
pub(super) type Services = BTreeMap<ServiceName, Arc<Service>>;

/// What the tasks of one repository share.
pub(super) struct Repository {
    pub(super) name: RepositoryName,
    /// Read when a task starts.
    pub(super) config: watch::Receiver<Arc<RepositoryConfig>>,
    pub(super) source: Arc<Source>,
    pub(super) signals: WorkerSignals,
    /// The threads of its jobs.
    pub(super) threads: Threads,
    pub(super) context: Context,
}

impl Repository {
    pub(super) fn open(context: &Context, config: watch::Receiver<Arc<RepositoryConfig>>) -> Self {
        let current = config.borrow().clone();
        Self {
            name: current.name.clone(),
            config,
            source: Arc::new(Source::open(&current, context.sources.clone())),
            signals: WorkerSignals::default(),
            threads: Threads::default(),
            context: context.clone(),
        }
    }

    /// Its builds at a time: one fewer than the origin's, so that its services, however slow, leave one to other repositories.
    pub(super) fn builds(&self) -> usize {
        (self.context.concurrent_builds - 1).max(1)
    }

    /// Triggers a poll if the source needs one, such as to repair a damaged mirror.
    pub(super) fn poll_if_needed(&self) {
        if self.source.needs_poll(Instant::now()) {
            self.signals.poll.notify_one();
        }
    }

    /// Runs blocking work on its own thread. At the deadline it is signalled to stop and its permit is released. It is still
    /// awaited, because a service never has two builds.
    pub(super) async fn run<T: Send + 'static, P>(
        &self,
        step: &'static str,
        thread: &str,
        permit: P,
        deadline: Duration,
        work: impl FnOnce(&AtomicBool) -> Result<T, ServiceFailure> + Send + 'static,
    ) -> Result<T, ServiceFailure> {
        let job = Job::start(thread, &self.threads, work);
        let mut job =
            job.map_err(|error| ServiceFailure::transient(step, format!("no thread can be started: {error}")))?;
        if let Ok(ended) = tokio::time::timeout(deadline, &mut job).await {
            return ended.map_err(|panicked| self.panicked(step, &panicked))?;
        }
        job.interrupt();
        drop(permit);
        tracing::warn!(repository = %self.name, step, seconds = deadline.as_secs(), "a job is overdue");
        let late = |_| {
            let reason = format!("it took longer than {} s", deadline.as_secs());
            ServiceFailure { retry: RetryPolicy::BackOff, ..ServiceFailure::transient(step, reason) }
        };
        (&mut job).await.map_err(|panicked| self.panicked(step, &panicked))?.map_err(late)
    }

    /// The failure of a job that panicked, maybe because the mirror is damaged.
    pub(super) fn panicked(&self, step: &'static str, panicked: &JobPanicked) -> ServiceFailure {
        if let Some(git) = self.source.mirror() {
            git.mirror.mark_suspect(Instant::now());
        }
        ServiceFailure::transient(step, panicked.to_string())
    }

    pub(super) fn build_timeout(&self) -> Duration {
        self.config.borrow().build_timeout
    }

    /// Counts what became of an older revision.
    pub(super) fn count_step_back(&self, result: &str) {
        self.context.metrics.step_backs.with_label_values(&[self.name.as_str(), result]).inc();
    }
}

/// The services to publish, by name, and the parts.
pub(super) fn split(assigned: &[Arc<Service>]) -> (Services, Vec<Arc<Service>>) {
    let (parts, services): (Vec<_>, Vec<_>) = assigned.iter().cloned().partition(|service| service.part_of.is_some());
    (services.into_iter().map(|service| (service.name.clone(), service)).collect(), parts)
}

/// The services that `others` does not have with the same definition.
pub(super) fn difference(services: &Services, others: &Services) -> Vec<Arc<Service>> {
    let is_common =
        |service: &&Arc<Service>| others.get(&service.name).is_some_and(|other| Arc::ptr_eq(other, service));
    services.values().filter(|service| !is_common(service)).cloned().collect()
}

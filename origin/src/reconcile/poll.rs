//! One poll of an upstream, on a thread of its own, watched.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use weir_protocol::name::RepositoryName;

use super::job::{Job, JobPanicked};
use super::limiter::{HostLimiter, Kind};
use super::pace::{Expected, Pace};
use super::poll_permit::PollPermit;
use super::state::{Failure, Phase, RepositoryState, WaitsFor};
use super::threads::Threads;
use crate::config::RepositoryConfig;
use crate::data_dir::DataDir;
use crate::metrics::Metrics;
use crate::service::Service;
use crate::source::{FetchProgress, FetchSnapshot, PollFailure, PollOutcome, PollRequest, Source};

/// How often the progress of a poll is looked at and shown.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Everything a poll needs.
pub(super) struct Poller {
    /// As it is when a poll begins.
    pub(super) config: watch::Receiver<Arc<RepositoryConfig>>,
    /// The services that it is for, likewise.
    pub(super) services: watch::Receiver<Vec<Arc<Service>>>,
    /// The fewest bytes of a pack in a second.
    pub(super) min_rate: u64,
    pub(super) source: Arc<dyn Source>,
    pub(super) state: Arc<watch::Sender<RepositoryState>>,
    pub(super) limiter: HostLimiter,
    pub(super) threads: Threads,
    pub(super) name: RepositoryName,
    pub(super) metrics: Metrics,
    pub(super) data_dir: DataDir,
}

/// How a poll ended.
pub(super) struct PollEnd {
    pub(super) result: Result<Looked, Failure>,
    /// When it began to list: what was pushed or asked for before that, it has seen.
    pub(super) begun: Instant,
    pub(super) took: Duration,
}

/// What was found by a poll that the mirror followed.
pub(super) struct Looked {
    /// Whether it was changed.
    pub(super) changed: bool,
    /// Why a ref could not be followed, if there is such a one.
    pub(super) astray: Option<Failure>,
}

impl PollEnd {
    /// The end of a poll whose watcher panicked.
    pub(super) fn fault() -> Self {
        Self { result: Err(failed("fetch", JobPanicked.to_string())), begun: Instant::now(), took: Duration::ZERO }
    }
}

impl Poller {
    /// Polls once. Other repositories' polls are waited for only as long as they keep their deadlines.
    pub(super) async fn poll(self: Arc<Self>) -> PollEnd {
        if self.source.needs_check() {
            self.examine().await;
        }
        let waits = |what: Option<WaitsFor>| self.state.send_modify(|state| state.waits_for = what);
        let permit = PollPermit::new(self.limiter.acquire(Kind::Listing, waits).await);
        let (mut waited_for, mut moved) = (self.limiter.listing(), false);
        loop {
            let (begun, progress) = (Instant::now(), FetchProgress::default());
            let result = self.run(&permit, &progress, begun).await;
            self.limiter.asked(progress.requests(), std::mem::take(&mut waited_for));
            match result {
                Ok(None) => {
                    // What was gone is deleted, though nothing else may be left to follow.
                    moved = true;
                    permit.give_back();
                    self.state.send_modify(|state| state.phase = Phase::Idle);
                    let kind = Kind::of_fetch(self.large()());
                    permit.replace(self.limiter.acquire(kind, waits).await);
                }
                Ok(Some(mut looked)) => {
                    looked.changed |= moved;
                    return PollEnd { result: Ok(looked), begun, took: begun.elapsed() };
                }
                Err(failure) => return PollEnd { result: Err(failure), begun, took: begun.elapsed() },
            }
        }
    }

    /// Takes a close look at a mirror that gave trouble. The upstream has no part in it, and others that poll do not wait
    /// for it. Dropped, or after as long as a poll may take, it ends.
    async fn examine(&self) {
        let poll_timeout = self.config.borrow().poll_timeout;
        let _permit = self.limiter.close_look().await;
        self.state.send_modify(|state| state.phase = Phase::Examining);
        let source = self.source.clone();
        let job = Job::start(&format!("look {}", self.name), &self.threads, move |stop| {
            source.check(Instant::now(), stop);
        });
        if let Ok(mut job) = job {
            let ended = tokio::time::timeout(poll_timeout, &mut job).await;
            if ended.is_err() {
                job.interrupt();
                tracing::warn!(repository = %self.name, "a close look at the mirror took as long as a poll may, and was given up");
                let _ = (&mut job).await;
            }
        }
        self.state.send_modify(|state| state.phase = Phase::Idle);
    }

    /// Nothing: something moved, and it has to wait for a permit to fetch it.
    async fn run(
        &self,
        permit: &PollPermit,
        progress: &FetchProgress,
        begun: Instant,
    ) -> Result<Option<Looked>, Failure> {
        // After `begun`: whoever asks for another ref later asks for another poll.
        let (config, services) = (self.config.borrow().clone(), self.services.borrow().clone());
        let (longest, stall_timeout) = (config.poll_timeout, config.stall_timeout);
        let expected = Expected { longest, stall_timeout, min_rate: self.min_rate };
        let mut pace = Pace::new(progress.snapshot(), expected, begun);
        self.show(pace.progress());
        let (source, inner, may_fetch) =
            (self.source.clone(), progress.clone(), permit.may_fetch(self.limiter.clone(), self.large()));
        let on_set_aside = self.on_set_aside();
        let mut job = Job::start(&format!("poll {}", self.name), &self.threads, move |interrupt| {
            let request = PollRequest {
                config: &config,
                services: &services,
                progress: &inner,
                may_fetch: &may_fetch,
                on_set_aside: &on_set_aside,
            };
            source.poll(&request, interrupt)
        })
        .map_err(|error| failed("write", format!("no thread can be started: {error}")))?;
        let mut overdue = None;
        loop {
            tokio::select! {
                ended = &mut job => return match ended {
                    // It lost its permit.
                    Ok(Ok(PollOutcome::FetchPending)) => overdue.map_or(Ok(None), Err),
                    Ok(Ok(polled)) => Ok(Some(Looked { changed: polled == PollOutcome::Changed, astray: None })),
                    Ok(Err(error)) => {
                        let kind = if overdue.is_some() { "timeout" } else { error.kind };
                        self.metrics.poll_failures.with_label_values(&[kind]).inc();
                        match (overdue, error.partial_success) {
                            (None, Some(changed)) => Ok(Some(Looked { changed, astray: Some(error.into()) })),
                            (overdue, _) => Err(overdue.unwrap_or_else(|| error.into())),
                        }
                    }
                    Err(fault) => {
                        self.source.suspect_damage(Instant::now());
                        Err(failed("fetch", fault.to_string()))
                    }
                },
                () = tokio::time::sleep(LOOK_INTERVAL), if overdue.is_none() => {
                    let now = Instant::now();
                    pace.look(progress.snapshot(), now);
                    self.show(pace.progress());
                    let Some(late) = pace.late(self.large()(), now) else { continue };
                    job.interrupt();
                    // Others must not wait for a thread that may never come back.
                    permit.give_back();
                    // Now, because the poll may never end.
                    self.metrics.repository_healthy.with_label_values(&[self.name.as_str()]).set(0);
                    tracing::warn!(repository = %self.name, step = late.step, reason = late.reason, "a poll is overdue");
                    self.state.send_modify(|state| {
                        state.phase = Phase::Overdue;
                        state.says_unhealthy(late.clone(), SystemTime::now());
                    });
                    overdue = Some(late);
                }
            }
        }
    }

    /// Whether what is fetched is the whole repository: also in place of a mirror that was set aside just now.
    fn large(&self) -> impl Fn() -> bool + Send + 'static {
        let state = self.state.clone();
        move || !state.borrow().mirrored
    }

    /// Tells everybody that the mirror was set aside, from the thread that did it.
    fn on_set_aside(&self) -> impl Fn(&str) + Send + 'static {
        let (name, metrics, state) = (self.name.clone(), self.metrics.clone(), self.state.clone());
        let data_dir = self.data_dir.clone();
        move |damage| {
            let damage = data_dir.redact(damage);
            tracing::warn!(repository = %name, damage, "the mirror was set aside; the repository is cloned again");
            metrics.mirrors_set_aside.with_label_values(&[name.as_str()]).inc();
            state.send_modify(|state| state.mirrored = false);
        }
    }

    fn show(&self, progress: FetchSnapshot) {
        self.state.send_if_modified(|state| {
            let phase = if state.mirrored { Phase::Polling { progress } } else { Phase::Cloning { progress } };
            let news = state.phase != phase;
            state.phase = phase;
            news
        });
    }
}

impl From<PollFailure> for Failure {
    fn from(PollFailure { step, reason, timeout, retry_after, .. }: PollFailure) -> Self {
        Self { step, reason, timeout, retry_after }
    }
}

fn failed(step: &'static str, reason: String) -> Failure {
    Failure { step, reason, timeout: false, retry_after: None }
}

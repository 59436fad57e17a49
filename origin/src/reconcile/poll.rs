//! Polls an upstream, on its own thread and with a watchdog.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use weir_source::{LeftOutRef, PollFailure, PollOutcome, PollRequest, Service};
use weir_upstream::{FetchProgress, FetchSnapshot};

use super::bundles;
use super::job::{Job, JobPanicked};
use super::limiter::{HostLimiter, Kind};
use super::poll_permit::PollPermit;
use super::poll_watchdog::{PollLimits, PollWatchdog};
use super::repository::Repository;
use super::state::{Phase, RepositoryState, WaitsFor};

/// The interval of the watchdog, and of updates of the progress.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// Polls the upstream of a repository.
pub(super) struct Poller {
    pub(super) repository: Arc<Repository>,
    /// Read when a poll starts.
    pub(super) services: watch::Receiver<Vec<Arc<Service>>>,
    pub(super) state: Arc<watch::Sender<RepositoryState>>,
    pub(super) limiter: HostLimiter,
}

/// The result of a poll.
pub(super) struct PollResult {
    pub(super) result: Result<SuccessfulPoll, PollFailure>,
    /// When it started to list refs. It has seen all earlier pushes.
    pub(super) listed_at: Instant,
    /// The time since then.
    pub(super) duration: Duration,
    /// Whether the mirror was made from bundles before the poll.
    pub(super) hydrated: bool,
}

pub(super) struct SuccessfulPoll {
    /// Whether the mirror changed.
    pub(super) changed: bool,
    /// The refs that it left out.
    pub(super) left_out: Vec<LeftOutRef>,
}

impl PollResult {
    /// The result of a poll that panicked.
    pub(super) fn panicked() -> Self {
        let result = Err(PollFailure::new("fetch", "local", &JobPanicked, false, None));
        Self { result, listed_at: Instant::now(), duration: Duration::ZERO, hydrated: false }
    }
}

impl Poller {
    /// Polls once, with permits and a deadline.
    pub(super) async fn poll(&self) -> PollResult {
        if self.repository.source.mirror().is_some_and(|git| git.mirror.needs_full_check()) {
            self.check_mirror().await;
        }
        let hydrated = self.hydrate().await;
        let on_wait = |what: Option<WaitsFor>| self.state.send_modify(|state| state.waits_for = what);
        let permit = PollPermit::new(self.limiter.acquire(Kind::Listing, on_wait).await);
        let (mut reserved, mut has_listed) = (self.limiter.requests_per_listing(), false);
        loop {
            // The wait for a permit may have been long. The worker of a session that has ended is stopped here.
            self.repository.context.validity.begun().await;
            let (listed_at, progress) = (Instant::now(), FetchProgress::default());
            let result = self.list_and_fetch(&permit, &progress, listed_at).await;
            self.limiter.charge(progress.requests(), std::mem::take(&mut reserved));
            let result = match result {
                Ok(None) => {
                    // The mirror may have changed already: deleted refs need no fetch.
                    has_listed = true;
                    permit.release();
                    self.state.send_modify(|state| state.phase = Phase::Idle);
                    let kind = Kind::of_fetch(self.is_clone()());
                    permit.replace(self.limiter.acquire(kind, on_wait).await);
                    continue;
                }
                Ok(Some(success)) => {
                    Ok(SuccessfulPoll { changed: success.changed || has_listed || hydrated, ..success })
                }
                Err(failure) => Err(failure),
            };
            return PollResult { result, listed_at, duration: listed_at.elapsed(), hydrated };
        }
    }

    /// Checks a mirror that may be damaged, for at most the poll timeout. This takes no permit to poll.
    async fn check_mirror(&self) {
        let poll_timeout = self.repository.config.borrow().poll_timeout;
        let _permit = self.limiter.acquire_mirror_check().await;
        self.state.send_modify(|state| state.phase = Phase::Examining);
        let Repository { name, source, threads, .. } = &*self.repository;
        let source = source.clone();
        let job = Job::start(&format!("check {name}"), threads, move |stop| {
            if let Some(git) = source.mirror() {
                git.mirror.full_check(Instant::now(), stop);
            }
        });
        if let Ok(mut job) = job {
            let ended = tokio::time::timeout(poll_timeout, &mut job).await;
            if ended.is_err() {
                job.interrupt();
                tracing::warn!(repository = %name, "the check of the mirror took longer than `poll_timeout` and was stopped");
                let _ = (&mut job).await;
            }
        }
        self.state.send_modify(|state| state.phase = Phase::Idle);
    }

    /// Makes a missing or damaged mirror from stored bundles, so that the upstream sends only what is newer. If this
    /// fails, the repository is cloned.
    async fn hydrate(&self) -> bool {
        let source = &self.repository.source;
        let has_mirror = self.state.borrow().mirrored && !source.needs_poll(Instant::now());
        if has_mirror || source.mirror().is_none() {
            return false;
        }
        let hydrated = bundles::hydrate(&self.repository, false, self.on_mirror_replaced()).await;
        let has_content = matches!(hydrated, Ok(1..));
        if has_content {
            self.state.send_modify(|state| state.mirrored = true);
        }
        has_content
    }

    /// Lists the refs, and fetches changes. Returns `None` if refs changed and fetching needs a permit first.
    async fn list_and_fetch(
        &self,
        permit: &PollPermit,
        progress: &FetchProgress,
        listed_at: Instant,
    ) -> Result<Option<SuccessfulPoll>, PollFailure> {
        let Repository { name, source, context, .. } = &*self.repository;
        // Read after `listed_at`: a later service triggers another poll.
        let config = self.repository.config.borrow().clone();
        // Of a composed service its parts are followed.
        let services: Vec<_> =
            self.services.borrow().iter().filter(|service| service.parts.is_empty()).cloned().collect();
        let (poll_timeout, stall_timeout) = (config.poll_timeout, config.stall_timeout);
        let min_rate = context.sources.upstreams.min_rate.as_u64();
        let limits = PollLimits { poll_timeout, stall_timeout, min_rate };
        let mut watchdog = PollWatchdog::new(progress.snapshot(), limits, listed_at);
        self.show(watchdog.progress());
        let (polled, inner, may_fetch) =
            (source.clone(), progress.clone(), permit.may_fetch(self.limiter.clone(), self.is_clone()));
        let (on_mirror_replaced, validity) = (self.on_mirror_replaced(), context.validity.clone());
        let mut job = Job::start(&format!("poll {name}"), &self.repository.threads, move |interrupt| {
            let request = PollRequest {
                config: &config,
                services: &services,
                progress: &inner,
                may_fetch: &|| validity.holds() && may_fetch(),
                on_mirror_replaced: &on_mirror_replaced,
            };
            polled.poll(&request, interrupt).map(|outcome| (outcome, polled.left_out(&services)))
        })
        .map_err(|error| {
            PollFailure::new("write", "local", &format!("no thread can be started: {error}"), false, None)
        })?;
        let mut overdue = None;
        loop {
            tokio::select! {
                ended = &mut job => return match ended {
                    // An overdue poll has no permit, so it is not allowed to fetch.
                    Ok(Ok((PollOutcome::FetchPending, _))) => overdue.map_or(Ok(None), Err),
                    Ok(Ok((outcome, left_out))) => {
                        Ok(Some(SuccessfulPoll { changed: outcome == PollOutcome::Changed, left_out }))
                    }
                    Ok(Err(error)) => {
                        let failure = overdue.unwrap_or(error);
                        context.metrics.poll_failures.with_label_values(&[failure.kind]).inc();
                        Err(failure)
                    }
                    Err(panicked) => {
                        if let Some(git) = source.mirror() {
                            git.mirror.mark_suspect(Instant::now());
                        }
                        Err(PollFailure::new("fetch", "local", &panicked, false, None))
                    }
                },
                () = tokio::time::sleep(WATCH_INTERVAL), if overdue.is_none() => {
                    let now = Instant::now();
                    watchdog.observe(progress.snapshot(), now);
                    self.show(watchdog.progress());
                    let Some(failure) = watchdog.expired(self.is_clone()(), now) else { continue };
                    job.interrupt();
                    // Both at once, because the thread may never end.
                    permit.release();
                    context.metrics.repository_healthy.with_label_values(&[name.as_str()]).set(0);
                    tracing::warn!(repository = %name, step = failure.step, reason = failure.reason, "a poll is overdue");
                    self.state.send_modify(|state| {
                        state.phase = Phase::Overdue;
                        state.mark_unhealthy(failure.clone(), SystemTime::now());
                    });
                    overdue = Some(failure);
                }
            }
        }
    }

    /// Whether the poll clones the repository, maybe because the mirror was set aside during the poll.
    fn is_clone(&self) -> impl Fn() -> bool + Send + 'static {
        let state = self.state.clone();
        move || !state.borrow().mirrored
    }

    /// Reports that the mirror was set aside. Called by the poll's thread.
    fn on_mirror_replaced(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let (repository, state) = (self.repository.clone(), self.state.clone());
        move |damage| {
            let Repository { name, context, .. } = &*repository;
            let damage = context.data_dir.redact(damage);
            tracing::warn!(repository = %name, damage, "the mirror is damaged and was set aside; the repository is cloned again");
            context.metrics.mirrors_set_aside.with_label_values(&[name.as_str()]).inc();
            state.send_modify(|state| state.mirrored = false);
        }
    }

    fn show(&self, progress: FetchSnapshot) {
        self.state.send_if_modified(|state| {
            let phase = if state.mirrored { Phase::Polling { progress } } else { Phase::Fetching { progress } };
            let has_changed = state.phase != phase;
            state.phase = phase;
            has_changed
        });
    }
}

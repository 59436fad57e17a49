//! The owner of a repository: what happens, in one loop.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_shared::name::ServiceName;
use weir_shared::process::shutdown::Drain;

use super::build::{BuildOptions, ServiceFailure};
use super::handle::{Gone, HEAL_QUEUE, Handle, Heal};
use super::lfs::Held;
use super::mirror_slot::MirrorSlot;
use super::places::Places;
use super::poll::{PollEnd, Poller};
use super::schedule::{LONGEST_RETRY_AFTER, Schedule, first_delay};
use super::state::{Failure, Health, Phase, RepositoryState};
use super::threads::Threads;
use super::upkeep::{KeepingUp, kept_up};
use crate::census::Census;
use crate::commit_policy::Policy;
use crate::config::{LimitsConfig, RepositoryConfig, UpstreamsConfig, VerifyConfig};
use crate::data_dir::DataDir;
use crate::metrics::Metrics;
use crate::mirror::Poll;
use crate::publisher::Publisher;
use crate::revision::Reach;
use crate::service::{Condition, Service};
use crate::tarball::ContentKey;

/// What the agents of one origin share.
#[derive(Clone)]
pub(crate) struct Crew {
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) data_dir: DataDir,
    pub(crate) census: Arc<Census>,
    pub(crate) metrics: Metrics,
    pub(crate) build: BuildOptions,
    /// Who may ask an upstream just now.
    pub(crate) places: Arc<Places>,
    /// Tarballs that are built at a time.
    pub(crate) builds: Arc<Semaphore>,
    /// Mirrors that are looked after at a time: one.
    pub(super) upkeep: Arc<Semaphore>,
    /// Told when something was published: blobs may have become superfluous.
    pub(crate) published: Arc<Notify>,
    /// The threads of all jobs.
    pub(crate) threads: Threads,
    /// Where upstreams may be, and how much is taken from one.
    pub(crate) upstreams: UpstreamsConfig,
}

impl Crew {
    /// What the agents share, within these limits.
    pub(crate) fn new(
        publisher: Arc<Publisher>,
        data_dir: DataDir,
        census: Arc<Census>,
        metrics: Metrics,
        limits: &LimitsConfig,
        upstreams: &UpstreamsConfig,
    ) -> Self {
        let places = Arc::new(Places::new(limits, metrics.clone()));
        places.show(limits);
        let builds = metrics.bounds.semaphore("builds", limits.concurrent_builds);
        Self {
            publisher,
            data_dir,
            census,
            metrics,
            build: BuildOptions::new(limits),
            places,
            builds,
            upkeep: Arc::new(Semaphore::new(1)),
            published: Arc::default(),
            threads: Threads::default(),
            upstreams: upstreams.clone(),
        }
    }
}

/// When an agent begins.
#[derive(Debug, Default)]
pub(crate) struct Begin {
    /// How many agents begin together: the first polls of many are spread.
    pub(crate) together: usize,
    /// The end of the one that had the mirror before.
    pub(crate) after: Option<Gone>,
    /// What the one before knew of its upstream.
    pub(crate) before: Before,
}

/// What an agent leaves to the one that takes its place.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before {
    /// Polls that ended.
    pub(crate) attempts: u64,
    /// Until when the host asked to be left alone.
    pub(crate) held_until: Option<SystemTime>,
}

/// Starts the agent of a repository.
pub(crate) fn start(
    config: RepositoryConfig,
    services: Vec<Arc<Service>>,
    crew: &Crew,
    begin: Begin,
    drain: &Drain,
) -> Handle {
    let crew = Crew { threads: Threads::default(), ..crew.clone() };
    let Before { attempts, held_until } = begin.before;
    let state = RepositoryState { attempts, held_until, ..RepositoryState::new() };
    let state = Arc::new(watch::Sender::new(state));
    let config = Arc::new(config);
    let (reconfigure, configured) = watch::channel(config.clone());
    let kicks = Arc::new(Notify::new());
    let (heals, heal_queue) = mpsc::channel(HEAL_QUEUE);
    let looks = Arc::new(Notify::new());
    let mirror = Arc::new(MirrorSlot::new(crew.data_dir.mirror(&config.name, &config.url), crew.data_dir.clone()));
    let (publish, assigned) = watch::channel(services.clone());
    let handle = Handle {
        state: state.subscribe(),
        kicks: kicks.clone(),
        looks: looks.clone(),
        heals,
        services: Arc::new(publish),
        mirror: mirror.clone(),
        threads: crew.threads.clone(),
        stop: CancellationToken::new(),
        remove_mirror: Arc::new(AtomicBool::new(false)),
        gone: Gone::default(),
        config: Arc::new(reconfigure),
    };
    let poller = Arc::new(Poller {
        config: configured.clone(),
        services: assigned.clone(),
        upstreams: crew.upstreams.clone(),
        mirror: mirror.clone(),
        state: state.clone(),
        places: crew.places.clone(),
        at_host: crew.places.at_host(&config.url),
        threads: crew.threads.clone(),
        name: config.name.clone(),
        metrics: crew.metrics.clone(),
        data_dir: crew.data_dir.clone(),
    });
    let first = Instant::now() + first_delay(begin.together, config.poll_interval, fastrand::f64());
    let mut schedule = Schedule::new(config.poll_interval, config.shortest_gap, first);
    if let Some(pause) = held_until.and_then(|until| until.duration_since(SystemTime::now()).ok()) {
        schedule.hold(Instant::now() + pause);
    }
    let task = Task {
        policy: config.verify.as_ref().map(|verify| policy(verify, &config, &crew)),
        config,
        configured,
        services,
        assigned,
        mirror,
        poller,
        state,
        schedule,
        unsettled: true,
        hopeless: HashMap::new(),
        tidied: false,
        reach: Arc::default(),
        lfs_held: None,
        upkeep_due: true,
        looked_after: None,
        crew,
    };
    let (ended, begun) = (handle.clone(), drain.clone());
    drain.spawn(async move {
        // Dropping the loop tells its jobs to stop; what is published is durable already.
        tokio::select! {
            () = begun.begun() => {}
            () = ended.stop.cancelled() => {}
            () = Box::pin(task.run_after(begin.after.clone(), kicks, looks, heal_queue)) => {}
        }
        // A thread that does not come back must not hold up a drain.
        tokio::spawn(free_mirror(ended, begin.after));
    });
    handle
}

fn policy(verify: &VerifyConfig, config: &RepositoryConfig, crew: &Crew) -> Arc<Policy> {
    Arc::new(Policy::new(verify.clone(), config.name.clone(), crew.metrics.verifications.clone()))
}

/// Waits until nobody uses the mirror any more, and removes it if that was asked for.
async fn free_mirror(agent: Handle, before: Option<Gone>) {
    if let Some(before) = before {
        before.wait().await;
    }
    agent.threads.ended().await;
    if agent.remove_mirror.load(Ordering::Relaxed) {
        let mirror = agent.mirror.clone();
        // A fault there is logged by the runtime, and the name is free all the same.
        let _ = tokio::task::spawn_blocking(move || mirror.remove_all()).await;
    }
    agent.gone.0.cancel();
}

/// A poll under way. A task of its own, so that it keeps its deadline, and gives back its place among the polls, while the
/// owner builds. Dropped, it is told to stop.
type Polling = AbortOnDropHandle<PollEnd>;

/// The owner of a repository.
pub(super) struct Task {
    pub(super) config: Arc<RepositoryConfig>,
    /// The same, as it changes.
    configured: watch::Receiver<Arc<RepositoryConfig>>,
    pub(super) services: Vec<Arc<Service>>,
    /// The same, as they change.
    assigned: watch::Receiver<Vec<Arc<Service>>>,
    pub(super) mirror: Arc<MirrorSlot>,
    /// Which commits may be published; none: all.
    pub(super) policy: Option<Arc<Policy>>,
    pub(super) poller: Arc<Poller>,
    pub(super) state: Arc<watch::Sender<RepositoryState>>,
    pub(super) schedule: Schedule,
    /// The services must be looked at even if nothing moved.
    pub(super) unsettled: bool,
    /// The content whose build failed for good, and why; it is not tried again.
    pub(super) hopeless: HashMap<ServiceName, (ContentKey, ServiceFailure)>,
    /// Whether mirrors that are of no use any more were removed since the start.
    tidied: bool,
    /// Which commits that services name were found on a branch or a tag.
    pub(super) reach: Arc<Mutex<Reach>>,
    /// Until when, and why, no LFS object is asked for.
    pub(super) lfs_held: Option<Held>,
    /// Something was fetched since the mirror was last looked after, or was to be.
    pub(super) upkeep_due: bool,
    /// When the mirror was last looked after.
    pub(super) looked_after: Option<Instant>,
    pub(super) crew: Crew,
}

impl Task {
    /// Runs once the agent that had the mirror before is gone.
    async fn run_after(
        self,
        before: Option<Gone>,
        kicks: Arc<Notify>,
        looks: Arc<Notify>,
        heals: mpsc::Receiver<Heal>,
    ) {
        if let Some(before) = before.filter(|before| !before.has_come()) {
            self.state.send_modify(|state| state.phase = Phase::Overdue);
            before.wait().await;
            self.state.send_modify(|state| state.phase = Phase::Idle);
        }
        self.run(kicks, looks, heals).await;
    }

    /// What an agent does is boxed when it does it: thousands of them wait, and hold no more than waiting takes.
    async fn run(mut self, kicks: Arc<Notify>, looks: Arc<Notify>, mut heals: mpsc::Receiver<Heal>) {
        Box::pin(self.restore()).await;
        self.show_next_poll(false);
        let mut polling: Option<Polling> = None;
        let mut keeping_up: Option<KeepingUp> = None;
        loop {
            let due = tokio::time::Instant::from_std(self.schedule.next());
            tokio::select! {
                end = ended(&mut polling) => {
                    polling = None;
                    Box::pin(self.polled(end)).await;
                    keeping_up = self.begin_upkeep();
                }
                () = kept_up(&mut keeping_up) => {
                    keeping_up = None;
                    self.upkeep_ended();
                }
                // A heal reads the mirror only, so it need not wait for a poll that hangs.
                Some(heal) = heals.recv() => {
                    // Who does not wait any more asks again; a build that fails each time must not be queued behind itself.
                    if !heal.done.is_closed() {
                        Box::pin(self.heal(&heal.blob)).await;
                        let _ = heal.done.send(());
                    }
                }
                () = kicks.notified() => self.schedule.kick(Instant::now()),
                () = looks.notified() => {
                    let services = self.services.clone();
                    Box::pin(self.pass(&services, false)).await;
                }
                // Whoever assigns holds the handle, which the loop outlives only for a moment.
                Ok(()) = self.configured.changed() => self.reconfigure(),
                Ok(()) = self.assigned.changed() => {
                    // Of two changes the configuration came first, and new services are for it.
                    self.reconfigure();
                    Box::pin(self.reassign()).await;
                }
                () = tokio::time::sleep_until(due), if polling.is_none() && keeping_up.is_none() => {
                    self.schedule.begin(Instant::now());
                    self.state.send_modify(|state| state.next_poll = None);
                    let poll = self.poller.clone().poll();
                    polling = Some(AbortOnDropHandle::new(tokio::spawn(self.crew.threads.counted(poll))));
                }
            }
            self.show_next_poll(polling.is_some());
        }
    }

    /// What the mirror holds since before the start is published without asking the upstream. What fails here is not
    /// held against a service: the poll that follows will tell.
    async fn restore(&mut self) {
        if self.mirror.exists() {
            let services = self.services.clone();
            self.pass(&services, true).await;
            if services.iter().any(|service| service.condition() == Condition::Following) {
                self.state.send_modify(|state| state.mirrored = true);
            }
        }
    }

    /// Takes over the services that it is to publish. What is new is looked at in the mirror as it is, and again after a poll
    /// that comes soon: only then it is known what the upstream does not have.
    async fn reassign(&mut self) {
        let before = std::mem::replace(&mut self.services, self.assigned.borrow_and_update().clone());
        let is_new = |service: &&Arc<Service>| !before.iter().any(|known| Arc::ptr_eq(known, service));
        let new: Vec<Arc<Service>> = self.services.iter().filter(is_new).cloned().collect();
        for service in &new {
            self.hopeless.remove(&service.name);
        }
        self.hopeless.retain(|name, _| self.services.iter().any(|service| service.name == *name));
        if new.is_empty() {
            return;
        }
        if self.mirror.exists() {
            self.pass(&new, true).await;
        }
        self.unsettled = true;
        self.schedule.kick(Instant::now());
    }

    /// Goes by another configuration of the same upstream.
    fn reconfigure(&mut self) {
        let before = std::mem::replace(&mut self.config, self.configured.borrow_and_update().clone());
        self.schedule.set(self.config.poll_interval, self.config.shortest_gap, Instant::now());
        if self.config.verify != before.verify {
            // Whoever changes it assigns its services anew, so that they are looked at by it.
            self.policy = self.config.verify.as_ref().map(|verify| policy(verify, &self.config, &self.crew));
        }
    }

    async fn polled(&mut self, end: PollEnd) {
        self.schedule.looked(end.begun);
        let name = self.config.name.clone();
        let metrics = self.crew.metrics.clone();
        metrics.poll_duration.with_label_values(&[name.as_str()]).observe(end.took.as_secs_f64());
        let result = match end.result {
            Ok(poll) => self.poll_succeeded(poll, SystemTime::now()).await,
            Err(failure) => self.poll_failed(failure, SystemTime::now()),
        };
        metrics.polls.with_label_values(&[name.as_str(), result]).inc();
        self.state.send_modify(|state| {
            state.attempts += 1;
            state.phase = Phase::Idle;
        });
    }

    async fn poll_succeeded(&mut self, poll: Poll, now: SystemTime) -> &'static str {
        let name = self.config.name.clone();
        let before = self.state.borrow().clone();
        self.state.send_modify(|state| {
            state.poll_succeeded(now);
            state.phase = Phase::Idle;
        });
        if matches!(before.health, Health::Unhealthy { .. }) {
            tracing::info!(repository = %name, failures = before.consecutive_failures, "the upstream answers again");
        }
        if !before.mirrored {
            tracing::info!(repository = %name, "the repository is mirrored");
        }
        if !before.mirrored || !self.tidied {
            // Also when a process before this one was stopped after its clone and before this.
            self.tidied = true;
            self.remove_other_mirrors();
        }
        self.crew.metrics.repository_healthy.with_label_values(&[name.as_str()]).set(1);
        self.crew.metrics.last_success.with_label_values(&[name.as_str()]).set(unix_seconds(now));
        let changed = matches!(poll, Poll::Changed { .. });
        self.upkeep_due |= changed;
        if changed || self.unsettled {
            let services = self.services.clone();
            self.pass(&services, false).await;
        }
        self.schedule.succeeded(Instant::now(), fastrand::f64());
        if changed { "changed" } else { "unchanged" }
    }

    fn poll_failed(&mut self, mut failure: Failure, now: SystemTime) -> &'static str {
        failure.reason = self.crew.data_dir.redact(&failure.reason);
        let (step, reason, timeout) = (failure.step, failure.reason.clone(), failure.timeout);
        let retry_after = failure.retry_after;
        // Some of it may have come, or there may be no more room for it.
        self.upkeep_due |= step == "fetch";
        let mut news = false;
        self.state.send_modify(|state| news = state.poll_failed(failure, now));
        if news {
            tracing::warn!(repository = %self.config.name, step, reason, "the upstream cannot be polled");
        }
        self.crew.metrics.repository_healthy.with_label_values(&[self.config.name.as_str()]).set(0);
        if let Some(pause) = retry_after.filter(|pause| *pause > LONGEST_RETRY_AFTER) {
            let (asked, kept) = (pause.as_secs(), LONGEST_RETRY_AFTER.as_secs());
            tracing::warn!(repository = %self.config.name, asked, kept, "the upstream asks for a longer pause than is kept");
        }
        self.schedule.failed(Instant::now(), retry_after, fastrand::f64());
        self.mend_mirror();
        if timeout { "timeout" } else { "failed" }
    }

    fn remove_other_mirrors(&self) {
        let mirror = self.mirror.clone();
        let removed = super::job::Job::begin("clean up", &self.crew.threads, move |_| mirror.remove_others());
        drop(removed);
    }

    fn show_next_poll(&self, polling: bool) {
        let (now, clock) = (Instant::now(), SystemTime::now());
        let on_the_clock = |at: Instant| clock + at.saturating_duration_since(now);
        let next = (!polling).then(|| on_the_clock(self.schedule.next()));
        let held_until = self.schedule.held_until().filter(|until| *until > now).map(on_the_clock);
        self.state.send_if_modified(|state| {
            let news =
                state.next_poll.is_some() != next.is_some() || state.held_until.is_some() != held_until.is_some();
            state.next_poll = next;
            state.held_until = held_until;
            news
        });
    }
}

async fn ended(polling: &mut Option<Polling>) -> PollEnd {
    match polling {
        Some(polling) => polling.await.unwrap_or_else(|_| PollEnd::fault()),
        None => std::future::pending().await,
    }
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

//! One poll of an upstream, on a thread of its own, watched.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use weir_shared::name::RepositoryName;

use super::job::{Job, JobFault};
use super::mirror_slot::MirrorSlot;
use super::places::{AtHost, Places};
use super::state::{Failure, Phase, RepositoryState, WaitsFor};
use super::threads::Threads;
use super::turn::Turn;
use crate::config::{RepositoryConfig, UpstreamsConfig};
use crate::data_dir::DataDir;
use crate::metrics::Metrics;
use crate::mirror::{FetchProgress, FetchSnapshot, MirrorError, Poll, Upstream};
use crate::revision::further_refs;
use crate::service::Service;

/// How often the progress of a poll is looked at and shown.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// A poll that makes no progress for this many stall timeouts hangs somewhere that its own timeouts do not reach, and refs
/// are listed within as many, however little comes at a time: others wait for that place.
const LATE_AFTER_STALLS: u32 = 4;

/// Everything a poll needs.
pub(super) struct Poller {
    /// As it is when a poll begins.
    pub(super) config: watch::Receiver<Arc<RepositoryConfig>>,
    /// The services that it is for, likewise.
    pub(super) services: watch::Receiver<Vec<Arc<Service>>>,
    pub(super) upstreams: UpstreamsConfig,
    pub(super) mirror: Arc<MirrorSlot>,
    pub(super) state: Arc<watch::Sender<RepositoryState>>,
    pub(super) places: Arc<Places>,
    pub(super) at_host: AtHost,
    pub(super) threads: Threads,
    pub(super) name: RepositoryName,
    pub(super) metrics: Metrics,
    pub(super) data_dir: DataDir,
}

/// How a poll ended.
pub(super) struct PollEnd {
    pub(super) result: Result<Poll, Failure>,
    /// When it had its turn: what was pushed or asked for before that, it has seen.
    pub(super) begun: Instant,
    pub(super) took: Duration,
}

impl PollEnd {
    /// The end of a poll whose watcher panicked.
    pub(super) fn fault() -> Self {
        Self { result: Err(failed("fetch", JobFault.to_string())), begun: Instant::now(), took: Duration::ZERO }
    }
}

impl Poller {
    /// Polls once. Other repositories' polls are waited for only as long as they keep their deadlines.
    pub(super) async fn poll(self: Arc<Self>) -> PollEnd {
        let large = !self.state.borrow().mirrored;
        let waits = |what: Option<WaitsFor>| self.state.send_modify(|state| state.waits_for = what);
        let place = self.places.to_list(&self.at_host, waits).await;
        let turn = Turn::begin(self.places.clone(), self.at_host.clone(), large, place);
        let mut waited_for = self.at_host.listing();
        loop {
            let (begun, progress) = (Instant::now(), FetchProgress::default());
            let result = self.run(&turn, &progress, begun).await;
            self.at_host.asked(progress.requests(), std::mem::take(&mut waited_for));
            match result {
                Ok(Poll::Moved) => {
                    turn.give_back();
                    self.state.send_modify(|state| state.phase = Phase::Idle);
                    turn.go_on(self.places.to_fetch(&self.at_host, large, waits).await);
                }
                result => return PollEnd { result, begun, took: begun.elapsed() },
            }
        }
    }

    /// The upstream as it is to be asked now.
    pub(super) fn upstream(&self) -> Upstream {
        self.upstreams.upstream(&self.config.borrow())
    }

    async fn run(&self, turn: &Turn, progress: &FetchProgress, begun: Instant) -> Result<Poll, Failure> {
        let poll_timeout = self.config.borrow().poll_timeout;
        // After `begun`: whoever asks for another ref later asks for another poll.
        let further_refs = further_refs(self.services.borrow().iter().map(|service| &service.revision));
        let upstream = Upstream { further_refs, ..self.upstream() };
        let late_after = upstream.stall_timeout * LATE_AFTER_STALLS;
        let mut watched = Watched::new(progress.snapshot(), begun);
        self.show(watched.progress);
        let (mirror, inner, may_fetch) = (self.mirror.clone(), progress.clone(), turn.may_fetch());
        let set_aside = self.on_set_aside();
        let mut job = Job::begin(&format!("poll {}", self.name), &self.threads, move |interrupt| {
            let ready = mirror.for_poll(Instant::now())?;
            ready.set_aside.inspect(|damage| set_aside(damage));
            let result = ready.mirror.poll_in_turn(&upstream, &inner, interrupt, &may_fetch);
            match &result {
                Err(error @ MirrorError::OtherObjectFormat { .. }) => mirror.is_of_no_use(error.to_string()),
                Err(error) if error.may_be_damage() => mirror.trouble(Instant::now()),
                _ => {}
            }
            result
        })
        .map_err(|error| failed("write", format!("no thread can be started: {error}")))?;
        let mut overdue = None;
        loop {
            tokio::select! {
                ended = &mut job => return match ended {
                    // It lost its turn.
                    Ok(Ok(Poll::Moved)) => overdue.map_or(Ok(Poll::Moved), Err),
                    Ok(Ok(poll)) => Ok(poll),
                    Ok(Err(error)) => {
                        let kind = if overdue.is_some() { "timeout" } else { error.kind() };
                        self.metrics.poll_failures.with_label_values(&[kind]).inc();
                        Err(overdue.unwrap_or_else(|| failure(&error)))
                    }
                    Err(fault) => {
                        self.mirror.trouble(Instant::now());
                        Err(failed("fetch", fault.to_string()))
                    }
                },
                () = tokio::time::sleep(LOOK_INTERVAL), if overdue.is_none() => {
                    let now = Instant::now();
                    watched.look(progress.snapshot(), now);
                    self.show(watched.progress);
                    let Some(late) = watched.late(begun, now, (poll_timeout, late_after)) else { continue };
                    job.interrupt();
                    // Others must not wait for a thread that may never come back.
                    turn.give_back();
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

    /// Tells everybody that the mirror was set aside, from the thread that did it.
    fn on_set_aside(&self) -> impl Fn(&String) + Send + 'static {
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

/// The last progress of a poll, and since when it is that.
struct Watched {
    progress: FetchSnapshot,
    since: Instant,
}

impl Watched {
    fn new(progress: FetchSnapshot, now: Instant) -> Self {
        Self { progress, since: now }
    }

    fn look(&mut self, progress: FetchSnapshot, now: Instant) {
        if progress != self.progress {
            *self = Self::new(progress, now);
        }
    }

    /// Whether the poll is to be given up: it takes longer than the first limit, or stands still for the second, or has not
    /// even listed the refs by then.
    fn late(&self, begun: Instant, now: Instant, (longest, standstill): (Duration, Duration)) -> Option<Failure> {
        let late = |reason: String| {
            Some(Failure { step: step_of(self.progress.phase), reason, timeout: true, retry_after: None })
        };
        if now - begun >= longest {
            return late(format!("the poll took longer than {} s", longest.as_secs()));
        }
        if now - begun >= standstill && step_of(self.progress.phase) != "fetch" {
            return late(format!("the refs were not listed within {} s", standstill.as_secs()));
        }
        if now - self.since >= standstill {
            return late(format!("the poll stood still for {} s", standstill.as_secs()));
        }
        None
    }
}

/// The step of a failure that a phase of a fetch belongs to.
fn step_of(phase: &str) -> &'static str {
    match phase {
        "connecting" => "connect",
        "listing" => "list refs",
        _ => "fetch",
    }
}

fn failure(error: &MirrorError) -> Failure {
    Failure {
        step: error.step(),
        reason: error.to_string(),
        timeout: error.is_timeout(),
        retry_after: error.retry_after(),
    }
}

fn failed(step: &'static str, reason: String) -> Failure {
    Failure { step, reason, timeout: false, retry_after: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bytes: u64) -> FetchSnapshot {
        FetchSnapshot { phase: "receiving", done: 0, total: None, bytes }
    }

    #[test]
    fn a_poll_that_moves_is_given_up_only_at_its_deadline() {
        let begun = Instant::now();
        let seconds = Duration::from_secs;
        let limits = (seconds(100), seconds(10));
        let mut watched = Watched::new(at(0), begun);
        for second in 1..100 {
            watched.look(at(second), begun + seconds(second));
            assert_eq!(watched.late(begun, begun + seconds(second), limits), None);
        }
        let late = watched.late(begun, begun + seconds(100), limits).unwrap();
        assert!(late.timeout && late.reason.contains("100 s"), "{late:?}");
    }

    #[test]
    fn a_listing_that_drips_is_given_up_early() {
        let begun = Instant::now();
        let seconds = Duration::from_secs;
        let limits = (seconds(100), seconds(10));
        let listing = |done| FetchSnapshot { phase: "listing", done, total: None, bytes: 0 };
        let mut watched = Watched::new(listing(0), begun);
        watched.look(listing(1), begun + seconds(9));
        assert_eq!(watched.late(begun, begun + seconds(9), limits), None);
        let late = watched.late(begun, begun + seconds(10), limits).unwrap();
        assert_eq!((late.step, late.timeout), ("list refs", true));
        assert!(late.reason.contains("not listed within 10 s"), "{late:?}");
    }

    #[test]
    fn a_poll_that_stands_still_is_given_up_early() {
        let begun = Instant::now();
        let seconds = Duration::from_secs;
        let limits = (seconds(100), seconds(10));
        let mut watched = Watched::new(at(0), begun);
        watched.look(at(5), begun + seconds(3));
        watched.look(at(5), begun + seconds(12));
        assert_eq!(watched.late(begun, begun + seconds(12), limits), None);
        let late = watched.late(begun, begun + seconds(13), limits).unwrap();
        assert_eq!((late.step, late.timeout), ("fetch", true));
        assert!(late.reason.contains("stood still"), "{late:?}");
    }
}

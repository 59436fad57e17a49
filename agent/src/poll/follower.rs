//! The task that follows one service and owns its directory.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, mpsc, watch};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name_glob::NameGlob;
use weir_protocol::observed::{Desired, HookState, Problem, ProblemKind, Transfer};
use weir_protocol::request_id::RequestId;
use weir_release::{Pins, ReleaseError, Restored, ServiceDirectory, State, TarError, highest_credible};
use weir_runtime::shutdown::Drain;

use super::error::{AllEdgesFailed, Failure, PollError};
use super::parts::{UpdateParts, milliseconds};
use super::poller::Poller;
use super::ready::Ready;
use super::request::{LocalState, PollResult, Wanted};
use super::row::{CurrentState, Meaning, is_not_published, is_outdated, meaning, offered};
use super::schedule::{Due, Schedule};
use crate::edge_client::Protocol;
use crate::fetch::TarballHeaders;
use crate::hook::{Check, Veto};
use crate::metrics::{ServiceMetrics, unix_seconds};
use crate::services::{Command, ReceivedRow, Services};
use crate::status::{Activity, ServiceStatus, applied, release_of};
use crate::supervise::Task;

pub(crate) struct Follower {
    pub(crate) poller: Poller,
    pub(crate) directory: Arc<ServiceDirectory>,
    pub(crate) schedule: Schedule,
    /// Within this, a poll follows the row of another release; sooner if the edge says so.
    pub(crate) spread: Duration,
    /// When an edge said that there is another release that was not polled yet.
    pub(crate) announced_at: Option<Instant>,
    /// Of the update in progress, and of the last one.
    pub(crate) parts: UpdateParts,
    /// What the last row offered.
    pub(crate) row: Option<(TarballDigest, u64)>,
    pub(crate) status: watch::Sender<ServiceStatus>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) metrics: ServiceMetrics,
    /// Notified after each switch; `None` without hooks.
    pub(crate) hook: Option<Arc<Notify>>,
    /// Runs before each switch to new content.
    pub(crate) check: Option<Check>,
    /// The last release that the check refused.
    pub(crate) veto: Option<Veto>,
    /// All services, for which it may have to wait.
    pub(crate) services: Arc<Services>,
    pub(crate) depends_on: Vec<NameGlob>,
    /// A release that waits for others.
    pub(crate) ready: Option<Ready>,
    /// The pins of all services.
    pub(crate) pins: watch::Receiver<Arc<Pins>>,
    pub(crate) drain: Drain,
    /// A tarball that cannot be unpacked, with the error.
    pub(crate) rejected: Option<(TarballDigest, String)>,
}

/// The outcome of a poll or refresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Unchanged,
    /// `Transfer`: of what was fetched for it.
    Switched(SwitchReason, Option<Transfer>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SwitchReason {
    First,
    Changed,
    /// A refresh found a change that polls had missed.
    MissedChange,
    /// A refresh found modified files on disk.
    Repaired,
    RolledBack,
}

impl SwitchReason {
    fn as_str(self) -> &'static str {
        match self {
            SwitchReason::First => "first release",
            SwitchReason::Changed => "change",
            SwitchReason::MissedChange => "change found by a refresh",
            SwitchReason::Repaired => "files on disk were changed",
            SwitchReason::RolledBack => "rollback",
        }
    }
}

impl Task for Follower {
    /// A drain, and another pin, abandon a download or a check; both wait for a switch.
    async fn run(&mut self) {
        loop {
            let refresh = match self.schedule.due(Instant::now()) {
                _ if self.pin_has_changed() => false,
                Due::Poll => false,
                Due::Refresh => true,
                Due::At(when) => tokio::select! {
                    () = self.drain.begun() => return,
                    command = self.commands.recv() => match command {
                        Some(Command::Poll) => false,
                        Some(Command::Refresh) => true,
                        Some(Command::Row(received)) => {
                            self.take_row(*received).await;
                            self.show(Activity::Idle);
                            continue;
                        }
                        None => return,
                    },
                    // Perhaps the pin of another service.
                    Ok(()) = self.pins.changed() => continue,
                    () = tokio::time::sleep_until(when.into()) => continue,
                },
            };
            let ended = self.poll_once(refresh).await;
            self.show(Activity::Idle);
            if ended.is_none() && self.drain.has_begun() {
                return;
            }
        }
    }

    fn panicked(&mut self, message: &str) {
        self.poller.metrics.attempt_failed("panic");
        self.show(Activity::Idle);
        self.schedule.failed(false, None, Instant::now(), fastrand::f64());
        let message = format!("the agent panicked, which is a bug: {message}");
        let failure = Failure { message, kind: ProblemKind::Other, is_retryable: true, output: None };
        self.record_failure(failure, None);
    }
}

impl Follower {
    /// Polls or refreshes once; `None` when it was interrupted.
    async fn poll_once(&mut self, refresh: bool) -> Option<()> {
        let wait = self.announced_at.take().map(|announced_at| announced_at.elapsed()).unwrap_or_default();
        self.parts = UpdateParts::default();
        let pinned = match self.follow_pin().await {
            Ok(pinned) => pinned,
            Err(error) => {
                self.schedule.failed(refresh, None, Instant::now(), fastrand::f64());
                self.record_failure((&PollError::from(error)).into(), None);
                return Some(());
            }
        };
        if let Some(digest) = pinned
            && !self.refresh_pinned(digest, refresh).await?
        {
            return Some(());
        }
        let unpacked = if pinned.is_none() { self.unpacked().await } else { None };
        let state = self.directory.state();
        let local = LocalState {
            digest: state.release.as_ref().map(|release| release.directory.digest()),
            highest_generation: state.highest_generation_within(highest_credible(SystemTime::now())),
            rejected: self.rejected.as_ref().map(|(digest, _)| *digest),
            unpacked,
            pinned: pinned.is_some(),
        };
        let wanted = if refresh && pinned.is_none() { Wanted::Refresh } else { Wanted::Poll };
        let started = Instant::now();
        let asked = self.ask(local, &wanted).await;
        self.parts = UpdateParts { wait, fetch: started.elapsed(), ..UpdateParts::default() };
        let (found, protocol) = match asked? {
            Ok(answered) => answered,
            Err(failed) => {
                self.schedule.failed(refresh, failed.retry_after, Instant::now(), fastrand::f64());
                self.failed(&failed);
                return Some(());
            }
        };
        let answer = match &found {
            PollResult::Unchanged(answer) | PollResult::Unpacked(_, answer) => answer,
            PollResult::Held(answer) | PollResult::Staged(answer, _) | PollResult::Fetched(_, answer) => answer,
        };
        self.show_desired(answer.digest.map(|digest| (digest, answer.generation)));
        let fetched = match &found {
            PollResult::Fetched(tarball, _) => Some(tarball.digest),
            _ => None,
        };
        let changed = if refresh { SwitchReason::MissedChange } else { SwitchReason::Changed };
        match self.apply(found, changed).await? {
            Ok(outcome) => {
                self.schedule.succeeded(refresh, Instant::now(), fastrand::f64());
                self.succeeded(outcome, refresh, Some(protocol));
            }
            Err(error) => {
                self.schedule.failed(refresh, None, Instant::now(), fastrand::f64());
                if let (Some(digest), PollError::Release(ReleaseError::Tar(why))) = (fetched, &error)
                    && !matches!(why, TarError::Read(_) | TarError::Write { .. })
                {
                    self.rejected = Some((digest, error.to_string()));
                }
                self.record_failure((&error).into(), None);
            }
        }
        Some(())
    }

    /// Asks the edges; `None` when it was interrupted.
    pub(super) async fn ask(
        &self,
        local: LocalState,
        wanted: &Wanted,
    ) -> Option<Result<(PollResult, Protocol), AllEdgesFailed>> {
        let edges = self.poller.edges.current();
        // Those that replaced the edges of this service are not asked for it.
        if self.drain.has_begun() {
            return None;
        }
        let is_wanted = |it: Desired| Some(it.digest) != local.digest && it.generation >= local.highest_generation;
        if self.status.borrow().desired.is_some_and(is_wanted) {
            self.show(Activity::Fetching);
        }
        tokio::select! {
            () = self.interrupted() => None,
            result = self.poller.run(&edges, local, wanted) => Some(result),
        }
    }

    /// What rows are compared with.
    fn held(&self, state: &State, credible: u64) -> CurrentState {
        // A poll finds out which generation is right.
        let release = state.release.as_ref().filter(|release| release.generation <= credible);
        CurrentState {
            release: release.map(|release| (release.directory.digest(), release.generation)),
            highest_generation: state.highest_generation_within(credible),
            pinned: self.status.borrow().pinned.as_ref().map(|pinned| pinned.offered),
            is_failing: self.schedule.is_failing(),
            refused: self.veto.as_ref().map(|veto| veto.generation),
            row_before: self.row,
        }
    }

    /// A row confirms the release, or is a reason to poll; `None` when it was interrupted.
    async fn take_row(&mut self, received: ReceivedRow) -> Option<()> {
        self.parts = UpdateParts::default();
        let ReceivedRow { row, protocol, spread } = received;
        let spread = spread.unwrap_or(self.spread);
        let state = self.directory.state();
        let release = state.release.as_ref();
        let credible = highest_credible(SystemTime::now());
        let held = self.held(&state, credible);
        if is_outdated(&row, held, credible) {
            return Some(());
        }
        let meaning = match (meaning(&row, held), release) {
            (Meaning::Confirmed, Some(release)) if !self.poller.is_proved(release) && held.pinned.is_none() => {
                Meaning::Poll
            }
            (meaning, _) => meaning,
        };
        self.row = offered(&row);
        self.show_desired(self.row);
        self.status.send_if_modified(|status| {
            let before = (status.is_unpublished, status.offered.clone());
            status.is_unpublished = is_not_published(&row);
            if self.row.is_some() {
                status.offered.clone_from(&row.revision_id);
            }
            before != (status.is_unpublished, status.offered.clone())
        });
        match (meaning, release) {
            (Meaning::Confirmed, Some(release)) => {
                self.announced_at = None;
                let answer = TarballHeaders::from(release.clone());
                let found = match held.pinned {
                    None => PollResult::Unchanged(answer),
                    Some(digest) => PollResult::Held(TarballHeaders { digest, ..answer }),
                };
                let applied = match self.restore().await {
                    Ok(Restored::Forgotten) => {
                        self.schedule.announced(Instant::now(), Duration::ZERO);
                        return Some(());
                    }
                    Ok(_) => self.apply(found, SwitchReason::Changed).await?,
                    Err(error) => Err(error.into()),
                };
                match applied {
                    Ok(outcome) => {
                        self.schedule.confirmed(Instant::now(), fastrand::f64());
                        self.succeeded(outcome, false, Some(protocol));
                    }
                    Err(error) => {
                        self.schedule.failed(false, None, Instant::now(), fastrand::f64());
                        self.record_failure((&error).into(), None);
                    }
                }
            }
            (Meaning::Poll, _) => {
                let now = Instant::now();
                self.announced_at = self.announced_at.or(Some(now));
                self.schedule.announced(now, spread);
            }
            (Meaning::Confirmed | Meaning::Nothing, _) => {}
        }
        Some(())
    }

    /// Shows what this task does now.
    pub(super) fn show(&self, activity: Activity) {
        self.status.send_if_modified(|status| std::mem::replace(&mut status.activity, activity) != activity);
    }

    /// Shows what an edge offers.
    fn show_desired(&self, offered: Option<(TarballDigest, u64)>) {
        let desired = offered.map(|(digest, generation)| Desired { digest, generation });
        self.status.send_if_modified(|status| {
            let is_new = desired.is_some() && status.desired != desired;
            if is_new {
                status.desired = desired;
            }
            is_new
        });
    }

    /// Creates what somebody has deleted, before a poll.
    pub(super) async fn restore(&self) -> Result<Restored, ReleaseError> {
        let restored = self.on_disk(ServiceDirectory::restore).await?;
        match restored {
            Restored::Intact => {}
            Restored::Link => self.switched(SwitchReason::Repaired, None),
            Restored::Forgotten => {
                self.metrics.refresh_repaired.inc();
                self.show_release(0);
            }
            Restored::Read => self.show_release(0),
        }
        Ok(restored)
    }

    /// Runs something that blocks.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ServiceDirectory) -> Result<T, ReleaseError> + Send + 'static,
    ) -> Result<T, ReleaseError> {
        let directory = self.directory.clone();
        let done = tokio::task::spawn_blocking(move || work(&directory)).await;
        done.map_err(|error| ReleaseError::Disk {
            operation: "work in",
            path: self.poller.incoming.clone(),
            source: std::io::Error::other(error),
        })?
    }

    /// Reports a switch.
    pub(super) fn switched(&self, why: SwitchReason, transfer: Option<Transfer>) {
        self.metrics.switches.inc();
        match why {
            SwitchReason::MissedChange => self.metrics.refresh_missed_change.inc(),
            SwitchReason::Repaired => self.metrics.refresh_repaired.inc(),
            SwitchReason::First | SwitchReason::Changed | SwitchReason::RolledBack => {}
        }
        log_switch(self, &self.directory.state(), why, transfer);
        self.parts.observe(&self.poller.metrics);
        self.status.send_modify(|status| status.transfer = transfer);
        self.show_release(1);
    }

    /// Shows the release in force, and wakes its hooks. `switches`: since the last time.
    fn show_release(&self, switches: u64) {
        let release = release_of(&self.directory, &self.directory.state());
        if let Some(release) = &release {
            self.metrics.generation.set(i64::try_from(release.generation).unwrap_or(i64::MAX));
        }
        // The hook's task may be ahead of this one: the recorded state decides.
        let hook = self.hook.as_ref().filter(|_| self.directory.hook_job().is_some());
        self.status.send_modify(|status| {
            status.switches += switches;
            if hook.is_some() || release.is_none() {
                status.hook = if hook.is_some() { HookState::Pending } else { HookState::None };
                (status.hook_error, status.hook_stderr) = (None, None);
            }
            if hook.is_none() {
                status.hook_problem = None;
            }
            // Read here: the hook's task writes it, too.
            status.applied = applied(self.hook.is_some(), &self.directory.state());
            status.release = release;
        });
        if let Some(hook) = hook {
            self.metrics.hook_pending.set(1.0);
            hook.notify_one();
        }
    }

    fn succeeded(&self, outcome: Outcome, refresh: bool, protocol: Option<Protocol>) {
        let now = SystemTime::now();
        if refresh {
            self.metrics.refreshes.inc();
        }
        match outcome {
            Outcome::Unchanged => self.metrics.polls_unchanged.inc(),
            Outcome::Switched(why, transfer) => {
                self.metrics.polls_changed.inc();
                self.switched(why, transfer);
            }
        }
        let (state, unremoved) = (self.directory.state(), self.directory.unremoved());
        self.metrics.unremoved_releases.set(unremoved as f64);
        self.metrics.last_success.set(unix_seconds(now));
        let release = release_of(&self.directory, &state);
        if let Some(release) = &release {
            self.metrics.generation.set(i64::try_from(release.generation).unwrap_or(i64::MAX));
        }
        self.status.send_modify(|status| {
            if status.last_error.is_some() {
                tracing::info!(service = %self.poller.service, "polls succeed again");
            }
            status.applied = applied(self.hook.is_some(), &self.directory.state());
            status.release = release;
            status.confirmed = true;
            status.unremoved_releases = unremoved;
            status.polls += 1;
            status.refreshes += u64::from(refresh);
            status.unchanged += u64::from(outcome == Outcome::Unchanged);
            (status.last_error, status.problem) = (None, None);
            status.last_error_retryable = false;
            status.is_unpublished = false;
            status.last_poll = Some(now);
            status.last_success = Some(now);
            status.protocol = protocol;
        });
    }

    pub(super) fn failed(&self, failed: &AllEdgesFailed) {
        let message = match (failed.last(), &self.rejected) {
            // Reports the original error.
            (Some(PollError::RejectedBefore), Some((_, why))) => why.clone(),
            _ => failed.to_string(),
        };
        if failed.is_not_found() {
            self.status.send_modify(|status| status.is_unpublished = true);
        }
        let other = Failure { message: String::new(), kind: ProblemKind::Other, is_retryable: true, output: None };
        let failure = Failure { message, ..failed.last().map_or(other, Failure::from) };
        self.record_failure(failure, Some(&failed.request_id));
    }

    /// `request_id`: that of a poll that failed at the edges.
    pub(super) fn record_failure(&self, failure: Failure, request_id: Option<&RequestId>) {
        let Failure { message, kind, is_retryable, output } = failure;
        self.metrics.polls_error.inc();
        let request_id = request_id.map(tracing::field::display);
        self.status.send_modify(|status| {
            // Logged once per reason, not once per poll.
            if status.last_error.as_ref() == Some(&message) {
                tracing::debug!(service = %self.poller.service, error = %message, request_id, "a poll failed again");
            } else {
                tracing::warn!(service = %self.poller.service, error = %message, request_id, "a poll failed");
            }
            status.polls += 1;
            status.errors += 1;
            let now = SystemTime::now();
            let problem = Problem::after(status.problem.as_ref(), kind, message.clone(), now);
            status.problem = Some(Problem { output, ..problem });
            status.last_error = Some(message);
            status.last_error_retryable = is_retryable;
            status.last_poll = Some(now);
        });
    }
}

fn log_switch(follower: &Follower, state: &State, why: SwitchReason, transfer: Option<Transfer>) {
    let Some(release) = &state.release else { return };
    let UpdateParts { wait, fetch, unpack, sync, check, switch } = follower.parts;
    tracing::info!(
        service = %follower.poller.service,
        digest = %release.directory.digest(),
        generation = release.generation,
        commit = release.commit.as_ref().map(tracing::field::display),
        revision_id = release.revision_id.as_ref().map(tracing::field::display),
        why = why.as_str(),
        transfer = transfer.map(|transfer| transfer.kind.as_str()),
        received_bytes = transfer.map(|transfer| transfer.received_bytes),
        tarball_bytes = transfer.map(|transfer| transfer.tarball_bytes),
        wait_ms = milliseconds(wait),
        fetch_ms = milliseconds(fetch),
        unpack_ms = milliseconds(unpack),
        sync_ms = milliseconds(sync),
        check_ms = milliseconds(check),
        switch_ms = milliseconds(switch),
        "switched to another release"
    );
}

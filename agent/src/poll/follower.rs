//! The task that follows one service and owns its directory.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, mpsc, watch};
use weir_protocol::digest::TarballDigest;
use weir_runtime::shutdown::Drain;

use super::error::{AllEdgesFailed, PollError};
use super::poller::{LocalState, PollResult, Poller};
use super::row::{Held, Meaning, ReceivedRow, is_not_published, meaning, offered};
use super::schedule::{Due, Schedule};
use crate::edge_client::Protocol;
use crate::fetch::{Tarball, TarballHeaders};
use crate::generation::highest_credible;
use crate::hook::{Check, Veto};
use crate::metrics::{ServiceMetrics, unix_seconds};
use crate::release::{
    Pins, ReleaseError, ReleaseName, ReleaseRecord, Restored, ServiceDirectory, State, TarError, TarRecord,
};
use crate::status::{HookState, Pinned, Release, ServiceStatus};
use crate::supervise::Task;

/// A command to the task.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    Poll,
    Refresh,
    /// What an edge says about the service, in a batch poll or an event.
    Row(Box<ReceivedRow>),
}

pub(crate) struct Follower {
    pub(crate) poller: Poller,
    pub(crate) directory: Arc<ServiceDirectory>,
    pub(crate) schedule: Schedule,
    /// Within this, a poll follows the row of another release.
    pub(crate) spread: Duration,
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
    /// The pins of all services.
    pub(crate) pins: watch::Receiver<Arc<Pins>>,
    pub(crate) drain: Drain,
    /// A tarball that cannot be unpacked, with the error.
    pub(crate) rejected: Option<(TarballDigest, String)>,
}

/// The outcome of a poll or refresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Unchanged,
    Switched(SwitchReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SwitchReason {
    First,
    Changed,
    /// A refresh found a change that polls had missed.
    MissedChange,
    /// A refresh found modified files on disk.
    Repaired,
    RolledBack,
}

/// A release that is complete on disk.
#[derive(Debug)]
enum Prepared {
    /// It is current and unmodified.
    Current,
    Ready(ReleaseName, SwitchReason, Option<TarRecord>),
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
    /// A drain abandons a download, and waits for a switch.
    async fn run(&mut self) {
        loop {
            let refresh = match self.schedule.due(Instant::now()) {
                Due::Poll => false,
                Due::Refresh => true,
                Due::At(when) => tokio::select! {
                    () = self.drain.begun() => return,
                    command = self.commands.recv() => match command {
                        Some(Command::Poll) => false,
                        Some(Command::Refresh) => true,
                        Some(Command::Row(received)) => match self.take_row(*received).await {
                            Some(()) => continue,
                            None => return,
                        },
                        None => return,
                    },
                    // Perhaps the pin of another service.
                    Ok(()) = self.pins.changed() => match self.pin_has_changed() {
                        true => false,
                        false => continue,
                    },
                    () = tokio::time::sleep_until(when.into()) => continue,
                },
            };
            if self.poll_once(refresh).await.is_none() {
                return;
            }
        }
    }

    fn panicked(&mut self, message: &str) {
        self.poller.metrics.attempt_failed("panic");
        self.schedule.failed(false, None, Instant::now(), fastrand::f64());
        self.record_failure(format!("the agent panicked, which is a bug: {message}"), true);
    }
}

impl Follower {
    /// Polls or refreshes once; `None` when the drain began meanwhile.
    async fn poll_once(&mut self, refresh: bool) -> Option<()> {
        let pinned = match self.restore().await {
            Ok(_) => self.follow_pin().await,
            Err(error) => Err(error),
        };
        let pinned = match pinned {
            Ok(pinned) => pinned,
            Err(error) => {
                self.schedule.failed(refresh, None, Instant::now(), fastrand::f64());
                self.record_failure(error.to_string(), false);
                return Some(());
            }
        };
        let state = self.directory.state();
        let unpacked = self.veto.as_ref().map(|veto| veto.release);
        let local = LocalState {
            digest: state.release.as_ref().map(|release| release.directory.digest()),
            highest_generation: state.highest_generation_within(highest_credible(SystemTime::now())),
            rejected: self.rejected.as_ref().map(|(digest, _)| *digest),
            unpacked: unpacked.filter(|name| self.directory.release_path(*name).is_dir()).map(|name| name.digest()),
            pinned,
        };
        // Edges have no tarball of a pinned release: there is nothing to compare it with.
        let fetch = refresh && !pinned;
        let result = tokio::select! {
            () = self.drain.begun() => return None,
            result = self.poller.run(local, fetch) => result,
        };
        let (found, protocol) = match result {
            Ok(answered) => answered,
            Err(failed) => {
                self.schedule.failed(refresh, failed.retry_after, Instant::now(), fastrand::f64());
                self.failed(&failed);
                return Some(());
            }
        };
        let fetched = match &found {
            PollResult::Fetched(tarball, _) => Some(tarball.digest),
            PollResult::Unchanged(_) | PollResult::Unpacked(_) | PollResult::Held(_) => None,
        };
        match self.apply(found, refresh).await? {
            Ok(outcome) => {
                self.schedule.succeeded(refresh, Instant::now(), fastrand::f64());
                self.succeeded(outcome, fetch, Some(protocol));
            }
            Err(error) => {
                self.schedule.failed(refresh, None, Instant::now(), fastrand::f64());
                if let (Some(digest), PollError::Release(ReleaseError::Tar(why))) = (fetched, &error)
                    && !matches!(why, TarError::Read(_) | TarError::Write { .. })
                {
                    self.rejected = Some((digest, error.to_string()));
                }
                self.record_failure(error.to_string(), error.is_retryable());
            }
        }
        Some(())
    }

    /// A row confirms the release, or is a reason to poll; `None` when the drain began meanwhile.
    async fn take_row(&mut self, received: ReceivedRow) -> Option<()> {
        let ReceivedRow { row, protocol } = received;
        let state = self.directory.state();
        let release = state.release.as_ref();
        let credible = highest_credible(SystemTime::now());
        let held = Held {
            // A poll finds out which generation is right.
            release: release
                .filter(|release| release.generation <= credible)
                .map(|release| (release.directory.digest(), release.generation)),
            highest_generation: state.highest_generation_within(credible),
            pinned: self.status.borrow().pinned.as_ref().map(|pinned| pinned.offered),
            is_failing: self.schedule.is_failing(),
            row_before: self.row,
        };
        let meaning = match (meaning(&row, held), release) {
            (Meaning::Confirmed, Some(release)) if !self.poller.is_proved(release) && held.pinned.is_none() => {
                Meaning::Poll
            }
            (meaning, _) => meaning,
        };
        self.row = offered(&row);
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
                let answer = TarballHeaders {
                    digest: Some(release.directory.digest()),
                    generation: release.generation,
                    commit: release.commit.clone(),
                    revision_id: release.revision_id.clone(),
                };
                let found = match held.pinned {
                    None => PollResult::Unchanged(answer),
                    Some(digest) => PollResult::Held(TarballHeaders { digest, ..answer }),
                };
                let applied = match self.restore().await {
                    Ok(Restored::Forgotten) => {
                        self.schedule.announced(Instant::now(), Duration::ZERO);
                        return Some(());
                    }
                    Ok(_) => self.apply(found, false).await?,
                    Err(error) => Err(error.into()),
                };
                match applied {
                    Ok(outcome) => {
                        self.schedule.confirmed(Instant::now(), fastrand::f64());
                        self.succeeded(outcome, false, Some(protocol));
                    }
                    Err(error) => {
                        self.schedule.failed(false, None, Instant::now(), fastrand::f64());
                        self.record_failure(error.to_string(), error.is_retryable());
                    }
                }
            }
            (Meaning::Poll, _) => self.schedule.announced(Instant::now(), self.spread),
            (Meaning::Confirmed | Meaning::Nothing, _) => {}
        }
        Some(())
    }

    /// Creates what somebody has deleted, before a poll.
    async fn restore(&self) -> Result<Restored, ReleaseError> {
        let restored = self.on_disk(ServiceDirectory::restore).await?;
        match restored {
            Restored::Intact => {}
            Restored::Link => {
                self.metrics.refresh_repaired.inc();
                self.switched(SwitchReason::Repaired);
            }
            Restored::Forgotten => {
                self.metrics.refresh_repaired.inc();
                self.show_release(0);
            }
            Restored::Read => self.show_release(0),
        }
        Ok(restored)
    }

    /// Whether the status shows another pin than there is.
    fn pin_has_changed(&mut self) -> bool {
        let pin = match self.pins.borrow_and_update().get(&self.poller.service) {
            // Until it can be read, the last one stays.
            Some(Err(_)) => return false,
            Some(Ok(pin)) => Some((pin.digest, pin.since)),
            None => None,
        };
        pin != self.status.borrow().pinned.as_ref().map(|pinned| (pinned.digest, pinned.since))
    }

    /// Switches to the pinned release, if there is one; returns whether the service is pinned.
    async fn follow_pin(&mut self) -> Result<bool, ReleaseError> {
        let changed = self.pin_has_changed();
        let service = &self.poller.service;
        let pin = self.pins.borrow().get(service).cloned().transpose().map_err(ReleaseError::Pin)?;
        if changed {
            match pin {
                Some(pin) => tracing::warn!(%service, digest = %pin.digest, "pinned: changes are not followed"),
                None => tracing::info!(%service, "not pinned any more"),
            }
            self.metrics.pinned.set(pin.is_some().into());
            let pinned = pin.map(|pin| Pinned { digest: pin.digest, since: pin.since, offered: None });
            self.status.send_modify(|status| status.pinned = pinned);
        }
        let Some(pin) = pin else { return Ok(false) };
        let current = self.directory.state().release;
        if current.is_none_or(|release| release.directory.digest() != pin.digest) {
            self.veto = None;
            self.on_disk(move |directory| directory.roll_back(pin.digest)).await?;
            self.switched(SwitchReason::RolledBack);
        }
        Ok(true)
    }

    /// Runs something that blocks.
    async fn on_disk<T: Send + 'static>(
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

    /// Applies the result of a poll to the disk; `None` when the drain began meanwhile.
    async fn apply(&mut self, found: PollResult, refresh: bool) -> Option<Result<Outcome, PollError>> {
        let (prepared, answer) = match found {
            PollResult::Unchanged(answer) => {
                self.veto = None;
                let confirmed = self.on_disk(move |directory| confirm(directory, &answer)).await;
                return Some(confirmed.map(|()| Outcome::Unchanged).map_err(PollError::from));
            }
            PollResult::Held(answer) => {
                let offered = answer.digest;
                self.status.send_modify(|status| {
                    status.pinned.as_mut().into_iter().for_each(|pinned| pinned.offered = offered);
                });
                return Some(Ok(Outcome::Unchanged));
            }
            PollResult::Unpacked(answer) => {
                let name = self.veto.as_ref().expect("only a refused release is unpacked and not current").release;
                let first = self.directory.state().release.is_none();
                (Prepared::Ready(name, if first { SwitchReason::First } else { SwitchReason::Changed }, None), answer)
            }
            PollResult::Fetched(tarball, answer) => {
                let expected = answer.clone();
                let max = self.poller.dictionaries.memory.max();
                let prepared =
                    self.on_disk(move |directory| prepare(directory, &tarball, &expected, refresh, max)).await;
                match prepared {
                    Ok(prepared) => (prepared, answer),
                    Err(error) => return Some(Err(error.into())),
                }
            }
        };
        let Prepared::Ready(name, why, tar) = prepared else { return Some(Ok(Outcome::Unchanged)) };
        let record = record(name, tar, &answer);
        // A repair restores content that has passed.
        if why != SwitchReason::Repaired
            && let Err(error) = self.check(&record).await?
        {
            return Some(Err(error));
        }
        // Somebody may have pinned the service while it was fetched or checked.
        let digest = record.directory.digest();
        let pinned = self.on_disk(move |directory| directory.is_pinned_elsewhere(digest)).await;
        match pinned {
            Ok(false) => {}
            Ok(true) => return Some(Ok(Outcome::Unchanged)),
            Err(error) => return Some(Err(error.into())),
        }
        self.veto = None;
        let switched = self.on_disk(move |directory| directory.switch(&record)).await;
        Some(switched.map(|()| Outcome::Switched(why)).map_err(PollError::from))
    }

    /// Runs the check, unless it refused this content a moment ago; `None` when the drain began meanwhile.
    async fn check(&mut self, record: &ReleaseRecord) -> Option<Result<(), PollError>> {
        let Some(check) = &self.check else { return Some(Ok(())) };
        let refused = self.veto.as_ref().filter(|veto| !veto.allows(record.directory, Instant::now()));
        if let Some(veto) = refused {
            return Some(Err(PollError::Vetoed(veto.message.clone())));
        }
        let result = tokio::select! {
            () = self.drain.begun() => return None,
            result = check.run(&self.directory, record.clone(), self.veto.as_ref()) => result,
        };
        if result.is_err() {
            self.poller.metrics.attempt_failed("check");
        }
        Some(result.map_err(|veto| {
            let message = veto.message.clone();
            self.veto = Some(veto);
            PollError::Vetoed(message)
        }))
    }

    /// Reports a switch.
    fn switched(&self, why: SwitchReason) {
        self.metrics.switches.inc();
        log_switch(self, &self.directory.state(), why);
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
            Outcome::Switched(why) => {
                self.metrics.polls_changed.inc();
                match why {
                    SwitchReason::MissedChange => self.metrics.refresh_missed_change.inc(),
                    SwitchReason::Repaired => self.metrics.refresh_repaired.inc(),
                    SwitchReason::First | SwitchReason::Changed | SwitchReason::RolledBack => {}
                }
                self.switched(why);
            }
        }
        let state = self.directory.state();
        self.metrics.last_success.set(unix_seconds(now));
        let release = release_of(&self.directory, &state);
        if let Some(release) = &release {
            self.metrics.generation.set(i64::try_from(release.generation).unwrap_or(i64::MAX));
        }
        self.status.send_modify(|status| {
            if status.last_error.is_some() {
                tracing::info!(service = %self.poller.service, "polls succeed again");
            }
            status.release = release;
            status.confirmed = true;
            status.polls += 1;
            status.refreshes += u64::from(refresh);
            status.unchanged += u64::from(outcome == Outcome::Unchanged);
            status.last_error = None;
            status.last_error_retryable = false;
            status.is_unpublished = false;
            status.last_poll = Some(now);
            status.last_success = Some(now);
            status.protocol = protocol;
        });
    }

    fn failed(&self, failed: &AllEdgesFailed) {
        let message = match (failed.last(), &self.rejected) {
            // Reports the original error.
            (Some(PollError::RejectedBefore), Some((_, why))) => why.clone(),
            _ => failed.to_string(),
        };
        if failed.is_not_found() {
            self.status.send_modify(|status| status.is_unpublished = true);
        }
        self.record_failure(message, failed.last().is_none_or(PollError::is_retryable));
    }

    fn record_failure(&self, message: String, retryable: bool) {
        self.metrics.polls_error.inc();
        self.status.send_modify(|status| {
            // Logged once per reason, not once per poll.
            if status.last_error.as_ref() == Some(&message) {
                tracing::debug!(service = %self.poller.service, error = %message, "a poll failed again");
            } else {
                tracing::warn!(service = %self.poller.service, error = %message, "a poll failed");
            }
            status.polls += 1;
            status.errors += 1;
            status.last_error = Some(message);
            status.last_error_retryable = retryable;
            status.last_poll = Some(SystemTime::now());
        });
    }
}

fn log_switch(follower: &Follower, state: &State, why: SwitchReason) {
    let Some(release) = &state.release else { return };
    tracing::info!(
        service = %follower.poller.service,
        release = %release.directory,
        generation = release.generation,
        revision = release.revision_id.as_ref().map(tracing::field::display),
        why = why.as_str(),
        "switched to another release"
    );
}

/// The release in force, as a status shows it.
pub(crate) fn release_of(directory: &ServiceDirectory, state: &State) -> Option<Release> {
    let record = state.release.as_ref()?;
    Some(Release {
        digest: record.directory.digest(),
        generation: record.generation,
        commit: record.commit.clone(),
        revision_id: record.revision_id.clone(),
        directory: directory.release_path(record.directory),
    })
}

fn record(directory: ReleaseName, tar: Option<TarRecord>, answer: &TarballHeaders) -> ReleaseRecord {
    ReleaseRecord {
        directory,
        tar,
        generation: answer.generation,
        commit: answer.commit.clone(),
        revision_id: answer.revision_id.clone(),
    }
}

/// Records that the release is current, perhaps under a new generation and revision.
fn confirm(directory: &ServiceDirectory, answer: &TarballHeaders) -> Result<(), ReleaseError> {
    let current = directory.state().release.map(|release| record(release.directory, release.tar, answer));
    directory.confirm(answer.generation, current)
}

/// Makes a complete release of a tarball, unless it is in force and unmodified.
fn prepare(
    directory: &ServiceDirectory,
    tarball: &Tarball,
    answer: &TarballHeaders,
    refresh: bool,
    max_dictionary: u64,
) -> Result<Prepared, ReleaseError> {
    let current = directory.state().release.map(|release| release.directory);
    let (why, first_name) = match current {
        None => (SwitchReason::First, 0),
        Some(current) if current.digest() != tarball.digest && refresh => (SwitchReason::MissedChange, 0),
        Some(current) if current.digest() != tarball.digest => (SwitchReason::Changed, 0),
        Some(current) => match directory.compare(&tarball.file, current)? {
            None if directory.points_at(current)? => {
                confirm(directory, answer)?;
                return Ok(Prepared::Current);
            }
            None => {
                tracing::warn!(release = %current, "`current` does not point at the release");
                (SwitchReason::Repaired, 0)
            }
            Some(difference) => {
                tracing::warn!(release = %current, %difference, "the files on disk were modified");
                (SwitchReason::Repaired, 1)
            }
        },
    };
    let name = directory.create_release(&tarball.file, tarball.digest, first_name)?;
    let tar = TarRecord::of(&tarball.file, max_dictionary).map_err(TarError::Read)?;
    Ok(Prepared::Ready(name, why, tar))
}

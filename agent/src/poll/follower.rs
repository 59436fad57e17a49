//! The task that follows one service and owns its directory.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::sync::{Notify, mpsc, watch};
use weir_protocol::digest::TarballDigest;
use weir_runtime::shutdown::Drain;

use super::error::{AllEdgesFailed, PollError};
use super::poller::{LocalState, PollResult, Poller};
use super::schedule::{Due, Schedule};
use crate::edge_client::Protocol;
use crate::fetch::{Tarball, TarballHeaders};
use crate::metrics::{ServiceMetrics, unix_seconds};
use crate::release::{ReleaseError, ReleaseName, ReleaseRecord, ServiceDirectory, State, TarError, TarRecord};
use crate::status::{HookState, Release, ServiceStatus};
use crate::supervise::Task;

/// A command to the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Poll,
    Refresh,
}

pub(crate) struct Follower {
    pub(crate) poller: Poller,
    pub(crate) directory: Arc<ServiceDirectory>,
    pub(crate) schedule: Schedule,
    pub(crate) status: watch::Sender<ServiceStatus>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) metrics: ServiceMetrics,
    /// Notified after each switch; `None` without an `exec`.
    pub(crate) hook: Option<Arc<Notify>>,
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
}

impl SwitchReason {
    fn as_str(self) -> &'static str {
        match self {
            SwitchReason::First => "first release",
            SwitchReason::Changed => "change",
            SwitchReason::MissedChange => "change found by a refresh",
            SwitchReason::Repaired => "files on disk were changed",
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
                        Some(command) => command == Command::Refresh,
                        None => return,
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
        let state = self.directory.state();
        let local = LocalState {
            digest: state.release.as_ref().map(|release| release.directory.digest()),
            highest_generation: state.highest_generation,
            rejected: self.rejected.as_ref().map(|(digest, _)| *digest),
        };
        let result = tokio::select! {
            () = self.drain.begun() => return None,
            result = self.poller.run(local, refresh) => result,
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
            PollResult::Unchanged(_) => None,
        };
        match self.apply(found, refresh).await {
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
                self.record_failure(error.to_string(), error.is_retryable());
            }
        }
        Some(())
    }

    /// Applies the result of a poll to the disk.
    async fn apply(&self, found: PollResult, refresh: bool) -> Result<Outcome, PollError> {
        let (directory, max_dictionary) = (self.directory.clone(), self.poller.dictionaries.memory.max());
        let settled = tokio::task::spawn_blocking(move || match found {
            PollResult::Unchanged(answer) => confirm(&directory, &answer).map(|()| Outcome::Unchanged),
            PollResult::Fetched(tarball, answer) => install(&directory, &tarball, &answer, refresh, max_dictionary),
        });
        Ok(settled.await.map_err(|error| ReleaseError::Disk {
            operation: "work in",
            path: self.poller.incoming.clone(),
            source: std::io::Error::other(error),
        })??)
    }

    fn succeeded(&self, outcome: Outcome, refresh: bool, protocol: Option<Protocol>) {
        let now = SystemTime::now();
        let state = self.directory.state();
        if refresh {
            self.metrics.refreshes.inc();
        }
        match outcome {
            Outcome::Unchanged => self.metrics.polls_unchanged.inc(),
            Outcome::Switched(why) => {
                self.metrics.polls_changed.inc();
                self.metrics.switches.inc();
                match why {
                    SwitchReason::MissedChange => self.metrics.refresh_missed_change.inc(),
                    SwitchReason::Repaired => self.metrics.refresh_repaired.inc(),
                    SwitchReason::First | SwitchReason::Changed => {}
                }
                log_switch(self, &state, why);
            }
        }
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
            match outcome {
                Outcome::Unchanged => status.unchanged += 1,
                Outcome::Switched(_) => {
                    status.switches += 1;
                    // The hook's task may be ahead of this one: the recorded state decides.
                    if self.hook.is_some() && self.directory.hook_job().is_some() {
                        status.hook = HookState::Pending;
                        status.hook_error = None;
                    }
                }
            }
            status.last_error = None;
            status.last_error_retryable = false;
            status.last_poll = Some(now);
            status.last_success = Some(now);
            status.protocol = protocol;
        });
        if let (Outcome::Switched(_), Some(hook)) = (outcome, &self.hook) {
            self.metrics.hook_pending.set(1.0);
            hook.notify_one();
        }
    }

    fn failed(&self, failed: &AllEdgesFailed) {
        let message = match (failed.last(), &self.rejected) {
            // Reports the original error.
            (Some(PollError::RejectedBefore), Some((_, why))) => why.clone(),
            _ => failed.to_string(),
        };
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

/// Switches to the release of a tarball, unless it is in force and unmodified.
fn install(
    directory: &ServiceDirectory,
    tarball: &Tarball,
    answer: &TarballHeaders,
    refresh: bool,
    max_dictionary: u64,
) -> Result<Outcome, ReleaseError> {
    let current = directory.state().release.map(|release| release.directory);
    let (why, first_name) = match current {
        None => (SwitchReason::First, 0),
        Some(current) if current.digest() != tarball.digest && refresh => (SwitchReason::MissedChange, 0),
        Some(current) if current.digest() != tarball.digest => (SwitchReason::Changed, 0),
        Some(current) => match directory.compare(&tarball.file, current)? {
            None if directory.points_at(current)? => {
                confirm(directory, answer)?;
                return Ok(Outcome::Unchanged);
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
    directory.switch(&record(name, tar, answer))?;
    Ok(Outcome::Switched(why))
}

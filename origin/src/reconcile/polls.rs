//! The polls of a repository: when they start, and what their results show.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio_util::task::AbortOnDropHandle;
use weir_source::{LeftOutRef, PollFailure};

use super::job::Job;
use super::poll::{PollResult, Poller, SuccessfulPoll};
use super::repository::Repository;
use super::schedule::Schedule;
use super::state::{Health, MAX_SHOWN_REFS, Phase};
use super::threads::ended;
use weir_model::back_off::MAX_RETRY_AFTER;

/// The polls of a repository. Dropping it stops a running one.
pub(super) struct Polls {
    poller: Arc<Poller>,
    pub(super) schedule: Schedule,
    task: Option<AbortOnDropHandle<PollResult>>,
    /// Whether the content of the repository at other URLs was removed since the start.
    removed_siblings: bool,
}

/// What a poll means for the services.
pub(super) enum PollEnd {
    Succeeded {
        /// Whether the mirror changed.
        changed: bool,
        /// Whether it could follow all refs.
        complete: bool,
    },
    Failed {
        step: &'static str,
        /// Whether the poll before did not fail for the same reason.
        is_new: bool,
    },
}

impl Polls {
    pub(super) fn new(poller: Arc<Poller>, schedule: Schedule) -> Self {
        Self { poller, schedule, task: None, removed_siblings: false }
    }

    /// When the next poll is due. `None`: one is running.
    pub(super) fn due(&self) -> Option<Instant> {
        self.task.is_none().then(|| self.schedule.next())
    }

    pub(super) fn start(&mut self) {
        let now = Instant::now();
        self.schedule.start(now);
        self.poller.state.send_modify(|state| state.first_poll = state.first_poll.or(Some(now)));
        let poller = self.poller.clone();
        self.task = Some(self.poller.repository.threads.spawn(async move { poller.poll().await }));
    }

    /// Waits for the end of a running poll; forever if there is none.
    pub(super) async fn ended(&mut self) -> PollResult {
        let result = ended(&mut self.task).await;
        self.task = None;
        result.unwrap_or_else(PollResult::panicked)
    }

    /// Polls as soon as possible.
    pub(super) fn trigger(&mut self) {
        self.schedule.trigger(Instant::now());
    }

    /// Triggers a poll if the source needs one, such as to repair a damaged mirror.
    pub(super) fn trigger_if_needed(&mut self) {
        if self.poller.repository.source.needs_poll(Instant::now()) {
            self.trigger();
        }
    }

    /// Shows the result of a poll, and schedules the next one.
    pub(super) fn record(&mut self, poll: PollResult, now: SystemTime) -> PollEnd {
        let poller = self.poller.clone();
        let Repository { name, context, .. } = &*poller.repository;
        self.schedule.listing_started(poll.listed_at);
        context.metrics.poll_duration.observe(poll.duration.as_secs_f64());
        poller.state.send_modify(|state| state.polls += 1);
        let (end, result) = match poll.result {
            Ok(success) => self.succeeded(success, now),
            Err(failure) => self.failed(failure, now),
        };
        context.metrics.polls.with_label_values(&[name.as_str(), result]).inc();
        poller.state.send_modify(|state| state.phase = Phase::Idle);
        end
    }

    fn succeeded(&mut self, success: SuccessfulPoll, now: SystemTime) -> (PollEnd, &'static str) {
        let SuccessfulPoll { changed, mut left_out } = success;
        let Repository { name, context, source, threads, .. } = &*self.poller.repository;
        let before = self.poller.state.borrow().clone();
        for LeftOutRef { failure, .. } in &mut left_out {
            failure.reason = context.data_dir.redact(&failure.reason);
        }
        let complete = !left_out.iter().any(|each| each.is_followed);
        for LeftOutRef { name: reference, failure: PollFailure { reason, .. }, .. } in
            left_out.iter().take(MAX_SHOWN_REFS)
        {
            if !before.left_out.iter().any(|known| (&known.name, &known.failure.reason) == (reference, reason)) {
                tracing::warn!(repository = %name, reference, reason, "a ref of the upstream is left out; all others are followed");
            }
        }
        context.metrics.refs_left_out.with_label_values(&[name.as_str()]).set(left_out.len() as i64);
        self.poller.state.send_modify(|state| state.poll_succeeded(left_out, now));
        if complete && matches!(before.health, Health::Unhealthy { .. }) {
            tracing::info!(repository = %name, failures = before.consecutive_failures, "polls of the upstream succeed again");
        }
        if !before.mirrored {
            tracing::info!(repository = %name, "the repository is mirrored");
        }
        if !before.mirrored || !self.removed_siblings {
            // Once after the start too, because an earlier process may have stopped between its clone and this.
            self.removed_siblings = true;
            let source = source.clone();
            drop(Job::start("clean up", threads, move |_| source.remove_siblings()));
        }
        context.metrics.repository_healthy.with_label_values(&[name.as_str()]).set(complete.into());
        context.metrics.last_success.with_label_values(&[name.as_str()]).set(unix_seconds(now));
        self.schedule.succeeded(Instant::now(), fastrand::f64());
        let result = match (complete, changed) {
            (false, _) => "failed",
            (true, true) => "changed",
            (true, false) => "unchanged",
        };
        (PollEnd::Succeeded { changed, complete }, result)
    }

    fn failed(&mut self, mut failure: PollFailure, now: SystemTime) -> (PollEnd, &'static str) {
        let Repository { name, context, .. } = &*self.poller.repository;
        failure.reason = context.data_dir.redact(&failure.reason);
        let PollFailure { step, ref reason, timeout, retry_after, .. } = failure;
        let mut is_new = false;
        let shown = failure.clone();
        self.poller.state.send_modify(|state| is_new = state.poll_failed(shown, now));
        if is_new {
            tracing::warn!(repository = %name, step, reason, "the upstream cannot be polled");
        }
        context.metrics.repository_healthy.with_label_values(&[name.as_str()]).set(0);
        if let Some(pause) = retry_after.filter(|pause| *pause > MAX_RETRY_AFTER) {
            let (seconds, limit) = (pause.as_secs(), MAX_RETRY_AFTER.as_secs());
            tracing::warn!(repository = %name, seconds, limit, "the upstream's `Retry-After` is longer than the limit");
        }
        self.schedule.failed(Instant::now(), retry_after, fastrand::f64());
        (PollEnd::Failed { step, is_new }, if timeout { "timeout" } else { "failed" })
    }

    /// Shows when the next poll is due.
    pub(super) fn show_next(&self) {
        let (now, clock) = (Instant::now(), SystemTime::now());
        let system_time = |at: Instant| clock + at.saturating_duration_since(now);
        let next = self.due().map(system_time);
        let held_until = self.schedule.held_until().filter(|until| *until > now).map(system_time);
        self.poller.state.send_if_modified(|state| {
            let has_changed =
                state.next_poll.is_some() != next.is_some() || state.held_until.is_some() != held_until.is_some();
            state.next_poll = next;
            state.held_until = held_until;
            has_changed
        });
    }
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

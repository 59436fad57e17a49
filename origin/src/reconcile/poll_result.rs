//! Handles the result of a poll.

use std::time::{Instant, SystemTime};

use weir_source::LeftOutRef;

use super::job::Job;
use super::poll::{PollResult, SuccessfulPoll};
use super::service_states::Cause;
use super::state::{Failure, Health, MAX_SHOWN_REFS, Phase};
use super::worker::Worker;
use weir_model::back_off::MAX_RETRY_AFTER;

impl Worker {
    /// Records the result, marks services due and schedules the next poll.
    pub(super) fn handle_poll_result(&mut self, poll: PollResult) {
        self.schedule.listing_started(poll.listed_at);
        let name = self.config.name.clone();
        let context = self.context.clone();
        let metrics = &context.metrics;
        metrics.poll_duration.observe(poll.duration.as_secs_f64());
        self.state.send_modify(|state| state.polls += 1);
        let result = match poll.result {
            Ok(success) => self.poll_succeeded(success, SystemTime::now()),
            Err(failure) => self.poll_failed(failure, SystemTime::now()),
        };
        if poll.hydrated && result != "changed" {
            // Services without a version can be built, even if the upstream is down.
            self.mark_all_due(Cause::Changed);
            self.context.part_sources.notify_publishers(&self.parts);
        }
        metrics.polls.with_label_values(&[name.as_str(), result]).inc();
        self.state.send_modify(|state| state.phase = Phase::Idle);
    }

    fn poll_succeeded(&mut self, success: SuccessfulPoll, now: SystemTime) -> &'static str {
        let SuccessfulPoll { changed, mut left_out } = success;
        let name = self.config.name.clone();
        let before = self.state.borrow().clone();
        for LeftOutRef { reason, .. } in &mut left_out {
            *reason = self.context.data_dir.redact(reason);
        }
        let healthy = !left_out.iter().any(|each| each.is_followed);
        for LeftOutRef { name: reference, reason, .. } in left_out.iter().take(MAX_SHOWN_REFS) {
            if !before.left_out.iter().any(|known| (&known.name, &known.reason) == (reference, reason)) {
                tracing::warn!(repository = %name, reference, reason, "a ref of the upstream is left out; all others are followed");
            }
        }
        self.context.metrics.refs_left_out.with_label_values(&[name.as_str()]).set(left_out.len() as i64);
        self.state.send_modify(|state| state.poll_succeeded(left_out, now));
        if healthy && matches!(before.health, Health::Unhealthy { .. }) {
            tracing::info!(repository = %name, failures = before.consecutive_failures, "polls of the upstream succeed again");
        }
        if !before.mirrored {
            tracing::info!(repository = %name, "the repository is mirrored");
        }
        if !before.mirrored || !self.removed_siblings {
            // Once after the start too, because an earlier process may have stopped between its clone and this.
            self.removed_siblings = true;
            self.remove_siblings();
        }
        self.context.metrics.repository_healthy.with_label_values(&[name.as_str()]).set(healthy.into());
        self.context.metrics.last_success.with_label_values(&[name.as_str()]).set(unix_seconds(now));
        self.maintenance.is_due |= changed;
        self.maintenance.needs_bundle |= changed;
        if changed {
            // The poll may have fetched the commit of a lost version.
            self.lost_versions.clear();
        }
        let polls = self.state.borrow().polls;
        for name in self.services.keys().filter(|name| changed || self.needs_reconcile.contains(*name)) {
            self.states.mark_due(name, Cause::Changed);
            self.unapplied_polls.entry(name.clone()).or_insert(polls);
            self.revisions.set_published(name, None);
        }
        if changed || std::mem::take(&mut self.owes_parts) {
            self.context.part_sources.notify_publishers(&self.parts);
        }
        self.revisions.poll_succeeded(healthy, now);
        self.unreported_results += 1;
        self.schedule.succeeded(Instant::now(), fastrand::f64());
        match (healthy, changed) {
            (false, _) => "failed",
            (true, true) => "changed",
            (true, false) => "unchanged",
        }
    }

    fn poll_failed(&mut self, mut failure: Failure, now: SystemTime) -> &'static str {
        failure.reason = self.context.data_dir.redact(&failure.reason);
        let (step, reason, timeout) = (failure.step, failure.reason.clone(), failure.timeout);
        let retry_after = failure.retry_after;
        // It may have fetched a part, or the disk may be full.
        self.maintenance.is_due |= step == "fetch";
        // Some refs may have changed before the failure, and the next poll does not report them as changed.
        self.needs_reconcile.extend(self.services.keys().cloned());
        self.owes_parts = true;
        let mut is_new = false;
        self.state.send_modify(|state| is_new = state.poll_failed(failure, now));
        if is_new {
            tracing::warn!(repository = %self.config.name, step, reason, "the upstream cannot be polled");
            self.context.part_sources.notify_publishers(&self.parts);
        }
        self.context.metrics.repository_healthy.with_label_values(&[self.config.name.as_str()]).set(0);
        if let Some(pause) = retry_after.filter(|pause| *pause > MAX_RETRY_AFTER) {
            let (seconds, limit) = (pause.as_secs(), MAX_RETRY_AFTER.as_secs());
            tracing::warn!(repository = %self.config.name, seconds, limit, "the upstream's `Retry-After` is longer than the limit");
        }
        self.schedule.failed(Instant::now(), retry_after, fastrand::f64());
        self.revisions.poll_failed(now);
        self.unreported_results += 1;
        self.poll_if_needed();
        if timeout { "timeout" } else { "failed" }
    }

    fn remove_siblings(&self) {
        let source = self.source.clone();
        let removed = Job::start("clean up", &self.context.threads, move |_| source.remove_siblings());
        drop(removed);
    }

    pub(super) fn update_next_poll(&self) {
        let (now, clock) = (Instant::now(), SystemTime::now());
        let system_time = |at: Instant| clock + at.saturating_duration_since(now);
        let next = self.poll_task.is_none().then(|| system_time(self.schedule.next()));
        let held_until = self.schedule.held_until().filter(|until| *until > now).map(system_time);
        self.state.send_if_modified(|state| {
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

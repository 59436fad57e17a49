//! What follows from a poll.

use std::time::{Instant, SystemTime};

use super::back_off::LONGEST_RETRY_AFTER;
use super::job::Job;
use super::poll::{Looked, PollEnd};
use super::state::{Failure, Health, Phase};
use super::work_list::Cause;
use super::worker::Worker;

impl Worker {
    /// A poll has ended.
    pub(super) fn polled(&mut self, end: PollEnd) {
        self.schedule.looked(end.begun);
        let name = self.config.name.clone();
        let context = self.context.clone();
        let metrics = &context.metrics;
        metrics.poll_duration.observe(end.took.as_secs_f64());
        self.state.send_modify(|state| state.polls += 1);
        let result = match end.result {
            Ok(looked) => self.poll_succeeded(looked, SystemTime::now()),
            Err(failure) => self.poll_failed(failure, SystemTime::now()),
        };
        metrics.polls.with_label_values(&[name.as_str(), result]).inc();
        self.state.send_modify(|state| state.phase = Phase::Idle);
    }

    fn poll_succeeded(&mut self, looked: Looked, now: SystemTime) -> &'static str {
        let Looked { changed, mut astray } = looked;
        let name = self.config.name.clone();
        let before = self.state.borrow().clone();
        let healthy = astray.is_none();
        if let Some(failure) = &mut astray {
            failure.reason = self.context.data_dir.redact(&failure.reason);
        }
        let told = astray.clone();
        let mut news = false;
        self.state.send_modify(|state| news = state.poll_succeeded(told, now));
        if let Some(Failure { step, reason, .. }) = astray.filter(|_| news) {
            tracing::warn!(repository = %name, step, reason, "a ref cannot be followed; all others are");
        }
        if healthy && matches!(before.health, Health::Unhealthy { .. }) {
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
        self.context.metrics.repository_healthy.with_label_values(&[name.as_str()]).set(healthy.into());
        self.context.metrics.last_success.with_label_values(&[name.as_str()]).set(unix_seconds(now));
        self.upkeep_due |= changed;
        if changed {
            // The commit of a version may have come.
            self.lost_versions.clear();
        }
        let polls = self.state.borrow().polls;
        for name in self.services.keys().filter(|name| changed || self.needs_reconcile.contains(*name)) {
            self.list.due(name, Cause::Follow);
            self.awaited.entry(name.clone()).or_insert(polls);
            // Until it was looked at nothing is known of where it is now.
            self.revisions.settle(name, None);
        }
        self.revisions.answered(healthy, now);
        self.settled += 1;
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
        // Some of it may have come, or there may be no more room for it.
        self.upkeep_due |= step == "fetch";
        // Some refs may have moved before it failed, and the next poll finds nothing new then.
        self.needs_reconcile.extend(self.services.keys().cloned());
        let mut news = false;
        self.state.send_modify(|state| news = state.poll_failed(failure, now));
        if news {
            tracing::warn!(repository = %self.config.name, step, reason, "the upstream cannot be polled");
        }
        self.context.metrics.repository_healthy.with_label_values(&[self.config.name.as_str()]).set(0);
        if let Some(pause) = retry_after.filter(|pause| *pause > LONGEST_RETRY_AFTER) {
            let (asked, kept) = (pause.as_secs(), LONGEST_RETRY_AFTER.as_secs());
            tracing::warn!(repository = %self.config.name, asked, kept, "the upstream asks for a longer pause than is kept");
        }
        self.schedule.failed(Instant::now(), retry_after, fastrand::f64());
        self.revisions.unreachable(now);
        self.settled += 1;
        self.mend_mirror();
        if timeout { "timeout" } else { "failed" }
    }

    fn remove_other_mirrors(&self) {
        let source = self.source.clone();
        let removed = Job::start("clean up", &self.context.threads, move |_| source.remove_other_mirrors());
        drop(removed);
    }

    /// Shows when the next poll is, as far as is known while one may be under way.
    pub(super) fn show_next_poll(&self, polling: bool) {
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

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

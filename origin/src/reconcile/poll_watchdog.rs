//! Pure: the watchdog of a poll, which expires when the poll is too slow. Time is an argument.
//!
//! Other polls wait for its permit, so it must list refs in time and receive packs at a minimum rate, like Git's
//! `http.lowSpeedLimit`.

use std::time::{Duration, Instant};

use weir_source::PollFailure;
use weir_upstream::FetchSnapshot;

/// The longest time without progress, and for listing refs, in stall timeouts.
const IDLE_STALLS: u32 = 4;

/// The longest time in which the upstream may prepare a pack, in stall timeouts. A first clone has the whole poll timeout,
/// because it has a permit of its own kind.
const PREPARE_STALLS: u32 = 10;

/// The limits of a poll.
#[derive(Debug, Clone, Copy)]
pub(super) struct PollLimits {
    pub(super) poll_timeout: Duration,
    pub(super) stall_timeout: Duration,
    /// The minimum rate of a pack in bytes per second, on average over the longest idle time.
    pub(super) min_rate: u64,
}

/// Observes the progress of a poll.
pub(super) struct PollWatchdog {
    started_at: Instant,
    limits: PollLimits,
    progress: FetchSnapshot,
    phase_since: Instant,
    /// The last observation that counted as progress.
    last_progress: FetchSnapshot,
    last_progress_at: Instant,
}

impl PollWatchdog {
    pub(super) fn new(progress: FetchSnapshot, limits: PollLimits, now: Instant) -> Self {
        Self { started_at: now, limits, progress, phase_since: now, last_progress: progress, last_progress_at: now }
    }

    /// The last observation.
    pub(super) fn progress(&self) -> FetchSnapshot {
        self.progress
    }

    pub(super) fn observe(&mut self, progress: FetchSnapshot, now: Instant) {
        let before = std::mem::replace(&mut self.progress, progress);
        if before.phase != progress.phase {
            self.phase_since = now;
        }
        if self.has_progressed() {
            (self.last_progress, self.last_progress_at) = (progress, now);
        }
    }

    /// In a pack, only a whole idle time's worth of bytes at the minimum rate counts as progress.
    fn has_progressed(&self) -> bool {
        if (self.last_progress.phase, self.progress.phase) != ("receiving", "receiving") {
            return self.last_progress != self.progress;
        }
        let enough = self.limits.min_rate.saturating_mul(self.max_idle().as_secs().max(1)).max(1);
        self.progress.bytes.saturating_sub(self.last_progress.bytes) >= enough
    }

    fn max_idle(&self) -> Duration {
        self.limits.stall_timeout * IDLE_STALLS
    }

    /// Returns why the poll must be stopped, if it must. `is_clone`: it fetches the whole repository.
    pub(super) fn expired(&self, is_clone: bool, now: Instant) -> Option<PollFailure> {
        let PollLimits { poll_timeout, stall_timeout, min_rate } = self.limits;
        let (max_idle, max_prepare) = (self.max_idle(), stall_timeout * PREPARE_STALLS);
        let elapsed = now - self.started_at;
        let (phase, step) = (self.progress.phase, step_of(self.progress.phase));
        let reason = if elapsed >= poll_timeout {
            format!("the poll took longer than {} s", poll_timeout.as_secs())
        } else if elapsed >= max_idle && step != "fetch" {
            format!("the refs were not listed within {} s", max_idle.as_secs())
        } else if phase == "preparing" && !is_clone && now - self.phase_since >= max_prepare {
            format!("the upstream did not start to send the changes within {} s", max_prepare.as_secs())
        } else if now - self.last_progress_at < max_idle {
            return None;
        } else if phase == "receiving" && self.last_progress.bytes < self.progress.bytes {
            let bytes = self.progress.bytes - self.last_progress.bytes;
            format!(
                "the upstream sent {bytes} bytes within {} s; `[upstreams] min_rate` = {min_rate} bytes per second",
                (now - self.last_progress_at).as_secs()
            )
        } else {
            format!("the poll made no progress for {} s", max_idle.as_secs())
        };
        Some(PollFailure::new(step, "timeout", &reason, true, None))
    }
}

/// The failed step, by the phase of the fetch.
fn step_of(phase: &str) -> &'static str {
    match phase {
        "connecting" => "connect",
        "listing" => "list refs",
        _ => "fetch",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PollLimits =
        PollLimits { poll_timeout: Duration::from_secs(100), stall_timeout: Duration::from_secs(3), min_rate: 10 };

    fn at(phase: &'static str, done: u64, bytes: u64) -> FetchSnapshot {
        FetchSnapshot { phase, done, total: None, bytes }
    }

    /// Observes a poll every second. Returns when it is stopped, and why.
    fn observed(is_clone: bool, progress: impl Fn(u64) -> FetchSnapshot) -> Option<(u64, PollFailure)> {
        let start = Instant::now();
        let mut watchdog = PollWatchdog::new(progress(0), LIMITS, start);
        (1..1000).find_map(|second| {
            let now = start + Duration::from_secs(second);
            watchdog.observe(progress(second), now);
            Some((second, watchdog.expired(is_clone, now)?))
        })
    }

    #[track_caller]
    fn stopped(after: u64, step: &str, words: &str, expired: Option<(u64, PollFailure)>) {
        let (second, failure) = expired.unwrap();
        assert_eq!((second, failure.step, failure.timeout), (after, step, true), "{failure:?}");
        assert!(failure.reason.contains(words), "{failure:?}");
    }

    #[test]
    fn a_poll_with_progress_is_stopped_only_at_its_deadline() {
        stopped(100, "fetch", "longer than 100 s", observed(false, |second| at("receiving", 0, second * 10)));
        // After the pack was received this machine is the slow part.
        stopped(100, "fetch", "longer than 100 s", observed(false, |second| at("resolving", second, 5)));
        stopped(100, "fetch", "longer than 100 s", observed(true, |second| at("preparing", second, 0)));
        // Bursts, with pauses shorter than the longest idle time.
        stopped(100, "fetch", "longer than 100 s", observed(false, |second| at("receiving", 0, second / 10 * 1000)));
    }

    #[test]
    fn a_slow_listing_is_stopped_early() {
        stopped(12, "list refs", "not listed within 12 s", observed(true, |second| at("listing", second, 0)));
    }

    #[test]
    fn a_slow_pack_is_stopped_early() {
        for is_clone in [true, false] {
            let slow = observed(is_clone, |second| at("receiving", second, second * 9));
            stopped(12, "fetch", "sent 108 bytes within 12 s", slow);
            stopped(12, "fetch", "no progress for 12 s", observed(is_clone, |_| at("receiving", 3, 5)));
        }
    }

    #[test]
    fn changes_must_be_prepared_in_time() {
        stopped(30, "fetch", "did not start to send", observed(false, |second| at("preparing", second, 0)));
        stopped(12, "fetch", "no progress", observed(false, |_| at("preparing", 1, 0)));
    }
}

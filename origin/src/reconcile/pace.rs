//! Whether a poll gets anywhere. Pure.
//!
//! Others wait for its place. So not every sign of life counts: what is listed has to be listed in time, and what comes of a
//! pack has to come at a least rate, as with the low speed that Git's own client gives up at.

use std::time::{Duration, Instant};

use super::state::Failure;
use crate::source::FetchSnapshot;

/// A poll that makes no progress for this many stall timeouts hangs somewhere that its own timeouts do not reach, and refs
/// are listed within as many, however little comes at a time.
const LATE_AFTER_STALLS: u32 = 4;

/// Within so many stall timeouts the upstream begins to send what changed: it may have to put that together first, and says
/// a word now and then. A first clone has the whole deadline of a poll for it, and a place that only first clones wait for.
const PREPARED_AFTER_STALLS: u32 = 10;

/// What is expected of a poll.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// The longest that it may take.
    pub(super) longest: Duration,
    /// The longest silence of its upstream.
    pub(super) stall_timeout: Duration,
    /// The fewest bytes of a pack in a second, on average over some stall timeouts.
    pub(super) min_rate: u64,
}

/// The progress of a poll, and how far it was when it last had got somewhere.
pub(super) struct Pace {
    begun: Instant,
    expected: Expected,
    progress: FetchSnapshot,
    /// Since when it is in this phase.
    in_phase_since: Instant,
    /// Where it was then.
    mark: FetchSnapshot,
    marked: Instant,
}

impl Pace {
    pub(super) fn new(progress: FetchSnapshot, expected: Expected, begun: Instant) -> Self {
        Self { begun, expected, progress, in_phase_since: begun, mark: progress, marked: begun }
    }

    /// How far it is.
    pub(super) fn progress(&self) -> FetchSnapshot {
        self.progress
    }

    pub(super) fn look(&mut self, progress: FetchSnapshot, now: Instant) {
        let before = std::mem::replace(&mut self.progress, progress);
        if before.phase != progress.phase {
            self.in_phase_since = now;
        }
        if self.got_somewhere() {
            (self.mark, self.marked) = (progress, now);
        }
    }

    /// So much of a pack is expected until the next mark: what is late is more than that rate late.
    fn got_somewhere(&self) -> bool {
        if (self.mark.phase, self.progress.phase) != ("receiving", "receiving") {
            return self.mark != self.progress;
        }
        let enough = self.expected.min_rate.saturating_mul(self.standstill().as_secs().max(1)).max(1);
        self.progress.bytes.saturating_sub(self.mark.bytes) >= enough
    }

    fn standstill(&self) -> Duration {
        self.expected.stall_timeout * LATE_AFTER_STALLS
    }

    /// Why the poll is to be given up, if it is. `large`: it fetches the whole repository.
    pub(super) fn late(&self, large: bool, now: Instant) -> Option<Failure> {
        let Expected { longest, stall_timeout, min_rate } = self.expected;
        let (standstill, prepared) = (self.standstill(), stall_timeout * PREPARED_AFTER_STALLS);
        let took = now - self.begun;
        let (phase, step) = (self.progress.phase, step_of(self.progress.phase));
        let reason = if took >= longest {
            format!("the poll took longer than {} s", longest.as_secs())
        } else if took >= standstill && step != "fetch" {
            format!("the refs were not listed within {} s", standstill.as_secs())
        } else if phase == "preparing" && !large && now - self.in_phase_since >= prepared {
            format!("the upstream did not begin to send what changed within {} s", prepared.as_secs())
        } else if now - self.marked < standstill {
            return None;
        } else if phase == "receiving" && self.mark.bytes < self.progress.bytes {
            let bytes = self.progress.bytes - self.mark.bytes;
            format!(
                "the upstream sent {bytes} bytes within {} s, and `[upstreams] min_rate` = {min_rate} in a second",
                (now - self.marked).as_secs()
            )
        } else {
            format!("the poll stood still for {} s", standstill.as_secs())
        };
        Some(Failure { step, reason, timeout: true, retry_after: None })
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

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected =
        Expected { longest: Duration::from_secs(100), stall_timeout: Duration::from_secs(3), min_rate: 10 };

    fn at(phase: &'static str, done: u64, bytes: u64) -> FetchSnapshot {
        FetchSnapshot { phase, done, total: None, bytes }
    }

    /// What becomes of a poll whose progress is looked at each second: when it is given up, and why.
    fn watched(large: bool, progress: impl Fn(u64) -> FetchSnapshot) -> Option<(u64, Failure)> {
        let begun = Instant::now();
        let mut pace = Pace::new(progress(0), EXPECTED, begun);
        (1..1000).find_map(|second| {
            let now = begun + Duration::from_secs(second);
            pace.look(progress(second), now);
            Some((second, pace.late(large, now)?))
        })
    }

    #[track_caller]
    fn given_up(after: u64, step: &str, words: &str, late: Option<(u64, Failure)>) {
        let (second, failure) = late.unwrap();
        assert_eq!((second, failure.step, failure.timeout), (after, step, true), "{failure:?}");
        assert!(failure.reason.contains(words), "{failure:?}");
    }

    #[test]
    fn a_poll_that_gets_somewhere_is_given_up_only_at_its_deadline() {
        given_up(100, "fetch", "longer than 100 s", watched(false, |second| at("receiving", 0, second * 10)));
        // Once all is here it is this machine that works.
        given_up(100, "fetch", "longer than 100 s", watched(false, |second| at("resolving", second, 5)));
        given_up(100, "fetch", "longer than 100 s", watched(true, |second| at("preparing", second, 0)));
        // Quick at times, and silent for less than a standstill.
        given_up(100, "fetch", "longer than 100 s", watched(false, |second| at("receiving", 0, second / 10 * 1000)));
    }

    #[test]
    fn a_listing_that_drips_is_given_up_early() {
        given_up(12, "list refs", "not listed within 12 s", watched(true, |second| at("listing", second, 0)));
    }

    #[test]
    fn a_pack_that_drips_is_given_up_early() {
        for large in [true, false] {
            let drips = watched(large, |second| at("receiving", second, second * 9));
            given_up(12, "fetch", "sent 108 bytes within 12 s", drips);
            given_up(12, "fetch", "stood still for 12 s", watched(large, |_| at("receiving", 3, 5)));
        }
    }

    #[test]
    fn what_changed_is_put_together_in_time() {
        given_up(30, "fetch", "did not begin to send", watched(false, |second| at("preparing", second, 0)));
        given_up(12, "fetch", "stood still", watched(false, |_| at("preparing", 1, 0)));
    }
}

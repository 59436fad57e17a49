//! When to poll. Pure: the time and chance are arguments.
//!
//! Intervals are jittered, and each pair of agent and service has its own phase, so that agents that start together do
//! not poll together.

use std::time::{Duration, Instant};

use weir_protocol::name::{NodeName, ServiceName};

use crate::phase::phase;

/// The first back-off after an error.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// How many intervals pass before a service is polled by itself after a batch poll confirmed its release.
const SINGLE_AFTER: u32 = 2;

/// The longest `Retry-After` that is honoured.
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// The shortest time between two polls that events ask for, whatever an edge says.
pub(super) const ANNOUNCED_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing before this time.
    At(Instant),
    Poll,
    Refresh,
}

/// The schedule of one service.
#[derive(Debug)]
pub(crate) struct Schedule {
    poll_interval: Duration,
    refresh_interval: Duration,
    /// The position of the polls in the interval, from 0 to 1.
    phase: f64,
    polled_before: bool,
    errors: u32,
    /// Consecutive failed refreshes, polls not counted.
    refresh_errors: u32,
    next_poll: Instant,
    /// An event causes no poll before this.
    not_before: Instant,
    next_refresh: Instant,
}

impl Schedule {
    /// The first poll is due immediately.
    pub(crate) fn new(
        agent: &NodeName,
        service: &ServiceName,
        poll_interval: Duration,
        refresh_interval: Duration,
        now: Instant,
    ) -> Self {
        // Never immediately, because the first poll is.
        let refresh_phase = 0.1 + 0.9 * phase(&[agent.as_str(), "refresh", service.as_str()]);
        Self {
            poll_interval,
            refresh_interval,
            phase: phase(&[agent.as_str(), "poll", service.as_str()]),
            polled_before: false,
            errors: 0,
            refresh_errors: 0,
            next_poll: now,
            not_before: now,
            next_refresh: now + refresh_interval.mul_f64(refresh_phase),
        }
    }

    /// What is due now. A refresh replaces a poll.
    pub(crate) fn due(&self, now: Instant) -> Due {
        if self.next_refresh <= now && self.errors == 0 {
            Due::Refresh
        } else if self.next_poll <= now {
            Due::Poll
        } else if self.errors == 0 {
            Due::At(self.next_poll.min(self.next_refresh))
        } else {
            Due::At(self.next_poll)
        }
    }

    /// Reports a success. `random` is from 0 to 1. After the start, and after an outage, agents go back to their phases.
    pub(crate) fn succeeded(&mut self, refreshed: bool, now: Instant, random: f64) {
        let is_in_phase = self.polled_before && self.errors == 0;
        self.errors = 0;
        self.next_poll = now
            + if is_in_phase {
                jittered(self.poll_interval, random)
            } else {
                self.poll_interval.mul_f64(0.1 + 0.9 * self.phase)
            };
        self.polled_before = true;
        if refreshed {
            self.refresh_errors = 0;
            self.next_refresh = now + jittered(self.refresh_interval, random);
        }
    }

    /// A batch poll confirmed the release. The service is polled by itself when the next ones do not.
    pub(crate) fn confirmed(&mut self, now: Instant, random: f64) {
        self.errors = 0;
        self.polled_before = true;
        self.next_poll = now + jittered(self.poll_interval.saturating_mul(SINGLE_AFTER), random);
    }

    /// An edge said that there is another release: a poll is due within `spread`, always at the same part of it.
    pub(crate) fn announced(&mut self, now: Instant, spread: Duration) {
        let due = (now + spread.mul_f64(self.phase)).max(self.not_before);
        if due < self.next_poll {
            (self.next_poll, self.not_before) = (due, due + ANNOUNCED_PAUSE);
        }
    }

    /// The service was assigned to many agents at once: the first poll is due within `spread`.
    pub(crate) fn begin_within(&mut self, now: Instant, spread: Duration) {
        self.next_poll = now + spread.mul_f64(self.phase);
    }

    /// Whether the last poll failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.errors > 0
    }

    /// Reports a failure at every edge, with the longest `Retry-After`.
    ///
    /// Failed refreshes back off by themselves, up to their interval: each is a full download, and a successful poll
    /// says nothing about it.
    pub(crate) fn failed(&mut self, refresh: bool, retry_after: Option<Duration>, now: Instant, random: f64) {
        let retry_after = retry_after.unwrap_or_default().min(MAX_RETRY_AFTER).mul_f64(1.0 + 0.1 * random);
        self.next_poll = now + back_off(&mut self.errors, self.poll_interval, random).max(retry_after);
        if refresh {
            let pause = back_off(&mut self.refresh_errors, self.refresh_interval, random);
            self.next_refresh = self.next_refresh.max(now + pause.max(retry_after));
        }
    }
}

/// Counts an error and returns the back-off: doubled with each up to `longest`, with 50 % jitter.
pub(super) fn back_off(errors: &mut u32, longest: Duration, random: f64) -> Duration {
    let doubled = FIRST_BACKOFF.saturating_mul(1u32.checked_shl(*errors).unwrap_or(u32::MAX));
    *errors = errors.saturating_add(1);
    doubled.min(longest).mul_f64(0.5 + 0.5 * random)
}

pub(super) fn jittered(interval: Duration, random: f64) -> Duration {
    interval.mul_f64(0.9 + 0.2 * random)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLL: Duration = Duration::from_secs(30);
    const REFRESH: Duration = Duration::from_secs(7200);

    fn schedule(agent: &str, now: Instant) -> Schedule {
        Schedule::new(&agent.parse().unwrap(), &"shop".parse().unwrap(), POLL, REFRESH, now)
    }

    fn wait(schedule: &Schedule, now: Instant) -> Duration {
        match schedule.due(now) {
            Due::At(when) => when - now,
            Due::Poll | Due::Refresh => Duration::ZERO,
        }
    }

    /// The waits of a fleet after something that all agents of an edge see at once are spread from `least` to `most`.
    fn assert_spread(least: Duration, most: Duration, at_once: impl Fn(&mut Schedule, Instant)) {
        let now = Instant::now();
        let mut tenths = [0; 10];
        for agent in 0..1000 {
            let mut schedule = schedule(&format!("agent-{agent}"), now);
            assert_eq!(schedule.due(now), Due::Poll, "the first poll is immediate");
            at_once(&mut schedule, now);
            let wait = wait(&schedule, now);
            assert!((least..=most).contains(&wait), "{wait:?}");
            tenths[((wait - least).as_secs_f64() / (most - least).as_secs_f64() * 9.999) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (60..=140).contains(count)), "{tenths:?}");
    }

    #[test]
    fn starts_outages_and_events_do_not_make_a_herd() {
        assert_spread(POLL / 10, POLL, |schedule, now| schedule.succeeded(false, now, 0.5));
        assert_spread(POLL / 10, POLL, |schedule, now| {
            schedule.succeeded(false, now, 0.5);
            schedule.failed(false, None, now, 0.5);
            schedule.succeeded(false, now, 0.5);
        });
        let spread = POLL / 3;
        assert_spread(Duration::ZERO, spread, |schedule, now| {
            schedule.confirmed(now, 0.5);
            schedule.announced(now, spread);
        });
        assert_spread(Duration::ZERO, spread, |schedule, now| schedule.begin_within(now, spread));
    }

    #[test]
    fn later_polls_keep_the_interval_within_a_tenth() {
        let now = Instant::now();
        let mut schedule = schedule("a", now);
        schedule.succeeded(false, now, 0.5);
        for (random, factor) in [(0.0, 0.9), (0.5, 1.0), (1.0, 1.1)] {
            schedule.succeeded(false, now, random);
            assert_eq!(wait(&schedule, now).as_millis(), POLL.mul_f64(factor).as_millis());
        }
    }

    #[test]
    fn a_refresh_is_due_once_per_interval_and_not_during_errors() {
        let start = Instant::now();
        let mut schedule = schedule("a", start);
        schedule.succeeded(false, start, 0.5);
        let late = start + REFRESH;
        assert_eq!(schedule.due(late), Due::Refresh);
        schedule.failed(true, None, late, 0.0);
        assert!(matches!(schedule.due(late), Due::At(_)), "backing off");
        assert_eq!(schedule.due(late + POLL), Due::Poll, "first see whether the edge is back");
        schedule.succeeded(false, late + POLL, 0.5);
        assert_eq!(schedule.due(late + POLL), Due::Refresh);
        schedule.succeeded(true, late + POLL, 0.5);
        assert_eq!(wait(&schedule, late + POLL), POLL);
        assert_eq!(schedule.next_refresh, late + POLL + REFRESH);
    }

    #[test]
    fn errors_double_the_pause_up_to_the_interval() {
        let now = Instant::now();
        let mut schedule = schedule("a", now);
        let mut pauses = Vec::new();
        for _ in 0..40 {
            schedule.failed(false, None, now, 1.0);
            pauses.push(wait(&schedule, now).as_secs());
        }
        assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pauses[39], 30);
        schedule.succeeded(false, now, 0.5);
        schedule.failed(false, None, now, 0.0);
        assert_eq!(wait(&schedule, now), FIRST_BACKOFF / 2);
    }

    #[test]
    fn a_failing_refresh_backs_off_while_polls_succeed() {
        let mut now = Instant::now();
        let mut schedule = schedule("a", now);
        let end = now + 10 * REFRESH;
        let mut refreshes = 0;
        while now < end {
            match schedule.due(now) {
                Due::Poll => schedule.succeeded(false, now, 0.5),
                Due::Refresh => {
                    refreshes += 1;
                    schedule.failed(true, None, now, 0.5);
                }
                Due::At(when) => now = when,
            }
        }
        assert!((10..=30).contains(&refreshes), "{refreshes} downloads in ten intervals");
        schedule.succeeded(true, now, 0.5);
        assert_eq!(schedule.refresh_errors, 0);
    }

    #[test]
    fn events_cause_one_poll_in_a_second() {
        let now = Instant::now();
        let mut schedule = Schedule::new(&"a".parse().unwrap(), &"s".parse().unwrap(), POLL, REFRESH, now);
        schedule.succeeded(false, now, 0.5);
        schedule.announced(now, Duration::ZERO);
        assert_eq!(schedule.due(now), Due::Poll);
        schedule.succeeded(false, now, 0.5);
        schedule.announced(now, Duration::ZERO);
        schedule.announced(now, Duration::ZERO);
        assert_eq!(schedule.due(now), Due::At(now + ANNOUNCED_PAUSE));
    }

    proptest! {
        #[test]
        fn retry_after_is_a_lower_bound_up_to_ten_minutes(seconds in 0u64..100_000, random in 0.0f64..=1.0) {
            let now = Instant::now();
            let mut schedule = schedule("a", now);
            schedule.failed(false, Some(Duration::from_secs(seconds)), now, random);
            let wait = wait(&schedule, now);
            prop_assert!(wait >= Duration::from_secs(seconds.min(600)));
            prop_assert!(wait <= Duration::from_secs(seconds.clamp(1, 660)).mul_f64(1.1));
        }
    }
}

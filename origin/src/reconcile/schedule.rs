//! Pure: when a repository is polled. Time and chance are arguments.
//!
//! | event | next poll |
//! |---|---|
//! | `start`: the poll starts, maybe with a wait for a permit | – |
//! | `listing_started`: it queries the upstream now | earlier triggers are served by it |
//! | `succeeded` | after the interval; at once if it was triggered meanwhile |
//! | `failed` | after a back-off, or after `Retry-After` if that is longer |
//! | `trigger`: a webhook or an operator | at once |
//!
//! The next poll never starts before the minimum interval and the upstream's `Retry-After` have passed.

use std::time::{Duration, Instant};

use weir_model::back_off::{back_off, bounded_retry_after, jittered};

/// With more repositories than this, their first polls are spread.
const SPREAD_ABOVE: usize = 20;

/// The time over which first polls are spread, for each repository.
const SPREAD_PER_REPOSITORY: Duration = Duration::from_millis(50);

/// The delay of a repository's first poll after the start. `chance` is in `0.0..1.0`.
pub(crate) fn first_delay(repositories: usize, interval: Duration, chance: f64) -> Duration {
    if repositories <= SPREAD_ABOVE {
        return Duration::ZERO;
    }
    let spread = SPREAD_PER_REPOSITORY.saturating_mul(u32::try_from(repositories).unwrap_or(u32::MAX));
    spread.min(interval).mul_f64(chance)
}

/// The schedule of one repository.
#[derive(Debug)]
pub(super) struct Schedule {
    interval: Duration,
    /// The shortest time between the starts of two polls, also for triggers.
    min_interval: Duration,
    /// Consecutive failures.
    failures: u32,
    last_start: Option<Instant>,
    triggered_at: Option<Instant>,
    /// The end of the upstream's `Retry-After`. Triggers do not shorten it.
    held_until: Option<Instant>,
    next: Instant,
}

impl Schedule {
    /// A schedule whose first poll is due at `first`. `min_interval` is limited to the interval.
    pub(super) fn new(interval: Duration, min_interval: Duration, first: Instant) -> Self {
        Self {
            interval,
            min_interval: min_interval.min(interval),
            failures: 0,
            last_start: None,
            triggered_at: None,
            held_until: None,
            next: first,
        }
    }

    /// Changes the intervals. A poll that is due later than the new interval is moved forward, unless the last poll failed.
    pub(super) fn reconfigure(&mut self, interval: Duration, min_interval: Duration, now: Instant) {
        (self.interval, self.min_interval) = (interval, min_interval.min(interval));
        if self.failures == 0 {
            self.next = self.next.min(self.earliest(now).max(now + interval));
        }
    }

    /// Adopts the end of a `Retry-After` that another worker received.
    pub(super) fn hold_until(&mut self, until: Instant) {
        self.held_until = Some(until);
        self.next = self.next.max(until);
    }

    /// When the next poll is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// The end of the upstream's `Retry-After`.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held_until
    }

    /// Polls as soon as possible, because the upstream may have changed. A trigger during a poll causes another one, because
    /// the running one may have listed the refs already.
    pub(super) fn trigger(&mut self, now: Instant) {
        self.triggered_at = Some(now);
        self.next = self.next.min(self.earliest(now));
    }

    /// A poll starts. It may wait for a permit first.
    pub(super) fn start(&mut self, now: Instant) {
        self.last_start = Some(now);
        self.triggered_at = None;
    }

    /// The poll started to list the refs at `at`. It serves all earlier triggers.
    pub(super) fn listing_started(&mut self, at: Instant) {
        self.last_start = Some(at);
        self.triggered_at = self.triggered_at.filter(|triggered_at| *triggered_at >= at);
    }

    /// The poll succeeded. `chance` is in `0.0..1.0`.
    pub(super) fn succeeded(&mut self, now: Instant, chance: f64) {
        self.failures = 0;
        self.held_until = None;
        self.ended(now, self.interval, chance);
    }

    /// The poll failed, maybe with a `Retry-After`.
    pub(super) fn failed(&mut self, now: Instant, retry_after: Option<Duration>, chance: f64) {
        self.failures = self.failures.saturating_add(1);
        self.held_until = retry_after.map(|pause| now + bounded_retry_after(pause, chance));
        self.ended(now, back_off(self.interval, self.failures), chance);
    }

    fn ended(&mut self, now: Instant, pause: Duration, chance: f64) {
        let earliest = self.earliest(now);
        self.next = if self.triggered_at.is_some() { earliest } else { earliest.max(now + jittered(pause, chance)) };
    }

    fn earliest(&self, now: Instant) -> Instant {
        let earliest = self.last_start.map_or(now, |start| now.max(start + self.min_interval));
        self.held_until.map_or(earliest, |until| earliest.max(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_model::back_off::MAX_RETRY_AFTER;

    const MINUTE: Duration = Duration::from_secs(60);
    const MIN_INTERVAL: Duration = Duration::from_secs(1);
    const MIDDLE: f64 = 0.5;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_new_interval_applies_at_once_but_shortens_no_retry_after() {
        let start = Instant::now();
        let mut schedule = Schedule::new(60 * MINUTE, MIN_INTERVAL, start);
        schedule.start(start);
        schedule.succeeded(start, MIDDLE);
        schedule.reconfigure(2 * MINUTE, MIN_INTERVAL, start + MINUTE);
        assert_eq!(schedule.next(), start + 3 * MINUTE);
        schedule.reconfigure(60 * MINUTE, MIN_INTERVAL, start + MINUTE);
        assert_eq!(schedule.next(), start + 3 * MINUTE, "a poll that is due sooner stays");

        schedule.start(start + 3 * MINUTE);
        schedule.failed(start + 3 * MINUTE, Some(30 * MINUTE), 0.0);
        schedule.reconfigure(MINUTE, MIN_INTERVAL, start + 4 * MINUTE);
        assert_eq!(schedule.next(), start + 33 * MINUTE);

        let mut successor = Schedule::new(MINUTE, MIN_INTERVAL, start);
        successor.hold_until(start + 30 * MINUTE);
        successor.trigger(start);
        assert_eq!((successor.next(), successor.held_until()), (start + 30 * MINUTE, Some(start + 30 * MINUTE)));
    }

    #[test]
    fn after_a_success_the_interval_passes_with_ten_percent_jitter() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, MIN_INTERVAL, start);
        assert_eq!(schedule.next(), start);
        schedule.start(start);
        for (chance, expected) in [(0.0, 108), (MIDDLE, 120), (0.999_999, 131)] {
            schedule.succeeded(start, chance);
            assert_eq!((schedule.next() - start).as_secs(), expected);
        }
    }

    #[test]
    fn failures_back_off_and_a_success_resets_them() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, MIN_INTERVAL, start);
        schedule.start(start);
        schedule.failed(start, None, MIDDLE);
        schedule.failed(start, None, MIDDLE);
        assert_eq!(schedule.next() - start, seconds(10));
        schedule.succeeded(start, MIDDLE);
        schedule.failed(start, None, MIDDLE);
        assert_eq!(schedule.next() - start, seconds(5));
    }

    #[test]
    fn a_trigger_polls_at_once_but_never_twice_within_the_minimum_interval() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, MIN_INTERVAL, start);
        schedule.start(start);
        schedule.succeeded(start, MIDDLE);
        schedule.trigger(start + Duration::from_millis(200));
        assert_eq!(schedule.next(), start + MIN_INTERVAL);
        schedule.trigger(start + seconds(30));
        assert_eq!(schedule.next(), start + MIN_INTERVAL, "the earlier time stays");

        schedule.start(start + seconds(40));
        schedule.trigger(start + seconds(41));
        schedule.succeeded(start + seconds(45), MIDDLE);
        assert_eq!(schedule.next(), start + seconds(45), "triggered during the poll: poll again");
        schedule.start(start + seconds(45));
        schedule.succeeded(start + seconds(46), MIDDLE);
        assert_eq!(schedule.next(), start + seconds(166));
    }

    #[test]
    fn a_trigger_ends_a_back_off() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, MIN_INTERVAL, start);
        schedule.start(start);
        (0..8).for_each(|_| schedule.failed(start, None, MIDDLE));
        assert_eq!(schedule.next() - start, seconds(640));
        schedule.trigger(start + MINUTE);
        assert_eq!(schedule.next(), start + MINUTE);
    }

    #[test]
    fn no_trigger_shortens_retry_after() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, MIN_INTERVAL, start);
        schedule.start(start);
        schedule.failed(start, Some(10 * MINUTE), 0.0);
        assert_eq!(schedule.next(), start + 10 * MINUTE, "longer than the back-off");
        schedule.trigger(start + MINUTE);
        assert_eq!(schedule.next(), start + 10 * MINUTE);
        assert_eq!(schedule.held_until(), Some(start + 10 * MINUTE));

        schedule.start(start + 10 * MINUTE);
        schedule.failed(start + 10 * MINUTE, Some(Duration::ZERO), 0.0);
        assert!(schedule.next() > start + 10 * MINUTE, "a `Retry-After` of zero does not shorten the back-off");
        schedule.failed(start + 11 * MINUTE, Some(24 * 60 * MINUTE), 0.0);
        assert_eq!(schedule.next(), start + 11 * MINUTE + MAX_RETRY_AFTER);
        schedule.failed(start, Some(10 * MINUTE), 0.999);
        assert!(schedule.next() > start + 10 * MINUTE && schedule.next() <= start + 11 * MINUTE, "with jitter");

        schedule.succeeded(start + 20 * MINUTE, MIDDLE);
        schedule.trigger(start + 21 * MINUTE);
        assert_eq!(schedule.next(), start + 21 * MINUTE, "a success ends it");
    }

    #[test]
    fn a_trigger_while_a_poll_waits_for_its_permit_causes_no_other_poll() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, MIN_INTERVAL, start);
        schedule.start(start);
        schedule.trigger(start + seconds(1));
        schedule.listing_started(start + seconds(5));
        schedule.succeeded(start + seconds(6), MIDDLE);
        assert_eq!(schedule.next(), start + seconds(126));
        schedule.start(start + seconds(126));
        schedule.listing_started(start + seconds(130));
        schedule.trigger(start + seconds(131));
        schedule.succeeded(start + seconds(140), MIDDLE);
        assert_eq!(schedule.next(), start + seconds(140), "the running poll may have listed already");
    }

    #[test]
    fn first_polls_of_many_repositories_are_spread() {
        assert_eq!(first_delay(20, MINUTE, 0.9), Duration::ZERO);
        assert_eq!(first_delay(100, MINUTE, MIDDLE), Duration::from_millis(2500));
        assert_eq!(first_delay(1_000_000, MINUTE, MIDDLE), MINUTE / 2, "within one interval");
    }

    proptest! {
        #[test]
        fn polls_never_start_closer_than_the_minimum_interval(
            interval in 1u64..600, events in proptest::collection::vec((0u8..5, 0u64..5_000, 0.0f64..1.0), 0..60)
        ) {
            let mut now = Instant::now();
            let mut schedule = Schedule::new(seconds(interval), MIN_INTERVAL, now);
            let mut last: Option<Instant> = None;
            let mut held = now;
            for (event, after, chance) in events {
                now += Duration::from_millis(after);
                match event {
                    0 => schedule.trigger(now),
                    _ => {
                        now = now.max(schedule.next());
                        prop_assert!(last.is_none_or(|last| now >= last + MIN_INTERVAL) && now >= held);
                        schedule.start(now);
                        last = Some(now);
                        let pause = Duration::from_millis(after);
                        match event {
                            1 => schedule.failed(now, None, chance),
                            2 => {
                                schedule.failed(now, Some(pause), chance);
                                held = now + pause;
                            }
                            _ => schedule.succeeded(now, chance),
                        }
                    }
                }
            }
        }
    }
}

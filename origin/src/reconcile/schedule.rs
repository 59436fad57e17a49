//! When a repository is polled. Pure: time and chance are arguments.

use std::time::{Duration, Instant};

use super::back_off::{back_off, jittered, kept};

/// With more repositories than this their first polls are spread.
const SPREAD_ABOVE: usize = 20;

/// How far the first poll of each further repository is spread.
const SPREAD_PER_REPOSITORY: Duration = Duration::from_millis(50);

/// How long after the start a repository is first polled. `chance` is in `0.0..1.0`.
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
    /// Polls begin at least this far apart, whoever kicks.
    gap: Duration,
    failures: u32,
    begun: Option<Instant>,
    kicked: Option<Instant>,
    /// Until then the upstream asked to be left alone; a kick does not change that.
    held_until: Option<Instant>,
    next: Instant,
}

impl Schedule {
    /// A schedule whose first poll is due at `first`. A gap longer than the interval would be the interval.
    pub(super) fn new(interval: Duration, gap: Duration, first: Instant) -> Self {
        Self { interval, gap: gap.min(interval), failures: 0, begun: None, kicked: None, held_until: None, next: first }
    }

    /// The same from now on with another interval and gap. A poll that is due later than an interval from now comes sooner,
    /// unless the last one failed.
    pub(super) fn set(&mut self, interval: Duration, gap: Duration, now: Instant) {
        (self.interval, self.gap) = (interval, gap.min(interval));
        if self.failures == 0 {
            self.next = self.next.min(self.earliest(now).max(now + interval));
        }
    }

    /// The upstream asked another one to be left alone until then.
    pub(super) fn hold(&mut self, until: Instant) {
        self.held_until = Some(until);
        self.next = self.next.max(until);
    }

    /// When the next poll is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Until when the upstream asked to be left alone, when it did.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held_until
    }

    /// Somebody knows that something moved: poll as soon as the gap, and a pause that the upstream asked for, allow. A
    /// kick during a poll asks for another one, because the running one may have looked already.
    pub(super) fn kick(&mut self, now: Instant) {
        self.kicked = Some(now);
        self.next = self.next.min(self.earliest(now));
    }

    /// A poll begins, perhaps with a wait for its turn.
    pub(super) fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
        self.kicked = None;
    }

    /// The poll had its turn and looked at the upstream: kicks before that have what they asked for.
    pub(super) fn looked(&mut self, at: Instant) {
        self.begun = Some(at);
        self.kicked = self.kicked.filter(|kicked| *kicked >= at);
    }

    /// It succeeded. `chance` is in `0.0..1.0`.
    pub(super) fn succeeded(&mut self, now: Instant, chance: f64) {
        self.failures = 0;
        self.held_until = None;
        self.ended(now, self.interval, chance);
    }

    /// It failed, and the upstream perhaps asked for a pause.
    pub(super) fn failed(&mut self, now: Instant, retry_after: Option<Duration>, chance: f64) {
        self.failures = self.failures.saturating_add(1);
        self.held_until = retry_after.map(|pause| now + kept(pause, chance));
        self.ended(now, back_off(self.interval, self.failures), chance);
    }

    fn ended(&mut self, now: Instant, pause: Duration, chance: f64) {
        let earliest = self.earliest(now);
        self.next = if self.kicked.is_some() { earliest } else { earliest.max(now + jittered(pause, chance)) };
    }

    fn earliest(&self, now: Instant) -> Instant {
        let after_the_gap = self.begun.map_or(now, |begun| now.max(begun + self.gap));
        self.held_until.map_or(after_the_gap, |until| after_the_gap.max(until))
    }
}

#[cfg(test)]
mod tests {
    use super::super::back_off::LONGEST_RETRY_AFTER;
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const GAP: Duration = Duration::from_secs(1);
    const MIDDLE: f64 = 0.5;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn another_interval_holds_at_once_and_undoes_no_pause() {
        let start = Instant::now();
        let mut schedule = Schedule::new(60 * MINUTE, GAP, start);
        schedule.begin(start);
        schedule.succeeded(start, MIDDLE);
        schedule.set(2 * MINUTE, GAP, start + MINUTE);
        assert_eq!(schedule.next(), start + 3 * MINUTE);
        schedule.set(60 * MINUTE, GAP, start + MINUTE);
        assert_eq!(schedule.next(), start + 3 * MINUTE, "what is due sooner stays");

        schedule.begin(start + 3 * MINUTE);
        schedule.failed(start + 3 * MINUTE, Some(30 * MINUTE), 0.0);
        schedule.set(MINUTE, GAP, start + 4 * MINUTE);
        assert_eq!(schedule.next(), start + 33 * MINUTE);

        let mut successor = Schedule::new(MINUTE, GAP, start);
        successor.hold(start + 30 * MINUTE);
        successor.kick(start);
        assert_eq!((successor.next(), successor.held_until()), (start + 30 * MINUTE, Some(start + 30 * MINUTE)));
    }

    #[test]
    fn an_interval_after_each_success_give_or_take_a_tenth() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, GAP, start);
        assert_eq!(schedule.next(), start);
        schedule.begin(start);
        for (chance, expected) in [(0.0, 108), (MIDDLE, 120), (0.999_999, 131)] {
            schedule.succeeded(start, chance);
            assert_eq!((schedule.next() - start).as_secs(), expected);
        }
    }

    #[test]
    fn failures_back_off_and_a_success_forgets_them() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, GAP, start);
        schedule.begin(start);
        schedule.failed(start, None, MIDDLE);
        schedule.failed(start, None, MIDDLE);
        assert_eq!(schedule.next() - start, seconds(10));
        schedule.succeeded(start, MIDDLE);
        schedule.failed(start, None, MIDDLE);
        assert_eq!(schedule.next() - start, seconds(5));
    }

    #[test]
    fn a_kick_polls_at_once_but_never_twice_within_the_gap() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, GAP, start);
        schedule.begin(start);
        schedule.succeeded(start, MIDDLE);
        schedule.kick(start + Duration::from_millis(200));
        assert_eq!(schedule.next(), start + GAP);
        schedule.kick(start + seconds(30));
        assert_eq!(schedule.next(), start + GAP, "the earlier one stands");

        schedule.begin(start + seconds(40));
        schedule.kick(start + seconds(41));
        schedule.succeeded(start + seconds(45), MIDDLE);
        assert_eq!(schedule.next(), start + seconds(45), "kicked while it was polled: poll again");
        schedule.begin(start + seconds(45));
        schedule.succeeded(start + seconds(46), MIDDLE);
        assert_eq!(schedule.next(), start + seconds(166));
    }

    #[test]
    fn a_kick_ends_a_back_off() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, GAP, start);
        schedule.begin(start);
        (0..8).for_each(|_| schedule.failed(start, None, MIDDLE));
        assert_eq!(schedule.next() - start, seconds(640));
        schedule.kick(start + MINUTE);
        assert_eq!(schedule.next(), start + MINUTE);
    }

    #[test]
    fn a_pause_that_the_upstream_asks_for_is_kept_whoever_kicks() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, GAP, start);
        schedule.begin(start);
        schedule.failed(start, Some(10 * MINUTE), 0.0);
        assert_eq!(schedule.next(), start + 10 * MINUTE, "longer than the back-off");
        schedule.kick(start + MINUTE);
        assert_eq!(schedule.next(), start + 10 * MINUTE);
        assert_eq!(schedule.held_until(), Some(start + 10 * MINUTE));

        schedule.begin(start + 10 * MINUTE);
        schedule.failed(start + 10 * MINUTE, Some(Duration::ZERO), 0.0);
        assert!(schedule.next() > start + 10 * MINUTE, "a pause of nothing does not shorten the back-off");
        schedule.failed(start + 11 * MINUTE, Some(24 * 60 * MINUTE), 0.0);
        assert_eq!(schedule.next(), start + 11 * MINUTE + LONGEST_RETRY_AFTER);
        schedule.failed(start, Some(10 * MINUTE), 0.999);
        assert!(schedule.next() > start + 10 * MINUTE && schedule.next() <= start + 11 * MINUTE, "later by chance");

        schedule.succeeded(start + 20 * MINUTE, MIDDLE);
        schedule.kick(start + 21 * MINUTE);
        assert_eq!(schedule.next(), start + 21 * MINUTE, "an answer ends it");
    }

    #[test]
    fn a_kick_while_a_poll_waits_for_its_turn_asks_for_no_other() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2 * MINUTE, GAP, start);
        schedule.begin(start);
        schedule.kick(start + seconds(1));
        schedule.looked(start + seconds(5));
        schedule.succeeded(start + seconds(6), MIDDLE);
        assert_eq!(schedule.next(), start + seconds(126));
        schedule.begin(start + seconds(126));
        schedule.looked(start + seconds(130));
        schedule.kick(start + seconds(131));
        schedule.succeeded(start + seconds(140), MIDDLE);
        assert_eq!(schedule.next(), start + seconds(140), "it may have come too late for that one");
    }

    #[test]
    fn many_repositories_do_not_begin_in_one_moment() {
        assert_eq!(first_delay(20, MINUTE, 0.9), Duration::ZERO);
        assert_eq!(first_delay(100, MINUTE, MIDDLE), Duration::from_millis(2500));
        assert_eq!(first_delay(1_000_000, MINUTE, MIDDLE), MINUTE / 2, "within one interval");
    }

    proptest! {
        #[test]
        fn polls_never_begin_closer_than_the_gap(
            interval in 1u64..600, events in proptest::collection::vec((0u8..5, 0u64..5_000, 0.0f64..1.0), 0..60)
        ) {
            let mut now = Instant::now();
            let mut schedule = Schedule::new(seconds(interval), GAP, now);
            let mut last: Option<Instant> = None;
            let mut held = now;
            for (event, after, chance) in events {
                now += Duration::from_millis(after);
                match event {
                    0 => schedule.kick(now),
                    _ => {
                        now = now.max(schedule.next());
                        prop_assert!(last.is_none_or(|last| now >= last + GAP) && now >= held);
                        schedule.begin(now);
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

//! How many requests an upstream host may be asked in a time. Pure: time is an argument.

use std::time::{Duration, Instant};

/// What was not used is saved up for this long, so that a few repositories may be polled at once.
const SAVED_UP: Duration = Duration::from_secs(10);

/// A bucket of requests that fills evenly. It is kept as the time at which it would be full again: nothing is ever
/// refilled, and nothing drifts.
#[derive(Debug)]
pub(super) struct Budget {
    pause: Duration,
    full_at: Instant,
}

impl Budget {
    /// A full bucket. `per_minute` is at least 1.
    pub(super) fn new(per_minute: u32, now: Instant) -> Self {
        Self { pause: Duration::from_secs(60) / per_minute.max(1), full_at: now }
    }

    /// The requests that a full bucket holds.
    pub(super) fn saved_up(per_minute: u32) -> usize {
        (per_minute as usize * SAVED_UP.as_secs() as usize / 60).max(1)
    }

    /// How many requests it would take to be full: more than it holds when some were made without being asked for.
    pub(super) fn taken(&self, now: Instant) -> usize {
        let missing = self.full_at.saturating_duration_since(now);
        usize::try_from(missing.as_nanos().div_ceil(self.pause.as_nanos())).unwrap_or(usize::MAX)
    }

    /// Takes requests out. When there are not enough, nothing is taken and the answer is how long that will be so.
    pub(super) fn take(&mut self, requests: u32, now: Instant) -> Result<(), Duration> {
        let wanted = self.pause * requests;
        // However small the bucket is, a full one has enough.
        let full_at = self.full_at.max(now) + wanted;
        let wait = full_at.saturating_duration_since(now + SAVED_UP.max(wanted));
        if !wait.is_zero() {
            return Err(wait);
        }
        self.full_at = full_at;
        Ok(())
    }

    /// Takes requests out, if need be before they are there. The answer is when they will be; whoever comes later waits
    /// behind them, however little it wants.
    pub(super) fn reserve(&mut self, requests: u32, now: Instant) -> Duration {
        let wait = self.take(requests, now).err();
        wait.inspect(|_| self.charge(requests, now)).unwrap_or_default()
    }

    /// Requests that were made without being asked for before: those who come later wait for them.
    pub(super) fn charge(&mut self, requests: u32, now: Instant) {
        self.full_at = self.full_at.max(now) + self.pause * requests;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ten_seconds_worth_at_once_and_then_evenly() {
        let start = Instant::now();
        let mut budget = Budget::new(60, start);
        for _ in 0..5 {
            assert_eq!(budget.take(2, start), Ok(()));
        }
        assert_eq!((budget.taken(start), Budget::saved_up(60)), (10, 10));
        assert_eq!(budget.take(2, start), Err(Duration::from_secs(2)));
        assert_eq!(budget.take(2, start + Duration::from_secs(1)), Err(Duration::from_secs(1)));
        assert_eq!(budget.take(2, start + Duration::from_secs(2)), Ok(()));
        budget.charge(1, start + Duration::from_secs(2));
        assert_eq!(budget.take(2, start + Duration::from_secs(4)), Err(Duration::from_secs(1)));
    }

    #[test]
    fn who_wants_little_does_not_overtake_who_wants_more() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut budget = Budget::new(60, start);
        assert_eq!(budget.reserve(9, start), Duration::ZERO);
        assert_eq!(budget.reserve(2, start), Duration::from_secs(1));
        assert_eq!(budget.take(1, start), Err(Duration::from_secs(2)));
        assert_eq!(budget.take(1, at(1)), Err(Duration::from_secs(1)), "these are the other's");
        assert_eq!(budget.take(1, at(2)), Ok(()));
    }

    #[test]
    fn the_smallest_budget_lets_one_poll_through_at_a_time() {
        let start = Instant::now();
        let mut budget = Budget::new(1, start);
        assert_eq!(budget.take(2, start), Ok(()));
        assert_eq!(budget.take(2, start), Err(Duration::from_secs(120)));
        assert_eq!(budget.take(2, start + Duration::from_secs(120)), Ok(()));
    }

    proptest! {
        #[test]
        fn no_time_sees_more_than_its_share_and_what_was_saved(
            per_minute in 1u32..2000, steps in prop::collection::vec((0u64..2000, 1u32..4), 1..200)
        ) {
            let start = Instant::now();
            let (mut now, mut taken) = (start, 0u64);
            let mut budget = Budget::new(per_minute, start);
            for (after, requests) in steps {
                now += Duration::from_millis(after);
                match budget.take(requests, now) {
                    Ok(()) => taken += u64::from(requests),
                    // Whoever waits as long as he was told is served.
                    Err(wait) => {
                        now += wait;
                        prop_assert_eq!(budget.take(requests, now), Ok(()));
                        taken += u64::from(requests);
                    }
                }
                let minutes = (now - start + SAVED_UP).as_secs_f64() / 60.0;
                // A small budget lets one poll of three requests through.
                prop_assert!(taken as f64 <= (minutes * f64::from(per_minute)).max(0.0) + 3.01);
            }
        }
    }
}

//! Pure: the rate limit of requests to an upstream host, a token bucket. Time is an argument.

use std::time::{Duration, Instant};

/// The burst: unused requests of this time may be sent at once.
const BURST: Duration = Duration::from_secs(10);

/// A token bucket, stored as the time at which it is full again, so that it needs no refills.
#[derive(Debug)]
pub(super) struct Budget {
    /// The time between two requests at the permitted rate.
    interval: Duration,
    full_at: Instant,
}

impl Budget {
    /// A full bucket. `per_minute` is at least 1.
    pub(super) fn new(per_minute: u32, now: Instant) -> Self {
        Self { interval: Duration::from_secs(60) / per_minute.max(1), full_at: now }
    }

    /// The capacity of the bucket in requests.
    pub(super) fn burst(per_minute: u32) -> usize {
        (per_minute as usize * BURST.as_secs() as usize / 60).max(1)
    }

    /// The requests that are missing in the bucket. More than the capacity, if requests were charged afterwards.
    pub(super) fn in_use(&self, now: Instant) -> usize {
        let missing = self.full_at.saturating_duration_since(now);
        usize::try_from(missing.as_nanos().div_ceil(self.interval.as_nanos())).unwrap_or(usize::MAX)
    }

    /// Takes requests. If there are not enough, takes none and returns the time until there are.
    pub(super) fn take(&mut self, requests: u32, now: Instant) -> Result<(), Duration> {
        let wanted = self.interval * requests;
        // A full bucket has enough, even if the capacity is smaller.
        let full_at = self.full_at.max(now) + wanted;
        let wait = full_at.saturating_duration_since(now + BURST.max(wanted));
        if !wait.is_zero() {
            return Err(wait);
        }
        self.full_at = full_at;
        Ok(())
    }

    /// Takes requests, also in advance, and returns the time until they may be sent. Later callers wait behind them.
    pub(super) fn reserve(&mut self, requests: u32, now: Instant) -> Duration {
        let wait = self.take(requests, now).err();
        wait.inspect(|_| self.charge(requests, now)).unwrap_or_default()
    }

    /// Charges requests that were sent without a reservation.
    pub(super) fn charge(&mut self, requests: u32, now: Instant) {
        self.full_at = self.full_at.max(now) + self.interval * requests;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_of_ten_seconds_and_then_the_rate() {
        let start = Instant::now();
        let mut budget = Budget::new(60, start);
        for _ in 0..5 {
            assert_eq!(budget.take(2, start), Ok(()));
        }
        assert_eq!((budget.in_use(start), Budget::burst(60)), (10, 10));
        assert_eq!(budget.take(2, start), Err(Duration::from_secs(2)));
        assert_eq!(budget.take(2, start + Duration::from_secs(1)), Err(Duration::from_secs(1)));
        assert_eq!(budget.take(2, start + Duration::from_secs(2)), Ok(()));
        budget.charge(1, start + Duration::from_secs(2));
        assert_eq!(budget.take(2, start + Duration::from_secs(4)), Err(Duration::from_secs(1)));
    }

    #[test]
    fn a_small_request_does_not_overtake_a_large_one() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut budget = Budget::new(60, start);
        assert_eq!(budget.reserve(9, start), Duration::ZERO);
        assert_eq!(budget.reserve(2, start), Duration::from_secs(1));
        assert_eq!(budget.take(1, start), Err(Duration::from_secs(2)));
        assert_eq!(budget.take(1, at(1)), Err(Duration::from_secs(1)), "the other has reserved these");
        assert_eq!(budget.take(1, at(2)), Ok(()));
    }

    #[test]
    fn the_smallest_rate_allows_one_poll_at_a_time() {
        let start = Instant::now();
        let mut budget = Budget::new(1, start);
        assert_eq!(budget.take(2, start), Ok(()));
        assert_eq!(budget.take(2, start), Err(Duration::from_secs(120)));
        assert_eq!(budget.take(2, start + Duration::from_secs(120)), Ok(()));
    }

    proptest! {
        #[test]
        fn no_period_has_more_requests_than_the_rate_and_the_burst(
            per_minute in 1u32..2000, steps in prop::collection::vec((0u64..2000, 1u32..4), 1..200)
        ) {
            let start = Instant::now();
            let (mut now, mut taken) = (start, 0u64);
            let mut budget = Budget::new(per_minute, start);
            for (after, requests) in steps {
                now += Duration::from_millis(after);
                match budget.take(requests, now) {
                    Ok(()) => taken += u64::from(requests),
                    // After the returned time the request succeeds.
                    Err(wait) => {
                        now += wait;
                        prop_assert_eq!(budget.take(requests, now), Ok(()));
                        taken += u64::from(requests);
                    }
                }
                let minutes = (now - start + BURST).as_secs_f64() / 60.0;
                // The smallest capacity is one poll of three requests.
                prop_assert!(taken as f64 <= (minutes * f64::from(per_minute)).max(0.0) + 3.01);
            }
        }
    }
}

//! Pure: the delays before retries. Chance is an argument, in `0.0..1.0`.

use std::time::Duration;

/// The first back-off, unless the interval is shorter.
const INITIAL_BACK_OFF: Duration = Duration::from_secs(5);

/// The longest back-off.
pub const MAX_BACK_OFF: Duration = Duration::from_secs(30 * 60);

/// A back-off is at most this many intervals.
const MAX_BACK_OFF_INTERVALS: u32 = 10;

/// The longest `Retry-After` that is respected.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// The jitter of delays, so that repositories and origins do not retry at the same time.
const JITTER: f64 = 0.1;

/// The back-off after this many consecutive failures (at least 1) of an operation with this interval.
pub fn back_off(interval: Duration, failures: u32) -> Duration {
    let doublings = (failures - 1).min(20);
    let max = (interval * MAX_BACK_OFF_INTERVALS).min(MAX_BACK_OFF);
    interval.min(INITIAL_BACK_OFF).saturating_mul(1 << doublings).min(max)
}

/// A delay with jitter.
pub fn jittered(delay: Duration, chance: f64) -> Duration {
    delay.mul_f64(1.0 - JITTER + 2.0 * JITTER * chance)
}

/// A `Retry-After` within its bound. Jitter only makes it longer.
pub fn bounded_retry_after(retry_after: Duration, chance: f64) -> Duration {
    retry_after.min(MAX_RETRY_AFTER).mul_f64(1.0 + JITTER * chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_offs_double_up_to_a_bound() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let back_offs = |interval, count| (1..=count).map(|n| back_off(interval, n).as_secs()).collect::<Vec<_>>();
        assert_eq!(back_offs(minutes(2), 10), [5, 10, 20, 40, 80, 160, 320, 640, 1200, 1200]);
        assert_eq!(back_offs(Duration::from_secs(1), 6), [1, 2, 4, 8, 10, 10]);
        assert_eq!(back_offs(minutes(60), 11).last(), Some(&1800));
        assert_eq!(back_off(minutes(2), u32::MAX), minutes(20));
    }
}

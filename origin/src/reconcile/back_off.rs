//! How long what failed is left alone. Pure: chance is an argument, in `0.0..1.0`.

use std::time::Duration;

/// The first pause after a failure, unless the interval is shorter.
const FIRST_BACK_OFF: Duration = Duration::from_secs(5);

/// No pause after a failure is longer.
pub(super) const LONGEST_BACK_OFF: Duration = Duration::from_secs(30 * 60);

/// A pause after a failure is at most this many intervals.
const BACK_OFF_INTERVALS: u32 = 10;

/// A pause that a server asks for is kept up to this length; one that asks for more is asked again then.
pub(super) const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Pauses are this much longer or shorter by chance, so that repositories and origins do not ask in step.
const JITTER: f64 = 0.1;

/// The pause after this many failures in a row, one or more, of what is done once in an interval.
pub(super) fn back_off(interval: Duration, failures: u32) -> Duration {
    let doublings = (failures - 1).min(20);
    let longest = (interval * BACK_OFF_INTERVALS).min(LONGEST_BACK_OFF);
    interval.min(FIRST_BACK_OFF).saturating_mul(1 << doublings).min(longest)
}

/// A pause, give or take a tenth.
pub(super) fn jittered(pause: Duration, chance: f64) -> Duration {
    pause.mul_f64(1.0 - JITTER + 2.0 * JITTER * chance)
}

/// What is kept of a pause that a server asks for. Longer by chance and never shorter: many may have been told the same.
pub(super) fn kept(asked_for: Duration, chance: f64) -> Duration {
    asked_for.min(LONGEST_RETRY_AFTER).mul_f64(1.0 + JITTER * chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let pauses = |interval, count| (1..=count).map(|n| back_off(interval, n).as_secs()).collect::<Vec<_>>();
        assert_eq!(pauses(minutes(2), 10), [5, 10, 20, 40, 80, 160, 320, 640, 1200, 1200]);
        assert_eq!(pauses(Duration::from_secs(1), 6), [1, 2, 4, 8, 10, 10]);
        assert_eq!(pauses(minutes(60), 11).last(), Some(&1800));
        assert_eq!(back_off(minutes(2), u32::MAX), minutes(20));
    }
}

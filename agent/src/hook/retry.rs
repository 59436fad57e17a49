//! How long to wait after a failed `exec`, decided without a clock.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// The pause after `failures_before + 1` failures: from 1 s, doubled, up to 5 min, less up to a fifth of it. `random`
/// is from 0 to 1.
pub(super) fn pause(failures_before: u32, random: f64) -> Duration {
    let doubled = FIRST.saturating_mul(1u32.checked_shl(failures_before).unwrap_or(u32::MAX));
    doubled.min(LONGEST).mul_f64(1.0 - 0.2 * random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_a_second_to_five_minutes() {
        let pauses: Vec<_> = (0..11).map(|failures| pause(failures, 0.0).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        for failures in [31, 32, 33, u32::MAX] {
            assert_eq!(pause(failures, 0.0), LONGEST);
        }
        assert_eq!(pause(0, 1.0), Duration::from_millis(800));
    }
}

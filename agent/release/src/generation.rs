//! Which generations an origin can have given out. Pure: the time is an argument.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// By how much the clock of an origin may be ahead of this machine's.
const MAX_AHEAD: Duration = Duration::from_secs(24 * 3600);

/// The highest generation that is believed at this time. A generation is the time of its publication in Unix milliseconds, or
/// a little more. One of the far future would make an agent refuse all that its origin publishes.
pub fn highest_credible(now: SystemTime) -> u64 {
    let clock = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from((clock + MAX_AHEAD).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_may_be_a_day_ahead() {
        let day = 24 * 3600 * 1000;
        assert_eq!(highest_credible(UNIX_EPOCH + Duration::from_millis(1_800_000_000_123)), 1_800_000_000_123 + day);
        assert_eq!(highest_credible(UNIX_EPOCH - Duration::from_secs(1)), day, "a clock before 1970");
    }
}

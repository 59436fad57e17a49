//! Generations: numbers that only grow, for each service, across restarts and loss of data.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_protocol::descriptor::Generation;

/// The generation after `last`: at least the clock in Unix milliseconds, and at least `floor`.
///
/// The clock makes generations grow even if `last` was lost with the data directory. Operators raise `floor` if the
/// lost generations came from a clock that was far ahead.
pub(crate) fn next(last: Option<Generation>, now: SystemTime, floor: Generation) -> Generation {
    let after_last = last.map_or(0, |last| last.saturating_add(1));
    after_last.max(clock(now)).max(floor)
}

/// How far ahead of their clock agents believe a generation.
const CREDIBLE_AHEAD: Duration = Duration::from_hours(24);

/// The generations that stay as they are at a start. `lower`: those that no agent believes do not.
pub(super) fn bounds(floor: Generation, lower: bool, now: SystemTime) -> RangeInclusive<Generation> {
    floor..=if lower { clock(now + CREDIBLE_AHEAD).max(floor) } else { Generation::MAX }
}

fn clock(now: SystemTime) -> Generation {
    now.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn at(milliseconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_largest_of_last_clock_and_floor() {
        assert_eq!(next(None, at(1000), 0), 1000);
        assert_eq!(next(Some(999), at(1000), 0), 1000);
        assert_eq!(next(Some(1000), at(1000), 0), 1001, "two publications in a millisecond");
        assert_eq!(next(Some(5000), at(1000), 0), 5001, "a clock that was set back");
        assert_eq!(next(None, at(1000), 9000), 9000);
        assert_eq!(next(Some(9000), at(1000), 9000), 9001);
        assert_eq!(next(None, UNIX_EPOCH - Duration::from_secs(1), 0), 0, "a clock before 1970");
    }

    proptest! {
        #[test]
        fn it_only_grows(last in 0u64..u64::MAX - 1, now in 0u64..4_000_000_000_000, floor: u64) {
            prop_assert!(next(Some(last), at(now), floor) > last);
        }
    }
}

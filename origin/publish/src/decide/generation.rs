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
pub(crate) fn bounds(floor: Generation, lower: bool, now: SystemTime) -> RangeInclusive<Generation> {
    floor..=if lower { clock(now + CREDIBLE_AHEAD) } else { Generation::MAX }
}

/// In Unix milliseconds: a clock before this time, in November 2026, is not set yet.
const EARLIEST_CLOCK: Generation = 1_795_000_000_000;

/// Checks that generations may be lowered to this clock.
pub(crate) fn check_lowering(floor: Generation, now: SystemTime) -> Result<(), &'static str> {
    if clock(now) < EARLIEST_CLOCK {
        return Err("the clock of this machine is not set");
    }
    if floor > clock(now + CREDIBLE_AHEAD) {
        return Err("`generation_floor` is more than a day ahead of the clock: correct it first");
    }
    Ok(())
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

    #[test]
    fn generations_are_lowered_to_a_clock_that_may_be_right() {
        let now = at(EARLIEST_CLOCK + 1);
        assert!(check_lowering(EARLIEST_CLOCK, now).is_ok());
        assert!(check_lowering(0, at(1_000_000)).unwrap_err().contains("not set"));
        assert!(check_lowering(EARLIEST_CLOCK + 2 * 86_400_000, now).unwrap_err().contains("generation_floor"));
    }

    proptest! {
        #[test]
        fn it_only_grows(last in 0u64..u64::MAX - 1, now in 0u64..4_000_000_000_000, floor: u64) {
            prop_assert!(next(Some(last), at(now), floor) > last);
        }
    }
}

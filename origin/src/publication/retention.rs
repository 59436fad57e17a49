//! Which superseded versions of a service are kept: of the last ten, those superseded less than 48 hours ago.
//!
//! The current version is no superseded one and is always kept. (A pinned version will be kept by not being offered
//! here either.)

use std::time::{Duration, SystemTime};

use weir_shared::descriptor::Generation;

/// Superseded versions that are kept at the most.
pub(crate) const KEPT_VERSIONS: usize = 10;

/// How long a superseded version is kept.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(48 * 3600);

/// A superseded version.
#[derive(Debug)]
pub(crate) struct Superseded<T> {
    /// Which of them came later: generations tell that whatever the clock did.
    pub(crate) generation: Generation,
    /// When it was superseded.
    pub(crate) at: SystemTime,
    /// Which one it is.
    pub(crate) version: T,
}

/// Those of a service's versions that need not be kept; they are given in any order.
pub(crate) fn expired<T>(mut versions: Vec<Superseded<T>>, now: SystemTime) -> Vec<T> {
    versions.sort_by_key(|superseded| std::cmp::Reverse(superseded.generation));
    versions
        .into_iter()
        .enumerate()
        .filter(|(place, superseded)| {
            // A time of the future comes from a clock that was set back: it was superseded, at the latest, now.
            let age = now.duration_since(superseded.at).unwrap_or_default();
            *place >= KEPT_VERSIONS || age >= KEPT_FOR
        })
        .map(|(_, superseded)| superseded.version)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> SystemTime {
        UNIX_EPOCH + 1_000_000 * HOUR
    }

    /// Versions with their ages, the latest first.
    fn of_ages(ages: impl IntoIterator<Item = Duration>) -> Vec<Superseded<u64>> {
        let version =
            |(number, age): (u64, Duration)| Superseded { generation: 1000 - number, at: now() - age, version: number };
        (0..).zip(ages).map(version).collect()
    }

    #[test]
    fn of_the_last_ten_those_younger_than_two_days() {
        assert!(expired(of_ages([]), now()).is_empty());
        assert_eq!(expired(of_ages((0..8u32).map(|i| i * 10 * HOUR)), now()), [5, 6, 7]);
        assert_eq!(expired(of_ages([48 * HOUR]), now()), [0], "the bound itself is out");
        assert!(expired(of_ages([47 * HOUR]), now()).is_empty());
    }

    #[test]
    fn an_eleventh_goes_however_young_it_is() {
        let mut versions = of_ages((0..13).map(Duration::from_secs));
        versions.reverse();
        assert_eq!(expired(versions, now()), [10, 11, 12]);
    }

    #[test]
    fn versions_of_a_clock_that_was_far_ahead_do_not_push_out_those_that_came_after() {
        let mut versions = of_ages((0..2).map(Duration::from_secs));
        let ahead = |i: u64| Superseded { generation: 100 + i, at: now() + 9000 * HOUR, version: 100 + i };
        versions.extend((0..10).map(ahead));
        assert_eq!(expired(versions, now()), [101, 100], "the last ten are the last ten published");
    }
}

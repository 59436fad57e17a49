//! Which superseded versions of a service are kept: of the last ten, those superseded less than 48 hours ago.
//!
//! The current version is no superseded one and is always kept. (A pinned version will be kept by not being offered
//! here either.)

use std::time::{Duration, SystemTime};

/// Superseded versions that are kept at the most.
pub(crate) const KEPT_VERSIONS: usize = 10;

/// How long a superseded version is kept.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(48 * 3600);

/// Those of the versions that need not be kept. Each is given with when it was superseded, in any order.
pub(crate) fn expired<T>(mut versions: Vec<(SystemTime, T)>, now: SystemTime) -> Vec<T> {
    versions.sort_by_key(|(superseded_at, _)| std::cmp::Reverse(*superseded_at));
    versions
        .into_iter()
        .enumerate()
        .filter(|(place, (superseded_at, _))| {
            // A time of the future comes from a clock that was set back: it was superseded, at the latest, now.
            let age = now.duration_since(*superseded_at).unwrap_or_default();
            *place >= KEPT_VERSIONS || age >= KEPT_FOR
        })
        .map(|(_, (_, version))| version)
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

    #[test]
    fn of_the_last_ten_those_younger_than_two_days() {
        assert!(expired(Vec::<(_, u32)>::new(), now()).is_empty());
        // Superseded 0, 10, 20, … hours ago.
        let versions: Vec<_> = (0..8u32).map(|i| (now() - i * 10 * HOUR, i)).collect();
        assert_eq!(expired(versions, now()), [5, 6, 7]);
        assert_eq!(expired(vec![(now() - 48 * HOUR, 'a')], now()), ['a'], "the bound itself is out");
        assert!(expired(vec![(now() - 47 * HOUR, 'a')], now()).is_empty());
        assert!(expired(vec![(now() + HOUR, 'a')], now()).is_empty());
    }

    #[test]
    fn an_eleventh_goes_however_young_it_is() {
        let versions: Vec<_> = (0..13u64).map(|i| (now() - Duration::from_secs(i), i)).rev().collect();
        assert_eq!(expired(versions, now()), [10, 11, 12]);
    }
}

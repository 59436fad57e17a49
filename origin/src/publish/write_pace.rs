//! How often the record of a repository is written. Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// The time between two writes of one record, on average. After a pause two follow at once: a version, and its deltas. Agents
/// that fetch in between need the whole tarball.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// When the next write may begin, after one that might have begun at `allowed` and begins now.
pub(super) fn next_write(allowed: Instant, now: Instant) -> Instant {
    (allowed + WRITE_INTERVAL).max(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_writes_follow_a_pause_and_others_are_an_interval_apart() {
        let start = Instant::now();
        let mut allowed = start;
        let mut begun = Vec::new();
        for pause in [5, 0, 0, 0, 1, 9, 0, 0] {
            let now = allowed.max(begun.last().copied().unwrap_or(start) + pause * WRITE_INTERVAL);
            begun.push(now);
            allowed = next_write(allowed, now);
        }
        let seconds: Vec<_> = begun.into_iter().map(|begun| (begun - start).as_secs()).collect();
        assert_eq!(seconds, [5, 5, 6, 7, 8, 17, 17, 18]);
    }
}

//! How often the record of a repository is written. Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// The time between two writes of one record on an engine that bills or shares them, on average.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// The writes of one record that may follow each other after a pause: a commit of a few services with their deltas.
const WRITE_BURST: u32 = 5;

/// The pace of writes: a bucket of tokens.
#[derive(Debug)]
pub enum WritePace {
    /// Local files: changes are grouped by what is ready when the write before ends.
    Unlimited,
    /// A bucket or etcd: it gains a token each `interval`, and has all of `burst` at `full`.
    Limited {
        /// Between two tokens.
        interval: Duration,
        /// The most tokens.
        burst: u32,
        /// When it has them.
        full: Instant,
    },
}

impl WritePace {
    /// Of one record of a repository.
    pub(crate) fn of_record(now: Instant) -> Self {
        Self::limited(WRITE_INTERVAL, WRITE_BURST, now)
    }

    /// At most `burst` writes at once, and then one each `interval`.
    pub fn limited(interval: Duration, burst: u32, now: Instant) -> Self {
        Self::Limited { interval, burst, full: now }
    }

    /// When the next write may start. `None`: at once.
    pub fn next_write(&self) -> Option<Instant> {
        match self {
            Self::Unlimited => None,
            Self::Limited { interval, burst, full } => full.checked_sub((burst - 1) * *interval),
        }
    }

    /// Counts a write that starts now.
    pub fn count_write(&mut self, now: Instant) {
        if let Self::Limited { interval, full, .. } = self {
            *full = (*full).max(now) + *interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds after a start at which writes start that are wanted `pauses` after each other.
    fn starts(mut pace: WritePace, start: Instant, pauses: &[u32]) -> Vec<u64> {
        let mut last = start;
        let mut seconds = Vec::new();
        for pause in pauses {
            let wanted = last + *pause * WRITE_INTERVAL;
            last = pace.next_write().map_or(wanted, |allowed| allowed.max(wanted));
            pace.count_write(last);
            seconds.push((last - start).as_secs());
        }
        seconds
    }

    #[test]
    fn a_burst_follows_a_pause_and_others_are_an_interval_apart() {
        let start = Instant::now() + Duration::from_secs(60);
        let pauses = [7, 0, 0, 0, 0, 0, 0, 3, 0, 0, 20, 0, 0, 0, 0, 0];
        let limited = starts(WritePace::of_record(start), start, &pauses);
        assert_eq!(limited, [7, 7, 7, 7, 7, 8, 9, 12, 12, 12, 32, 32, 32, 32, 32, 33]);
        let unlimited = starts(WritePace::Unlimited, start, &pauses);
        assert_eq!(unlimited, [7, 7, 7, 7, 7, 7, 7, 10, 10, 10, 30, 30, 30, 30, 30, 30]);
    }
}

//! Whether the wall clock can be believed.
//!
//! Ages are told by the wall clock, because they outlive the process. One that is set far ahead, by a slip or by a
//! machine that has lost its time, makes everything old at once. So what goes by age alone goes by a clock that has gone
//! evenly for a while.

use std::time::{Duration, Instant, SystemTime};

/// How long the clock must have gone evenly; no start has seen it do so.
const PROBATION: Duration = Duration::from_secs(3600);

/// How far it may be off at a look by what passed since the one before.
const TOLERANCE: Duration = Duration::from_secs(60);

/// What is to be thought of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// It has gone evenly for an hour.
    Steady,
    /// The process began, or the clock was set, less than an hour ago.
    Doubtful,
}

/// Watches the clock.
#[derive(Debug)]
pub(crate) struct WallClock {
    /// The last look.
    seen: (Instant, SystemTime),
    /// Since when it has gone evenly.
    even_since: Instant,
}

impl WallClock {
    /// Begins to watch.
    pub(crate) fn new(instant: Instant, now: SystemTime) -> Self {
        Self { seen: (instant, now), even_since: instant }
    }

    /// A look, at the same moment by both clocks.
    pub(crate) fn look(&mut self, instant: Instant, now: SystemTime) -> Clock {
        let passed = instant.saturating_duration_since(self.seen.0);
        let off = match now.duration_since(self.seen.1) {
            Ok(shown) => shown.abs_diff(passed),
            Err(back) => back.duration() + passed,
        };
        self.seen = (instant, now);
        if off > TOLERANCE {
            tracing::warn!(seconds = off.as_secs(), "the clock was set: for an hour nothing goes because of its age");
            self.even_since = instant;
        }
        let is_steady = instant.saturating_duration_since(self.even_since) >= PROBATION;
        if is_steady { Clock::Steady } else { Clock::Doubtful }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_steady_after_an_hour_without_a_jump_either_way() {
        let minute = Duration::from_secs(60);
        let (start, noon) = (Instant::now(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_000_000));
        let mut clock = WallClock::new(start, noon);
        // What a look every ten minutes finds while the clock is ahead of the true time by so many minutes.
        let mut look = |looks: std::ops::Range<u32>, ahead: i64| {
            looks
                .map(|number| {
                    let passed = number * 10 * minute;
                    let off = u32::try_from(ahead.unsigned_abs()).unwrap() * minute;
                    let now = if ahead < 0 { noon + passed - off } else { noon + passed + off };
                    u32::from(clock.look(start + passed, now) == Clock::Steady)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(look(0..8, 0), [0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(look(8..12, 1), [1; 4], "a minute is no jump");
        assert_eq!(look(12..20, 3 * 24 * 60), [0, 0, 0, 0, 0, 0, 1, 1], "whoever sets it means it, after an hour");
        assert_eq!(look(20..22, 0), [0, 0], "it is set back");
        assert_eq!(look(22..30, -600), [0, 0, 0, 0, 0, 0, 1, 1]);
    }
}

//! The process's monotonic timeline, and its conversion to and from the wall clock.
//!
//! Ages are measured on the timeline, so setting the wall clock back makes nothing fresh for longer. The wall clock is
//! used only when a moment is written to disk or read from it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment on the timeline, in milliseconds. Moments before the process started are negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(i64);

impl Moment {
    /// Before all others.
    pub const EARLIEST: Moment = Moment(i64::MIN);

    /// After all others.
    pub const LATEST: Moment = Moment(i64::MAX);

    /// The time since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The moment so long before this one.
    pub fn before(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The moment so long after this one.
    pub fn after(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The Unix time of this moment in milliseconds, when the wall clock shows `wall` at `now`.
    pub fn to_unix_millis(self, now: Moment, wall: SystemTime) -> u64 {
        let wall = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(wall.saturating_sub(now.since(self)).as_millis()).unwrap_or(u64::MAX)
    }

    /// The moment of a Unix time in milliseconds, when the wall clock shows `wall` at `now`. `None` when that time is
    /// in the future: the clock was set back, and the age is unknown.
    pub fn from_unix_millis(then: u64, now: Moment, wall: SystemTime) -> Option<Moment> {
        let then = UNIX_EPOCH.checked_add(Duration::from_millis(then))?;
        wall.duration_since(then).ok().map(|ago| now.before(ago))
    }
}

/// A moment that threads share.
#[derive(Debug)]
pub struct AtomicMoment(AtomicI64);

impl AtomicMoment {
    /// It is `moment` at first.
    pub fn new(moment: Moment) -> Self {
        Self(AtomicI64::new(moment.0))
    }

    /// The stored moment.
    pub fn get(&self) -> Moment {
        Moment(self.0.load(Ordering::Relaxed))
    }

    /// Sets the moment, also to an earlier one.
    pub fn set(&self, moment: Moment) {
        self.0.store(moment.0, Ordering::Relaxed);
    }

    /// Sets the moment unless the stored one is later. Returns the previous one.
    pub fn advance(&self, moment: Moment) -> Moment {
        Moment(self.0.fetch_max(moment.0, Ordering::Relaxed))
    }
}

/// The monotonic clock of this process.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: Instant,
}

impl Clock {
    /// The timeline begins now.
    pub fn start() -> Self {
        Self { began: Instant::now() }
    }

    /// The moment that it is.
    pub fn now(&self) -> Moment {
        Moment(i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_survives_the_wall_clock_and_back() {
        let wall = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let now = Moment(5_000);
        let then = now.before(Duration::from_secs(90));
        let written = then.to_unix_millis(now, wall);
        let later = wall + Duration::from_secs(600);
        let read = Moment::from_unix_millis(written, Moment(3), later).unwrap();
        assert_eq!(Moment(3).since(read), Duration::from_secs(690));
    }

    #[test]
    fn a_wall_clock_that_was_set_back_gives_no_age() {
        let wall = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let written = Moment(0).to_unix_millis(Moment(0), wall);
        assert_eq!(Moment::from_unix_millis(written, Moment(0), wall - Duration::from_secs(3600)), None);
        assert_eq!(Moment::from_unix_millis(u64::MAX, Moment(0), wall), None);
        assert_eq!(Moment(0).to_unix_millis(Moment(10), UNIX_EPOCH - Duration::from_secs(1)), 0);
    }
}

//! The clocks of a node: a monotonic one that runs a little too fast or too slow, and a wall clock that is wrong.

use std::time::{Duration, Instant};

/// Microseconds of virtual time.
pub(super) type Micros = u64;

pub(super) fn micros(duration: Duration) -> Micros {
    duration.as_micros() as Micros
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    origin: Instant,
    offset: i64,
    /// How many parts in a million the clock is too fast; may be negative.
    drift: i64,
    /// How far the wall clock is ahead.
    skew: i64,
}

const MILLION: i64 = 1_000_000;

impl Clock {
    pub(super) fn new(origin: Instant, rng: &mut fastrand::Rng, skew: Duration) -> Self {
        let skew = micros(skew) as i64;
        let (offset, drift) = (rng.i64(0..micros(Duration::from_secs(1000)) as i64), rng.i64(-20_000..=20_000));
        Self { origin, offset, drift, skew: rng.i64(-skew..=skew) }
    }

    pub(super) fn local(&self, now: Micros) -> Instant {
        let drift = now as i64 * self.drift / MILLION;
        self.origin + Duration::from_micros(now.saturating_add_signed(self.offset + drift))
    }

    /// The first virtual time at which the clock shows a time or a later one.
    pub(super) fn when(&self, local: Instant) -> Micros {
        let passed = micros(local.saturating_duration_since(self.origin)) as i64 - self.offset;
        let mut now = (passed.max(0) as i128 * MILLION as i128 / (MILLION + self.drift) as i128) as Micros;
        while self.local(now) < local {
            now += 1;
        }
        now
    }

    /// The monotonic clock stood still.
    pub(super) fn stood_still(&mut self, lasts: Micros) {
        self.offset -= lasts as i64;
    }

    pub(super) fn wall(&self, now: Micros) -> i64 {
        now as i64 + self.skew
    }
}

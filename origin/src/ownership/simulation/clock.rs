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
    offset: Micros,
    /// How many parts in a million the clock is too fast; may be negative.
    drift: i64,
    /// How far the wall clock is ahead.
    skew: i64,
}

const MILLION: i64 = 1_000_000;

impl Clock {
    pub(super) fn new(origin: Instant, rng: &mut fastrand::Rng, skew: Duration) -> Self {
        let skew = micros(skew) as i64;
        let (offset, drift) = (rng.u64(..micros(Duration::from_secs(1000))), rng.i64(-20_000..=20_000));
        Self { origin, offset, drift, skew: rng.i64(-skew..=skew) }
    }

    pub(super) fn local(&self, now: Micros) -> Instant {
        let drift = now as i64 * self.drift / MILLION;
        self.origin + Duration::from_micros((self.offset + now).saturating_add_signed(drift))
    }

    /// The first virtual time at which the clock shows a time or a later one.
    pub(super) fn when(&self, local: Instant) -> Micros {
        let passed = micros(local.saturating_duration_since(self.origin)).saturating_sub(self.offset) as i64;
        let mut now = (passed as i128 * MILLION as i128 / (MILLION + self.drift) as i128) as Micros;
        while self.local(now) < local {
            now += 1;
        }
        now
    }

    pub(super) fn wall(&self, now: Micros) -> i64 {
        now as i64 + self.skew
    }
}

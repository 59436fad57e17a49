//! The back-off between connections to an event stream. Pure: chance is an argument.

use std::time::Duration;

/// The first back-off; jitter makes it 50 to 100 % of this.
const FIRST: Duration = Duration::from_millis(100);

const MAX: Duration = Duration::from_secs(5);

/// The back-off when an origin has no event stream, as an older version.
const NOT_SERVED: Duration = Duration::from_secs(60);

/// The longest `Retry-After` that is honoured; jitter may double it.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// The failures since the stream was last in sync.
#[derive(Debug, Default)]
pub(super) struct Backoff(u32);

impl Backoff {
    pub(super) fn reset(&mut self) {
        self.0 = 0;
    }

    /// The next back-off. `retry_after`: the origin's `Retry-After`, which is a lower bound.
    pub(super) fn next(&mut self, retry_after: Option<Duration>, chance: f64) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.0.min(16)).min(MAX);
        self.0 = self.0.saturating_add(1);
        // Jitter only adds to `Retry-After`: an earlier request would be refused.
        let retry_after = retry_after.unwrap_or_default().min(MAX_RETRY_AFTER).mul_f64(2.0 * jitter(chance));
        longest.mul_f64(jitter(chance)).max(retry_after)
    }

    /// The back-off when the origin has no event stream.
    pub(super) fn not_served(chance: f64) -> Duration {
        NOT_SERVED.mul_f64(jitter(chance))
    }
}

/// 50 to 100 %, so that the edges of a fleet do not reconnect together.
fn jitter(chance: f64) -> f64 {
    0.5 + chance.clamp(0.0, 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoffs_double_until_the_stream_is_in_sync() {
        let mut backoff = Backoff::default();
        let taken: Vec<_> = (0..8).map(|_| backoff.next(None, 1.0).as_millis()).collect();
        assert_eq!(taken, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        backoff.reset();
        assert_eq!(backoff.next(None, 0.0), FIRST / 2);
        let retry_after = Duration::from_secs(10);
        assert_eq!([0.0, 1.0].map(|chance| backoff.next(Some(retry_after), chance)), [retry_after, 2 * retry_after]);
    }
}

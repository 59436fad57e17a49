//! The back-off between connections to an event stream. Pure: chance is an argument.

use std::time::Duration;

/// The first back-off; jitter makes it 50 to 100 % of this.
const FIRST: Duration = Duration::from_millis(100);

const LONGEST: Duration = Duration::from_secs(5);

/// The back-off when an origin has no event stream, as an older version.
const NOT_SERVED: Duration = Duration::from_secs(60);

/// The longest `Retry-After` that is honoured; jitter may double it.
const LONGEST_ASKED: Duration = Duration::from_secs(120);

/// The failures since the stream was last in sync.
#[derive(Debug, Default)]
pub(super) struct Pauses(u32);

impl Pauses {
    pub(super) fn start_over(&mut self) {
        self.0 = 0;
    }

    /// The next back-off. `asked`: the origin's `Retry-After`, which is a lower bound.
    pub(super) fn next(&mut self, asked: Option<Duration>, chance: f64) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.0.min(16)).min(LONGEST);
        self.0 = self.0.saturating_add(1);
        // Jitter only adds to `Retry-After`: an earlier request would be refused.
        let asked = asked.unwrap_or_default().min(LONGEST_ASKED).mul_f64(2.0 * spread(chance));
        longest.mul_f64(spread(chance)).max(asked)
    }

    /// The back-off when the origin has no event stream.
    pub(super) fn when_not_served(chance: f64) -> Duration {
        NOT_SERVED.mul_f64(spread(chance))
    }
}

/// 50 to 100 %, so that the edges of a fleet do not reconnect together.
fn spread(chance: f64) -> f64 {
    0.5 + chance.clamp(0.0, 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_the_stream_was_in_step() {
        let mut pauses = Pauses::default();
        let taken: Vec<_> = (0..8).map(|_| pauses.next(None, 1.0).as_millis()).collect();
        assert_eq!(taken, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        pauses.start_over();
        assert_eq!(pauses.next(None, 0.0), FIRST / 2);
        let asked = Duration::from_secs(10);
        assert_eq!([0.0, 1.0].map(|chance| pauses.next(Some(asked), chance)), [asked, 2 * asked]);
    }
}

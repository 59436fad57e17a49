//! How long to wait before an event stream that ended is begun again. Chance is an argument.

use std::time::Duration;

/// The first pause, at the most; half of it at the least.
const FIRST: Duration = Duration::from_millis(100);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(5);

/// The pause when an origin has no event stream: an older version, which may be upgraded some day.
const NOT_SERVED: Duration = Duration::from_secs(60);

/// The longest pause that an origin may ask for; it may take twice as long.
const LONGEST_ASKED: Duration = Duration::from_secs(120);

/// The pauses since the stream was last in step.
#[derive(Debug, Default)]
pub(super) struct Pauses(u32);

impl Pauses {
    /// The stream was in step.
    pub(super) fn start_over(&mut self) {
        self.0 = 0;
    }

    /// The next pause; `asked`: the origin wants it to be at least so long, and it is up to twice that.
    pub(super) fn next(&mut self, asked: Option<Duration>, chance: f64) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.0.min(16)).min(LONGEST);
        self.0 = self.0.saturating_add(1);
        // What was asked for is spread above itself: whoever comes sooner was asked in vain.
        let asked = asked.unwrap_or_default().min(LONGEST_ASKED).mul_f64(2.0 * spread(chance));
        longest.mul_f64(spread(chance)).max(asked)
    }

    /// The pause when the origin has no event stream.
    pub(super) fn when_not_served(chance: f64) -> Duration {
        NOT_SERVED.mul_f64(spread(chance))
    }
}

/// Half of a pause is by chance, so that the edges of a fleet do not all come at once.
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

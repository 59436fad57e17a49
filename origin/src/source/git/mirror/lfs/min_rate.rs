//! Whether a download gets anywhere. Pure.
//!
//! Others wait for its place, so a byte now and then is not enough: it has to come at a least rate, as a pack has.

use std::time::{Duration, Instant};

/// The rate is an average over so many stall timeouts, as that of a pack.
const WINDOW_STALL_TIMEOUTS: u32 = 4;

/// What came of a download, and how much it was when it last was enough.
pub(super) struct MinRate {
    /// The fewest bytes in a second.
    lowest: u64,
    /// Over how long.
    within: Duration,
    received: u64,
    /// What had come then.
    mark: u64,
    marked: Instant,
}

/// Less came than was to, within a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooSlow {
    pub(super) bytes: u64,
    pub(super) within: Duration,
}

impl MinRate {
    pub(super) fn new(lowest: u64, stall_timeout: Duration, begun: Instant) -> Self {
        Self { lowest, within: stall_timeout * WINDOW_STALL_TIMEOUTS, received: 0, mark: 0, marked: begun }
    }

    /// More came. The error: too little for too long.
    pub(super) fn received(&mut self, bytes: usize, now: Instant) -> Result<(), TooSlow> {
        self.received = self.received.saturating_add(bytes as u64);
        let came = self.received - self.mark;
        let took = now.saturating_duration_since(self.marked);
        if came >= self.lowest.saturating_mul(self.within.as_secs().max(1)) {
            (self.mark, self.marked) = (self.received, now);
            return Ok(());
        }
        if took >= self.within { Err(TooSlow { bytes: came, within: took }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL_TIMEOUT: Duration = Duration::from_secs(3);

    /// When a download is given up of which something comes each second, if it is.
    fn given_up(lowest: u64, bytes: impl Fn(u64) -> usize) -> Option<(u64, TooSlow)> {
        let begun = Instant::now();
        let mut rate = MinRate::new(lowest, STALL_TIMEOUT, begun);
        (1..1000).find_map(|second| {
            let now = begun + Duration::from_secs(second);
            Some((second, rate.received(bytes(second), now).err()?))
        })
    }

    #[test]
    fn what_drips_is_given_up_and_what_comes_at_the_least_rate_on_average_is_not() {
        let too_slow = TooSlow { bytes: 12 * 9, within: Duration::from_secs(12) };
        assert_eq!(given_up(10, |_| 9), Some((12, too_slow)));
        assert_eq!(given_up(10, |_| 10), None);
        assert_eq!(given_up(10, |second| if second % 10 == 0 { 120 } else { 0 }), None, "quick at times");
        assert_eq!(given_up(0, |_| 1), None, "any rate");
        // What began well has to go on.
        let late = TooSlow { bytes: 12, within: Duration::from_secs(12) };
        assert_eq!(given_up(10, |second| if second == 1 { 1000 } else { 1 }), Some((13, late)));
    }
}

//! The minimum rate of a download. Pure.
//!
//! A download occupies a permit, so it must reach a minimum average rate, like the download of a pack.

use std::time::{Duration, Instant};

/// The window of the average, in stall timeouts, as for packs.
const WINDOW_STALL_TIMEOUTS: u32 = 4;

/// The progress of a download in the current window.
pub struct MinRate {
    /// The minimum rate in bytes per second.
    min_rate: u64,
    /// The length of a window.
    window: Duration,
    /// The bytes received in the window.
    bytes: u64,
    window_start: Instant,
}

/// The rate in a window was too low.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooSlow {
    /// The bytes that were received.
    pub bytes: u64,
    /// The time that it took.
    pub within: Duration,
}

impl MinRate {
    /// A download that begins now.
    pub fn new(min_rate: u64, stall_timeout: Duration, start: Instant) -> Self {
        Self { min_rate, window: stall_timeout * WINDOW_STALL_TIMEOUTS, bytes: 0, window_start: start }
    }

    /// Counts received bytes. Fails if the window ends below the minimum rate.
    pub fn received(&mut self, bytes: usize, now: Instant) -> Result<(), TooSlow> {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes >= self.min_rate.saturating_mul(self.window.as_secs().max(1)) {
            (self.bytes, self.window_start) = (0, now);
            return Ok(());
        }
        let elapsed = now.saturating_duration_since(self.window_start);
        if elapsed >= self.window { Err(TooSlow { bytes: self.bytes, within: elapsed }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL_TIMEOUT: Duration = Duration::from_secs(3);

    /// The second at which a download is aborted, and the error. `bytes` arrive each second.
    fn aborted(min_rate: u64, bytes: impl Fn(u64) -> usize) -> Option<(u64, TooSlow)> {
        let start = Instant::now();
        let mut rate = MinRate::new(min_rate, STALL_TIMEOUT, start);
        (1..1000).find_map(|second| {
            let now = start + Duration::from_secs(second);
            Some((second, rate.received(bytes(second), now).err()?))
        })
    }

    #[test]
    fn a_slow_download_is_aborted_and_one_at_the_minimum_average_rate_is_not() {
        let too_slow = TooSlow { bytes: 12 * 9, within: Duration::from_secs(12) };
        assert_eq!(aborted(10, |_| 9), Some((12, too_slow)));
        assert_eq!(aborted(10, |_| 10), None);
        assert_eq!(aborted(10, |second| if second % 10 == 0 { 120 } else { 0 }), None, "quick at times");
        assert_eq!(aborted(0, |_| 1), None, "any rate");
        // The rate counts in each window.
        let late = TooSlow { bytes: 12, within: Duration::from_secs(12) };
        assert_eq!(aborted(10, |second| if second == 1 { 1000 } else { 1 }), Some((13, late)));
    }
}

//! How often agents of one name may say what they run. Pure: time is an argument.

use std::sync::{Mutex, PoisonError};

use weir_cache::clock::Moment;

/// The most messages at once. An agent sends all its rows as up to a few dozen messages that follow each other.
pub(super) const MAX_BURST: u32 = 60;

/// The messages that may follow in a second. One agent sends one at most, and a name may be used by mistake by two.
pub(super) const MESSAGES_PER_SECOND: u32 = 2;

/// A token bucket.
#[derive(Debug)]
pub(super) struct MessageRate {
    /// The messages that may come now, and since when.
    left: Mutex<(f64, Moment)>,
}

impl MessageRate {
    pub(super) fn new(now: Moment) -> Self {
        Self { left: Mutex::new((MAX_BURST.into(), now)) }
    }

    /// Whether a message may come now.
    pub(super) fn admits(&self, now: Moment) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let refilled = left.0 + now.since(left.1).as_secs_f64() * f64::from(MESSAGES_PER_SECOND);
        let refilled = refilled.min(MAX_BURST.into());
        let is_admitted = refilled >= 1.0;
        *left = (if is_admitted { refilled - 1.0 } else { refilled }, now);
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_agent_that_keeps_to_the_protocol_is_never_limited_and_a_flood_is() {
        let start = weir_cache::clock::Clock::start().now();
        let at = |seconds| start.after(Duration::from_secs(seconds));
        let rate = MessageRate::new(start);
        // All rows, then a change in each second.
        assert!((0..50).all(|_| rate.admits(start)) && (1..1_000).all(|second| rate.admits(at(second))));
        let admitted = |now| (0..1_000).filter(|_| rate.admits(now)).count();
        assert_eq!((admitted(at(1_000)), admitted(at(1_000)), admitted(at(1_005))), (60, 0, 10));
        assert_eq!(admitted(at(100_000)), 60);
    }
}

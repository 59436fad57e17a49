//! Pure: when a part of an upstream that failed is requested again. Time is an argument.

use std::time::{Duration, Instant};

use weir_model::back_off::{MAX_BACK_OFF, back_off};

use super::super::{RetryPolicy, ServiceFailure};
use super::not_fetched::NotFetched;

/// What could not be fetched, verified or unpacked.
pub(super) struct Failed {
    pub(super) failure: ServiceFailure,
    times: u32,
    /// Of these, how often it was incomplete.
    incomplete: u32,
    /// `None`: the same bytes would fail again.
    pub(super) until: Option<Instant>,
}

impl Failed {
    /// The next failure after another one.
    pub(super) fn after(before: Option<&Self>, error: NotFetched, interval: Duration, now: Instant) -> Self {
        let NotFetched { failure, retry_after, is_incomplete } = error;
        let times = before.map_or(0, |failed| failed.times) + 1;
        let incomplete = before.map_or(0, |failed| failed.incomplete) + u32::from(is_incomplete);
        // The host of archives is perhaps another one than that of the index: its wish counts less.
        let wanted = retry_after.unwrap_or_default().min(MAX_BACK_OFF);
        let until = (failure.retry != RetryPolicy::Never).then(|| now + back_off(interval, times).max(wanted));
        Self { failure, times, incomplete, until }
    }

    /// How often it was there, but incomplete.
    pub(super) fn incomplete(&self) -> u32 {
        self.incomplete
    }

    /// Whether it is too early to try again.
    pub(super) fn waits(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_there_counts_as_incomplete() {
        let (interval, now) = (Duration::from_secs(60), Instant::now());
        let fail = |before: Option<&Failed>, is_incomplete| {
            let failure = ServiceFailure::transient("fetch", "it is bad".to_owned());
            Failed::after(before, NotFetched { failure, retry_after: None, is_incomplete }, interval, now)
        };
        let timeouts = fail(Some(&fail(None, false)), false);
        let incomplete = fail(Some(&timeouts), true);
        assert_eq!((timeouts.incomplete(), incomplete.incomplete(), incomplete.times), (0, 1, 3));
    }
}

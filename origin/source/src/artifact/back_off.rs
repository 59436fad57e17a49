//! Pure: when a part of an upstream that failed is requested again. Time is an argument.

use std::time::{Duration, Instant};

use weir_model::back_off::{MAX_BACK_OFF, back_off};

use super::super::{RetryPolicy, ServiceFailure};
use super::not_fetched::NotFetched;

/// What could not be fetched, verified or unpacked.
pub(super) struct Failed {
    pub(super) failure: ServiceFailure,
    times: u32,
    /// `None`: the same bytes would fail again.
    pub(super) until: Option<Instant>,
}

impl Failed {
    /// The next failure after another one.
    pub(super) fn after(before: Option<&Self>, error: NotFetched, interval: Duration, now: Instant) -> Self {
        let NotFetched { failure, retry_after } = error;
        let times = before.map_or(0, |failed| failed.times) + 1;
        // The host of archives is perhaps another one than that of the index: its wish counts less.
        let wanted = retry_after.unwrap_or_default().min(MAX_BACK_OFF);
        let until = (failure.retry != RetryPolicy::Never).then(|| now + back_off(interval, times).max(wanted));
        Self { failure, times, until }
    }

    /// How often it failed.
    pub(super) fn times(&self) -> u32 {
        self.times
    }

    /// Whether it is too early to try again.
    pub(super) fn waits(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

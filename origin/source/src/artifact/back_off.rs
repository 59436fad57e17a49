//! Pure: when a part of an upstream that failed is requested again. Time is an argument.

use std::time::{Duration, Instant};

use super::super::{RetryPolicy, ServiceFailure};
use super::not_fetched::NotFetched;

/// The first back-off, unless the poll interval is shorter. It doubles with each failure.
const FIRST_BACK_OFF: Duration = Duration::from_secs(5);

/// The longest back-off, and the longest `Retry-After` of another host that is respected.
const MAX_BACK_OFF: Duration = Duration::from_secs(30 * 60);

/// A back-off is at most this many poll intervals.
const MAX_BACK_OFF_INTERVALS: u32 = 10;

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
        let times = before.map_or(0, |failed| failed.times);
        let longest = (interval * MAX_BACK_OFF_INTERVALS).min(MAX_BACK_OFF);
        let back_off = (interval.min(FIRST_BACK_OFF) * (1 << times.min(20))).min(longest);
        let back_off = back_off.max(retry_after.unwrap_or_default().min(MAX_BACK_OFF));
        let until = (failure.retry != RetryPolicy::Never).then(|| now + back_off);
        Self { failure, times: times + 1, until }
    }

    /// Whether it is too early to try again.
    pub(super) fn waits(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

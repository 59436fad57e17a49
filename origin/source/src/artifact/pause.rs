//! Pure: the pause that a registry demanded in a poll that succeeded in part. The next poll fails with it, without a request.
//! Time is an argument.

use std::time::Instant;

use weir_upstream::UpstreamError;

/// A pause, until the schedule knows of it.
#[derive(Default)]
pub(super) struct Pause(Option<(Instant, UpstreamError)>);

impl Pause {
    /// Notes the error that ended a poll.
    pub(super) fn demanded(&mut self, error: UpstreamError, now: Instant) {
        self.0 = error.retry_after().map(|pause| (now + pause, error));
    }

    /// The error of a poll that is too early, once.
    pub(super) fn take(&mut self, now: Instant) -> Option<UpstreamError> {
        let (until, mut error) = self.0.take().filter(|(until, _)| now < *until)?;
        if let UpstreamError::HttpStatus { retry_after, .. } = &mut error {
            *retry_after = Some(until - now);
        }
        Some(error)
    }
}

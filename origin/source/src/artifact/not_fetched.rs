//! Why an archive, or what says whose it is, was not fetched.

use std::time::Duration;

use weir_upstream::UpstreamError;

use super::super::{RetryPolicy, ServiceFailure};
use super::Chosen;

#[derive(Debug)]
pub(super) struct NotFetched {
    pub(super) failure: ServiceFailure,
    /// What a host that has only archives demands.
    pub(super) retry_after: Option<Duration>,
    /// The archive is there, but not all that is published with it.
    pub(super) is_incomplete: bool,
}

impl NotFetched {
    /// For an error of the upstream.
    pub(super) fn by(chosen: &Chosen, step: &'static str, error: &UpstreamError) -> Self {
        let failure = ServiceFailure::transient(step, format!("{} cannot be fetched: {error}", chosen.label));
        let failure = ServiceFailure { retry: RetryPolicy::BackOff, ..failure };
        Self { failure, retry_after: error.retry_after(), is_incomplete: false }
    }

    /// For an archive of which something is missing.
    pub(super) fn incomplete(chosen: &Chosen, reason: &str) -> Self {
        let failure = ServiceFailure::transient("fetch", format!("{} is not complete: {reason}", chosen.label));
        let failure = ServiceFailure { retry: RetryPolicy::BackOff, ..failure };
        Self { failure, retry_after: None, is_incomplete: true }
    }
}

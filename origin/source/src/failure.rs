//! Why a source could not do what the repository's worker requested.

use std::time::Duration;

use weir_tarball::TarballError;
use weir_upstream::UpstreamError;

/// Why a service does not follow its ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceFailure {
    /// `authenticate`, `resolve`, `fetch`, `verify`, `select`, `lfs`, `build` or `store`.
    pub step: &'static str,
    /// For operators.
    pub reason: String,
    /// When the same content is tried again.
    pub retry: RetryPolicy,
    /// The `Retry-After` of a server.
    pub retry_after: Option<Duration>,
    /// A poll that has not ended yet may end it, so it is not shown before that.
    pub awaits_poll: bool,
}

/// When the same content is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// With the next poll.
    NextPoll,
    /// After a back-off: it reached its deadline and probably would again, or a server lacks an object.
    BackOff,
    /// Never: the content itself is invalid.
    Never,
}

impl ServiceFailure {
    /// A failure that the next attempt may not have.
    pub fn transient(step: &'static str, reason: String) -> Self {
        Self { step, reason, retry: RetryPolicy::NextPoll, retry_after: None, awaits_poll: false }
    }

    /// The failure of a step that a tarball's error means, of an archive that can be read again.
    pub fn of_tarball(step: &'static str, error: &TarballError) -> Self {
        use TarballError::{Empty, FolderMissing, Interrupted, NotAFolder, Spool, Write};
        let step = if matches!(error, Empty | FolderMissing(_) | NotAFolder(..)) { "select" } else { step };
        let is_passing = matches!(error, Write(_) | Interrupted | Spool { .. });
        let retry = if is_passing { RetryPolicy::NextPoll } else { RetryPolicy::Never };
        Self { retry, ..Self::transient(step, error.to_string()) }
    }

    /// What the service follows must not be published. What was published before the policy existed, or before its key
    /// expired, stays published.
    pub(crate) fn unverified(reason: &dyn std::fmt::Display, published: bool) -> Self {
        let note = if published { " (it was published before, and stays published)" } else { "" };
        Self::transient("verify", format!("{reason}{note}"))
    }
}

/// A ref of an upstream that a poll left out, or a version that it passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOutRef {
    /// Its name for messages.
    pub name: String,
    /// Whether a service follows it.
    pub is_followed: bool,
    /// Why; the step is `list refs` or `fetch`.
    pub failure: PollFailure,
}

/// Why a poll failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollFailure {
    /// `connect`, `authenticate`, `list refs`, `list`, `verify`, `fetch` or `write`.
    pub step: &'static str,
    /// For operators, without credentials or the user info of a URL.
    pub reason: String,
    /// The label of the metric.
    pub kind: &'static str,
    /// Whether it reached a deadline, instead of receiving an error.
    pub timeout: bool,
    /// The upstream's `Retry-After`, from the end of the poll; at most a day.
    pub retry_after: Option<Duration>,
}

impl PollFailure {
    /// All values of `kind`.
    pub const KINDS: [&str; 17] = [
        "not_allowed",
        "dns",
        "timeout",
        "connect",
        "trust",
        "authenticate",
        "redirect",
        "not_found",
        "no_refs",
        "object_format",
        "limit",
        "rate_limit",
        "server_error",
        "protocol",
        "local",
        "damaged",
        "interrupted",
    ];

    /// A failure of one of the [`KINDS`](Self::KINDS).
    pub fn new(
        step: &'static str,
        kind: &'static str,
        error: &dyn std::fmt::Display,
        timeout: bool,
        retry_after: Option<Duration>,
    ) -> Self {
        debug_assert!(Self::KINDS.contains(&kind), "{kind}");
        Self { step, reason: error.to_string(), kind, timeout, retry_after }
    }
}

impl From<UpstreamError> for PollFailure {
    fn from(error: UpstreamError) -> Self {
        Self::new(error.step(), error.kind(), &error, error.is_timeout(), error.retry_after())
    }
}

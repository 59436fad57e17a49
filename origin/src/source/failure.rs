//! Why a source did not do what its repository's agent asked for.

use std::time::Duration;

/// Why a service is not at what its ref says.
#[derive(Debug, Clone)]
pub(crate) struct ServiceFailure {
    /// `resolve`, `verify`, `select`, `lfs`, `build` or `store`.
    pub(crate) step: &'static str,
    /// In plain words.
    pub(crate) reason: String,
    pub(crate) again: Again,
    /// How long a server asks to be left alone.
    pub(crate) pause: Option<Duration>,
}

/// When the same content may do better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// With the next poll.
    Soon,
    /// It took all the time that it may, and may well do so again; or a server does not have what is needed.
    Later,
    /// Never: it is in the content, not in the machine.
    Never,
}

impl ServiceFailure {
    /// A failure that may be gone the next time.
    pub(crate) fn passing(step: &'static str, reason: String) -> Self {
        Self { step, reason, again: Again::Soon, pause: None }
    }
}

/// Why a poll failed, or what it left out.
#[derive(Debug)]
pub(crate) struct PollFailure {
    /// Where: `connect`, `authenticate`, `list refs`, `fetch`, `write`.
    pub(crate) step: &'static str,
    /// In plain words, without credentials or the user info of a URL.
    pub(crate) reason: String,
    /// For the metric.
    pub(crate) kind: &'static str,
    /// Whether it took too long, rather than that something answered with an error.
    pub(crate) timeout: bool,
    /// How long the upstream asks to be left alone.
    pub(crate) retry_after: Option<Duration>,
    /// Set when all is followed but a ref: whether anything changed.
    pub(crate) all_but_a_ref: Option<bool>,
}

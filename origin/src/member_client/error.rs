//! Why a request to another member has no answer.

use std::time::Duration;

/// A request has no answer. It may have been carried out, unless it is [`MemberError::Overloaded`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum MemberError {
    #[error("too many requests are being forwarded")]
    Overloaded,
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it did not answer within {} s", .0.as_secs())]
    #[strum(serialize = "timeout")]
    TimedOut(Duration),
    /// It answered a message with something else than the protocol says.
    #[error("it answered {0}")]
    BadAnswer(String),
}

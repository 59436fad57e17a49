//! Why an origin did not give what it was asked for.

use std::time::Duration;

/// Why an origin did not give what it was asked for. Its words are fit for a client: no URL, no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OriginError {
    /// It has no such thing.
    #[error("the origin has no such thing")]
    NotFound,
    /// Another origin owns it.
    #[error("origin {0} says that another one owns it")]
    Misdirected(String),
    /// It could not be reached, or the connection broke.
    #[error("origin {origin} cannot be reached: {reason}")]
    Unreachable {
        /// Its name.
        origin: String,
        /// What went wrong.
        reason: String,
    },
    /// It did not answer in time.
    #[error("origin {origin} did not answer within {}", humane(after))]
    TimedOut {
        /// Its name.
        origin: String,
        /// The deadline.
        after: Duration,
    },
    /// It answered that it cannot, just now.
    #[error("{detail}")]
    Refused {
        /// The status of its answer: 429, 502, 503 or 504.
        status: u16,
        /// Its own words.
        detail: String,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// It answered with something that makes no sense.
    #[error("the answer of origin {origin} cannot be used: {reason}")]
    BadAnswer {
        /// Its name.
        origin: String,
        /// What is wrong with it.
        reason: String,
    },
}

fn humane(duration: &Duration) -> String {
    format!("{} s", duration.as_secs_f32())
}

impl OriginError {
    /// The value of a metric's label.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            OriginError::NotFound => "404",
            OriginError::Misdirected(_) => "421",
            OriginError::Unreachable { .. } => "unreachable",
            OriginError::TimedOut { .. } => "timeout",
            OriginError::Refused { status, .. } => match status {
                429 => "429",
                502 => "502",
                503 => "503",
                _ => "504",
            },
            OriginError::BadAnswer { .. } => "bad_answer",
        }
    }
}

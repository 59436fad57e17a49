//! Why a request to an origin failed.

use std::time::Duration;

/// Why a request to an origin failed. The text is fit for clients: it has no URL and no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// `404`.
    #[error("the origin answered 404")]
    NotFound,
    /// Connecting failed, or the connection broke.
    #[error("origin {origin} cannot be reached: {reason}")]
    Unreachable {
        /// Its name.
        origin: String,
        /// What happened.
        reason: String,
    },
    /// The timeout expired.
    #[error("origin {origin} did not answer within {}", humane(after))]
    TimedOut {
        /// Its name.
        origin: String,
        /// The timeout.
        after: Duration,
    },
    /// The origin is temporarily unable to answer.
    #[error("{detail}")]
    Refused {
        /// The status: 429, 502, 503, 504 or 508.
        status: u16,
        /// The kind of its problem document, if it has one.
        kind: String,
        /// The `detail` of its problem document.
        detail: String,
        /// Its `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The response violates the protocol.
    #[error("the response of origin {origin} violates the protocol: {reason}")]
    BadResponse {
        /// Its name.
        origin: String,
        /// What is wrong.
        reason: String,
    },
}

fn humane(duration: &Duration) -> String {
    format!("{} s", duration.as_secs_f32())
}

impl OriginError {
    /// The value of a metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            OriginError::NotFound => "404",
            OriginError::Unreachable { .. } => "unreachable",
            OriginError::TimedOut { .. } => "timeout",
            OriginError::Refused { status, .. } => match status {
                429 => "429",
                502 => "502",
                503 => "503",
                508 => "508",
                _ => "504",
            },
            OriginError::BadResponse { .. } => "bad_answer",
        }
    }
}

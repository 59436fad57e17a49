//! Why a poll ended without an answer that can be used.

use std::fmt;
use std::time::Duration;

use http::StatusCode;

use crate::edge_client::{EdgeUrl, RequestError};
use crate::fetch::{AnswerError, FetchError};
use crate::release::{ReleaseError, TarError};

/// Why a poll failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PollError {
    /// The edge could not be asked.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The edge answered, and not with a tarball.
    #[error("the edge answers {status}: {}", detail.as_deref().unwrap_or(hint(*status)))]
    Status {
        status: StatusCode,
        retry_after: Option<Duration>,
        /// The edge's own words, in one line.
        detail: Option<String>,
    },
    /// The edge does not take the agent for anybody who may read.
    #[error("the edge answers 401 Unauthorized: {} {remedy}", detail.as_deref().unwrap_or("It says no more."))]
    Unauthorized {
        /// The edge's own words, in one line.
        detail: Option<String>,
        /// What can be done about it here.
        remedy: String,
    },
    /// The answer lacks what it needs.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// The edge is behind what this agent has seen.
    #[error("the edge offers generation {offered}, and {seen} was seen already")]
    Regressed { seen: u64, offered: u64 },
    /// The edge still offers a tarball that cannot be unpacked.
    #[error("the tarball was refused before")]
    RefusedBefore,
    /// There is no verified tarball.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The release could not be put on disk.
    #[error(transparent)]
    Release(#[from] ReleaseError),
}

/// No edge gave an answer that can be used.
#[derive(Debug)]
pub(crate) struct Failed {
    /// Of each edge that was asked, in that order: at least one.
    pub(super) errors: Vec<(EdgeUrl, PollError)>,
    /// The longest time for which one of them wants to be left alone.
    pub(super) retry_after: Option<Duration>,
}

impl Failed {
    /// The error that decides what is done about it: that of the last edge.
    pub(super) fn last(&self) -> Option<&PollError> {
        self.errors.last().map(|(_, error)| error)
    }
}

impl fmt::Display for Failed {
    /// What is the matter with each edge, and once what is the matter here.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told: Vec<String> = Vec::new();
        for (edge, error) in &self.errors {
            let words = if error.is_of_this_machine() { error.to_string() } else { format!("{edge}: {error}") };
            if !told.contains(&words) {
                told.push(words);
            }
        }
        f.write_str(&told.join("; "))
    }
}

fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => "it does not know the service, or this agent may not see it",
        StatusCode::FORBIDDEN => "it does not accept this agent's credentials",
        StatusCode::SERVICE_UNAVAILABLE => "nothing is published yet, or the edge is busy or stopping",
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => "its origin fails or does not answer",
        _ => "it says no more",
    }
}

impl PollError {
    /// All values of that label: those of [`kind`](Self::kind), and that of a follower which panicked.
    pub(crate) const KINDS: [&str; 16] = [
        "connect",
        "certificate",
        "silent",
        "slow",
        "closed",
        "broken",
        "token",
        "status",
        "unauthorized",
        "answer",
        "generation",
        "verify",
        "too_large",
        "disk",
        "unpack",
        "panic",
    ];

    /// The value of a metric's label.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Request(error) | Self::Fetch(FetchError::Request(error)) => error.kind(),
            Self::Status { .. } => "status",
            Self::Unauthorized { .. } => "unauthorized",
            Self::Answer(_) => "answer",
            Self::Regressed { .. } => "generation",
            Self::Fetch(FetchError::Decode(_) | FetchError::Mismatch { .. }) => "verify",
            Self::Fetch(FetchError::Slow(..)) => "slow",
            Self::Fetch(FetchError::TooLarge(_)) => "too_large",
            Self::Fetch(FetchError::Disk { .. }) => "disk",
            Self::Release(ReleaseError::Tar(TarError::Write { .. })) => "disk",
            Self::RefusedBefore | Self::Release(ReleaseError::Tar(_)) => "unpack",
            Self::Release(_) => "disk",
        }
    }

    /// Whether time alone may heal it.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Request(error) | Self::Fetch(FetchError::Request(error)) => {
                !matches!(error, RequestError::Certificate(_) | RequestError::Token(_))
            }
            Self::Fetch(FetchError::Slow(..)) => true,
            Self::Status { status, .. } => matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// Whether no edge has anything to do with it.
    fn is_of_this_machine(&self) -> bool {
        match self {
            Self::Request(error) => matches!(error, RequestError::Token(_)),
            Self::Fetch(error) => matches!(error, FetchError::Disk { .. }),
            Self::RefusedBefore | Self::Release(_) => true,
            Self::Status { .. } | Self::Unauthorized { .. } | Self::Answer(_) | Self::Regressed { .. } => false,
        }
    }

    /// Whether another service would see the same at this edge.
    pub(crate) fn is_of_the_edge(&self) -> bool {
        match self {
            Self::Request(error) | Self::Fetch(FetchError::Request(error)) => {
                !matches!(error, RequestError::Broken(_) | RequestError::Token(_))
            }
            Self::Fetch(FetchError::Slow(..)) => true,
            Self::Status { status, .. } => *status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error(),
            _ => false,
        }
    }

    /// How long an edge asked to be left alone.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

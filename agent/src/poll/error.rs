//! Why a poll failed.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use weir_protocol::observed::ProblemKind;
use weir_protocol::request_id::RequestId;
use weir_release::{ReleaseError, TarError};

use crate::config::EdgeUrl;
use crate::dependencies::Waits;
use crate::edge_client::RequestError;
use crate::fetch::{FetchError, InvalidHeader};
use crate::hook::Veto;
use crate::verify::ProofError;

/// Why a poll failed at one edge.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PollError {
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A status that is neither a success nor `304`.
    #[error("the edge answers {status}: {}", detail.as_deref().unwrap_or(hint(*status)))]
    Status {
        status: StatusCode,
        retry_after: Option<Duration>,
        /// The `detail` of the problem document.
        detail: Option<String>,
    },
    /// `401`: the edge rejects the credential, or requires one.
    #[error("the edge answers 401 Unauthorized: {} {advice}", detail.as_deref().unwrap_or("It gives no reason."))]
    Unauthorized {
        /// The `detail` of the problem document.
        detail: Option<String>,
        /// What an operator can do.
        advice: String,
    },
    /// A header is missing or malformed.
    #[error(transparent)]
    InvalidHeader(#[from] InvalidHeader),
    /// The generation is lower than one seen before.
    #[error("the edge offers generation {offered}, which is older than {seen}, the highest seen before")]
    Regressed { seen: u64, offered: u64 },
    /// The generation is more than a day ahead of this machine's clock.
    #[error(
        "the edge offers generation {0}, which is more than a day ahead of this machine's clock: a clock is wrong, here or \
         at the origin, or the edge lies"
    )]
    Ahead(u64),
    /// With `trust`: the publication is not proved to be the origin's.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// The tarball could not be unpacked before.
    #[error("the tarball was rejected before")]
    RejectedBefore,
    /// The tarball could not be fetched or verified.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The release could not be written.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The check refused the release.
    #[error("{message}")]
    Vetoed { message: String, output: Option<String> },
    /// The release is on disk, and other services go first.
    #[error(transparent)]
    Waits(#[from] Waits),
}

impl From<&Veto> for PollError {
    fn from(veto: &Veto) -> Self {
        Self::Vetoed { message: veto.message.clone(), output: veto.output.clone() }
    }
}

/// What a status shows of a failed poll.
pub(super) struct Failure {
    pub(super) message: String,
    pub(super) kind: ProblemKind,
    pub(super) is_retryable: bool,
    /// What the command that failed wrote, if it is reported.
    pub(super) output: Option<String>,
}

impl From<&PollError> for Failure {
    fn from(error: &PollError) -> Self {
        let output = match error {
            PollError::Vetoed { output, .. } => output.clone(),
            _ => None,
        };
        Self { message: error.to_string(), kind: error.problem(), is_retryable: error.is_retryable(), output }
    }
}

/// A poll failed at every edge.
#[derive(Debug)]
pub(crate) struct AllEdgesFailed {
    /// The error of each edge, in the order of the requests; at least one.
    pub(super) errors: Vec<(EdgeUrl, PollError)>,
    /// The longest `Retry-After` of them.
    pub(super) retry_after: Option<Duration>,
    /// The id of the poll.
    pub(super) request_id: RequestId,
}

impl AllEdgesFailed {
    /// Whether every edge answers that it has no such service.
    pub(super) fn is_not_found(&self) -> bool {
        let is_404 = |error: &PollError| matches!(error, PollError::Status { status: StatusCode::NOT_FOUND, .. });
        self.errors.iter().all(|(_, error)| is_404(error))
    }

    /// The error of the last edge, which decides on retries.
    pub(super) fn last(&self) -> Option<&PollError> {
        self.errors.last().map(|(_, error)| error)
    }
}

impl fmt::Display for AllEdgesFailed {
    /// Names the error of each edge, and an error of this machine once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut messages: Vec<String> = Vec::new();
        for (edge, error) in &self.errors {
            let message = if error.is_local() { error.to_string() } else { format!("{edge}: {error}") };
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
        f.write_str(&messages.join("; "))
    }
}

fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => "it does not know the service, or this agent may not see it",
        StatusCode::FORBIDDEN => "it does not accept this agent's credentials",
        StatusCode::SERVICE_UNAVAILABLE => "nothing is published yet, or the edge is busy or stopping",
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => "its origin fails or does not answer",
        _ => "it gives no reason",
    }
}

impl PollError {
    /// One of [`ERROR_KINDS`](crate::metrics::ERROR_KINDS).
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Request(error) | Self::Fetch(FetchError::Request(error)) => error.kind(),
            Self::Status { .. } => "status",
            Self::Unauthorized { .. } => "unauthorized",
            Self::InvalidHeader(_) => "answer",
            Self::Proof(_) => "signature",
            Self::Regressed { .. } | Self::Ahead(_) => "generation",
            Self::Fetch(FetchError::Decode(_) | FetchError::NoFrames | FetchError::Mismatch { .. }) => "verify",
            Self::Fetch(FetchError::Slow | FetchError::Yielded) => "slow",
            Self::Fetch(FetchError::TooLarge(_)) => "too_large",
            Self::Fetch(FetchError::Disk { .. }) => "disk",
            Self::Release(ReleaseError::Tar(TarError::Write { .. })) => "disk",
            Self::RejectedBefore | Self::Release(ReleaseError::Tar(_)) => "unpack",
            Self::Release(_) => "disk",
            Self::Vetoed { .. } => "check",
            Self::Waits(Waits::NoLabels) => "labels",
            Self::Waits(_) => "dependency",
        }
    }

    /// The kind in the status of a service.
    pub(crate) fn problem(&self) -> ProblemKind {
        match self {
            Self::Request(error) | Self::Fetch(FetchError::Request(error)) => error.problem(),
            Self::Status { status, .. } => match *status {
                StatusCode::NOT_FOUND => ProblemKind::NotFound,
                StatusCode::FORBIDDEN => ProblemKind::Unauthorized,
                StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => ProblemKind::Timeout,
                status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                    ProblemKind::Unreachable
                }
                _ => ProblemKind::Other,
            },
            Self::Unauthorized { .. } => ProblemKind::Unauthorized,
            Self::InvalidHeader(_) | Self::Fetch(FetchError::TooLarge(_)) => ProblemKind::Other,
            Self::Regressed { .. } | Self::Ahead(_) => ProblemKind::Regressed,
            Self::Proof(_) => ProblemKind::Signature,
            Self::Fetch(FetchError::Decode(_) | FetchError::NoFrames | FetchError::Mismatch { .. }) => {
                ProblemKind::DigestMismatch
            }
            Self::Fetch(FetchError::Slow | FetchError::Yielded) => ProblemKind::Timeout,
            Self::Fetch(FetchError::Disk { .. }) => ProblemKind::Disk,
            Self::Release(ReleaseError::Tar(TarError::Write { .. })) => ProblemKind::Disk,
            Self::RejectedBefore | Self::Release(ReleaseError::Tar(_)) => ProblemKind::Unpack,
            Self::Release(_) => ProblemKind::Disk,
            Self::Vetoed { .. } => ProblemKind::CheckVetoed,
            Self::Waits(Waits::NoLabels) => ProblemKind::Other,
            Self::Waits(_) => ProblemKind::Dependency,
        }
    }

    /// Whether a retry may succeed without a change of configuration.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Request(error) | Self::Fetch(FetchError::Request(error)) => {
                !matches!(error, RequestError::Certificate(_) | RequestError::Token(_))
            }
            Self::Fetch(FetchError::Slow | FetchError::Yielded) | Self::Waits(_) => true,
            Self::Status { status, .. } => matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// Whether the error is one of this machine.
    fn is_local(&self) -> bool {
        match self {
            Self::Request(error) => matches!(error, RequestError::Token(_)),
            Self::Fetch(error) => matches!(error, FetchError::Disk { .. }),
            Self::RejectedBefore | Self::Release(_) | Self::Vetoed { .. } | Self::Waits(_) => true,
            Self::Proof(error) => *error == ProofError::NoKeys,
            Self::Status { .. } | Self::Unauthorized { .. } | Self::InvalidHeader(_) => false,
            Self::Regressed { .. } | Self::Ahead(_) => false,
        }
    }

    /// Whether other services would get the same error from this edge.
    pub(crate) fn is_edge_failure(&self) -> bool {
        match self {
            Self::Request(error) | Self::Fetch(FetchError::Request(error)) => {
                !matches!(error, RequestError::Broken(_) | RequestError::Token(_))
            }
            Self::Fetch(FetchError::Slow) => true,
            Self::Status { status, .. } => *status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error(),
            _ => false,
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use weir_protocol::digest::TarballDigest;

    use super::*;

    #[test]
    fn each_error_has_a_kind_in_the_status() {
        let status = |status| PollError::Status { status, retry_after: None, detail: None };
        let disk = || io::Error::other("disk");
        let digest = TarballDigest::of(b"");
        let (second, text) = (Duration::from_secs(1), String::new);
        for (error, expected) in [
            (RequestError::Connect(text()).into(), ProblemKind::Unreachable),
            (RequestError::Closed(text()).into(), ProblemKind::Unreachable),
            (RequestError::Broken(text()).into(), ProblemKind::Unreachable),
            (RequestError::Silent(second).into(), ProblemKind::Timeout),
            (FetchError::Request(RequestError::Slow(second)).into(), ProblemKind::Timeout),
            (RequestError::Certificate(text()).into(), ProblemKind::Unauthorized),
            (RequestError::Token(text()).into(), ProblemKind::Unauthorized),
            (status(StatusCode::NOT_FOUND), ProblemKind::NotFound),
            (status(StatusCode::FORBIDDEN), ProblemKind::Unauthorized),
            (status(StatusCode::GATEWAY_TIMEOUT), ProblemKind::Timeout),
            (status(StatusCode::SERVICE_UNAVAILABLE), ProblemKind::Unreachable),
            (status(StatusCode::TOO_MANY_REQUESTS), ProblemKind::Unreachable),
            (status(StatusCode::IM_A_TEAPOT), ProblemKind::Other),
            (PollError::Unauthorized { detail: None, advice: text() }, ProblemKind::Unauthorized),
            (InvalidHeader("weir-digest").into(), ProblemKind::Other),
            (PollError::Regressed { seen: 2, offered: 1 }, ProblemKind::Regressed),
            (PollError::Ahead(1), ProblemKind::Regressed),
            (ProofError::NoKeys.into(), ProblemKind::Signature),
            (PollError::RejectedBefore, ProblemKind::Unpack),
            (FetchError::Decode(disk()).into(), ProblemKind::DigestMismatch),
            (FetchError::NoFrames.into(), ProblemKind::DigestMismatch),
            (FetchError::Mismatch { expected: digest, found: digest }.into(), ProblemKind::DigestMismatch),
            (FetchError::Slow.into(), ProblemKind::Timeout),
            (FetchError::Yielded.into(), ProblemKind::Timeout),
            (FetchError::TooLarge(1).into(), ProblemKind::Other),
            (FetchError::Disk { directory: "/".into(), error: disk() }.into(), ProblemKind::Disk),
            (ReleaseError::NotKept { digest }.into(), ProblemKind::Disk),
            (ReleaseError::Tar(TarError::Read(disk())).into(), ProblemKind::Unpack),
            (Waits::NoList.into(), ProblemKind::Dependency),
            (PollError::Vetoed { message: text(), output: None }, ProblemKind::CheckVetoed),
        ] {
            assert_eq!(error.problem(), expected, "{error}");
        }
    }
}

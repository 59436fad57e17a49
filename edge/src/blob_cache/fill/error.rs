//! Why a blob cannot be had.

use std::time::Duration;

use crate::origin_client::OriginError;

/// Why a blob cannot be had. The edge's own disk is no reason: blobs are served past it.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum FillError {
    /// The origin does not have it: the descriptor is out of date.
    #[error("the origin does not have the blob")]
    NotFound,
    /// The origin cannot be asked.
    #[error(transparent)]
    Origin(OriginError),
    /// The transfer broke off, and could not be resumed.
    #[error("the blob's transfer broke off: {0}")]
    Broken(String),
    /// The origin fell silent in mid-transfer, and it could not be resumed.
    #[error("the blob's transfer stalled: nothing came for {} s", .0.as_secs_f32())]
    Stalled(Duration),
    /// What the origin sends is not what its name says, twice.
    #[error("the origin's bytes are not the blob's")]
    Corrupt,
    /// It takes longer than a request waits.
    #[error("the blob is still on its way")]
    TooSlow,
    /// A bound was reached: of blobs on their way, of requests that wait for them, or of requests served past the disk.
    #[error("too many blobs are on their way, or too many requests wait for them")]
    Full,
    /// The task that fetched it ended without a result.
    #[error("the fill ended without a result")]
    Abandoned,
}

impl FillError {
    /// The value of a metric's label.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            FillError::NotFound => "not_found",
            FillError::Origin(_) => "origin_failed",
            FillError::Broken(_) => "broken",
            FillError::Stalled(_) => "stalled",
            FillError::Corrupt => "corrupt",
            FillError::TooSlow => "too_slow",
            FillError::Full => "full",
            FillError::Abandoned => "abandoned",
        }
    }

    /// Whether asking again, from where the bytes end, may help: the value of a metric's label when it may.
    pub(super) fn worth_resuming(&self) -> Option<&'static str> {
        match self {
            FillError::Broken(_) => Some("broken"),
            FillError::Stalled(_) => Some("stalled"),
            FillError::Origin(OriginError::Unreachable { .. }) => Some("unreachable"),
            FillError::Origin(OriginError::TimedOut { .. }) => Some("timeout"),
            FillError::Origin(OriginError::Refused { retry_after: Some(_), .. }) => Some("refused"),
            _ => None,
        }
    }

    /// When the origin wants to be asked again, if it said so.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            FillError::Origin(OriginError::Refused { retry_after, .. }) => *retry_after,
            _ => None,
        }
    }
}

impl From<OriginError> for FillError {
    fn from(error: OriginError) -> Self {
        match error {
            OriginError::NotFound => FillError::NotFound,
            error => FillError::Origin(error),
        }
    }
}

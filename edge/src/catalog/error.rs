//! Why a version of a service cannot be found.

use super::metrics::StaleReason;
use crate::origin_client::OriginError;
use crate::single_flight::{Abandoned, Full};

/// Why there is nothing to serve.
#[derive(Debug, Clone)]
pub(crate) enum LookupError {
    /// There is no such service, or no such version of it.
    Absent,
    /// What is stored is too old to be served without the origin, and the origin cannot be asked.
    Expired(String),
    /// Nothing is stored, and the origin cannot be asked.
    Origin(OriginError),
    /// Nothing is stored, and the origin took too long.
    TooSlow,
    /// Nothing is stored, and what the origin offers is older than what was seen before.
    Regressed,
    /// Too many queries are under way.
    Full,
    /// The edge itself failed: a bug.
    Internal,
}

impl LookupError {
    /// The reason in plain words, fit for a client.
    pub(crate) fn reason(&self) -> String {
        match self {
            LookupError::Absent => "there is no such service".to_owned(),
            LookupError::Expired(reason) => reason.clone(),
            LookupError::Origin(error) => error.to_string(),
            LookupError::TooSlow => "the origin did not answer in time".to_owned(),
            LookupError::Regressed => {
                "the origin offers an older version than was seen before, which is refused".to_owned()
            }
            LookupError::Full => "too many queries to origins are under way".to_owned(),
            LookupError::Internal => "the edge failed to ask the origin".to_owned(),
        }
    }

    /// The reason for a stale answer that is served instead.
    pub(super) fn stale_reason(&self) -> StaleReason {
        match self {
            LookupError::TooSlow => StaleReason::OriginSlow,
            LookupError::Regressed => StaleReason::Regressed,
            LookupError::Full => StaleReason::EdgeBusy,
            LookupError::Internal => StaleReason::EdgeFailed,
            LookupError::Absent | LookupError::Expired(_) | LookupError::Origin(_) => StaleReason::OriginFailed,
        }
    }
}

impl From<Full> for LookupError {
    fn from(_: Full) -> Self {
        LookupError::Full
    }
}

impl From<Abandoned> for LookupError {
    fn from(error: Abandoned) -> Self {
        tracing::error!(%error, "a query about a service failed within the edge");
        LookupError::Internal
    }
}

//! Why a lookup failed.

use weir_cache::OriginError;
use weir_cache::single_flight::{Abandoned, Overloaded};

use super::metrics::StaleReason;

#[derive(Debug, Clone)]
pub(crate) enum LookupError {
    /// The service, or this version of it, does not exist.
    Absent,
    /// The stored version is too old to be served without revalidation, which failed.
    Expired(String),
    /// Nothing is stored, and the origin query failed.
    Origin(OriginError),
    /// Nothing is stored, and the origin query timed out.
    TooSlow,
    /// Nothing is stored, and the origin offers an older version than was seen before.
    Regressed,
    /// Too many queries are in flight.
    Overloaded,
    /// A bug in the edge.
    Internal,
}

impl LookupError {
    /// The reason as a sentence without a full stop, fit for clients.
    pub(crate) fn reason(&self) -> String {
        match self {
            LookupError::Absent => "there is no such service".to_owned(),
            LookupError::Expired(reason) => reason.clone(),
            LookupError::Origin(error) => error.to_string(),
            LookupError::TooSlow => "the origin did not answer in time".to_owned(),
            LookupError::Regressed => {
                "the origin offers an older version than was seen before, so it was rejected".to_owned()
            }
            LookupError::Overloaded => "too many queries to origins are in flight".to_owned(),
            LookupError::Internal => "the edge failed to query the origin".to_owned(),
        }
    }

    /// The reason for serving a stale version instead.
    pub(super) fn stale_reason(&self) -> StaleReason {
        match self {
            LookupError::TooSlow => StaleReason::OriginSlow,
            LookupError::Regressed => StaleReason::Regressed,
            LookupError::Overloaded => StaleReason::EdgeBusy,
            LookupError::Internal => StaleReason::EdgeFailed,
            LookupError::Absent | LookupError::Expired(_) | LookupError::Origin(_) => StaleReason::OriginFailed,
        }
    }
}

impl From<Overloaded> for LookupError {
    fn from(_: Overloaded) -> Self {
        LookupError::Overloaded
    }
}

impl From<Abandoned> for LookupError {
    fn from(error: Abandoned) -> Self {
        tracing::error!(%error, "a query about a service was abandoned");
        LookupError::Internal
    }
}

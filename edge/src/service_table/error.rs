//! Why a version of a service cannot be found.

use std::sync::Arc;

use super::store::StoreError;
use crate::metrics::StaleWhy;
use crate::origin_client::OriginError;
use crate::single_flight::{Abandoned, Full};

/// Why there is nothing to serve.
#[derive(Debug, Clone)]
pub(crate) enum LookupError {
    /// There is no such service, or no such version of it.
    Absent,
    /// What is held is too old to be served without the origin, and the origin cannot be asked.
    Expired(String),
    /// Nothing is held, and the origin cannot be asked.
    Origin(OriginError),
    /// Nothing is held, and the origin took too long.
    TooSlow,
    /// Nothing is held, and what the origin offers is older than what was seen before.
    Regressed,
    /// Too many questions are under way.
    Full,
    /// The edge itself failed: its disk, or a bug.
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
            LookupError::Full => "too many questions to origins are under way".to_owned(),
            LookupError::Internal => "the edge's service table cannot be used".to_owned(),
        }
    }

    /// What a stale answer that is served instead says.
    pub(super) fn stale_why(&self) -> StaleWhy {
        match self {
            LookupError::TooSlow => StaleWhy::OriginSlow,
            LookupError::Regressed => StaleWhy::Regressed,
            LookupError::Full => StaleWhy::EdgeBusy,
            LookupError::Internal => StaleWhy::EdgeFailed,
            LookupError::Absent | LookupError::Expired(_) | LookupError::Origin(_) => StaleWhy::OriginFailed,
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
        internal(&error)
    }
}

impl From<StoreError> for LookupError {
    fn from(error: StoreError) -> Self {
        internal(&error)
    }
}

impl From<Arc<StoreError>> for LookupError {
    fn from(error: Arc<StoreError>) -> Self {
        internal(&error)
    }
}

/// A failure of the edge itself, which is logged and not told.
pub(super) fn internal(error: &dyn std::error::Error) -> LookupError {
    tracing::error!(%error, "a question about a service failed within the edge");
    LookupError::Internal
}

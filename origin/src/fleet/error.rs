//! Why a change of agents, assignments, issuers, freezes or plans was not made.

use crate::catalog::Refusal;

#[derive(Debug, thiserror::Error)]
pub(crate) enum FleetError {
    #[error("There is no {kind} `{name}` here.")]
    Missing { kind: &'static str, name: String },
    #[error("{0}")]
    Refused(Refusal),
    /// The entry contradicts another one.
    #[error("{reason}.")]
    Conflict { kind: &'static str, name: String, reason: String },
    /// A bound is reached. With what to do.
    #[error("{0}.")]
    Full(String),
    /// Nothing was changed.
    #[error("{0}. Nothing was changed.")]
    Unreadable(String),
    /// The outcome is not known.
    #[error("The change could not be written: {0}. It may have been committed: check with `GET` before you try again.")]
    Unknown(String),
    /// Other origins changed the same record again and again.
    #[error("Other origins change the {0} at the same time. Nothing was changed.")]
    Contended(&'static str),
}

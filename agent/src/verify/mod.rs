//! Signatures of origins: with `trust`, only signed publications are accepted, and signed freshness statements say how far
//! behind a release may be. An edge can delay then, and be seen doing it; it cannot alter, reorder or go back.
//!
//! [`SignedPublication::verify`] and [`Proof`] are pure. [`Trust`] holds the pinned keys. The monitor
//! (`freshness_monitor`) requests the statements.

mod proof;
mod publication;
mod trust;

pub use proof::Assessment;
pub(crate) use proof::{CurrentRelease, Proof, StatementError};
pub(crate) use publication::{ProofError, SignedPublication};
pub(crate) use trust::{Trust, read_keys};

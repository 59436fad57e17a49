//! Revisions: what is followed in a repository ([`Revision`]), and the commit that it resolves to ([`tip`](tip())).

mod ancestor;
mod followed;
mod reachability;
mod tip;

pub use ancestor::is_ancestor;
pub(crate) use followed::{DEFAULT_BRANCH_REF, OWN_REFS, follows};
pub use followed::{Revision, RevisionParseError, further_refs};
pub use reachability::{ReachabilityCache, ReachabilityError};
pub use tip::{RevisionError, Tip, committed_at, find_commit, has_commit, resolve, tip};

//! What the worker of a repository requests of its source, of every kind, and the results.

use std::sync::Arc;

use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;
use weir_tarball::{Limits, Selection};
use weir_upstream::{FetchProgress, RepositoryConfig};

use super::{Followed, ServiceFailure};
use crate::{Candidate, Service};

/// The result of resolving services: for each its revision and key, or why there is none.
pub type ResolvedServices = Vec<(Arc<Service>, Result<Candidate, ServiceFailure>)>;

/// The revisions of the repository's current and retained versions, or why they are unknown.
pub(crate) type RetainedRevisions = Result<Vec<(ServiceName, RevisionId)>, ServiceFailure>;

/// Parameters of a poll.
pub struct PollRequest<'a> {
    /// The repository.
    pub config: &'a RepositoryConfig,
    /// The services whose refs are needed.
    pub services: &'a [Arc<Service>],
    /// Updated as the poll proceeds.
    pub progress: &'a FetchProgress,
    /// Whether changes may be fetched now. Listing refs is short; a fetch may be long and needs a permit of its own.
    pub may_fetch: &'a dyn Fn() -> bool,
    /// Called with the reason when damaged content is set aside and everything is fetched again.
    pub on_mirror_replaced: &'a dyn Fn(&str),
}

/// The result of a poll that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollOutcome {
    /// No ref changed.
    Unchanged,
    /// Refs changed, and their content was fetched.
    Changed,
    /// Refs changed, and fetching needs a permit first.
    FetchPending,
}

/// Parameters of a listing.
pub struct ListRequest<'a> {
    /// What is listed.
    pub target: &'a ListTarget,
    /// Which of its files.
    pub selection: &'a Selection,
    /// The limits of a tarball.
    pub limits: &'a Limits,
}

/// What is listed.
pub enum ListTarget {
    /// What a service that follows this would publish.
    Followed(Followed),
    /// A revision that was listed before, even if no ref leads to it any more.
    At(RevisionId),
}

/// What is called like a revision in what is stored of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RevisionLookup {
    /// A tag of Git, at this revision.
    Tag(RevisionId),
    /// A commit.
    Commit,
    /// Nothing.
    Nothing,
    /// That cannot be told.
    Unknown,
}

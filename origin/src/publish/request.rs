//! What others ask of a publisher, and what they get.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;
use weir_protocol::commit_id::CommitId;
use weir_protocol::descriptor::Generation;
use weir_protocol::name::ServiceName;

use super::error::PublishError;
use crate::service::Service;
use crate::tarball::ContentKey;

/// A service at the commit its ref is at.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) service: Arc<Service>,
    pub(crate) commit: CommitId,
    /// The key of the content there.
    pub(crate) key: ContentKey,
}

/// Whether a candidate needs a build.
#[derive(Debug)]
pub(crate) enum Cached {
    /// It is published, now or since before; or it is pinned or withdrawn, and nothing is to be done.
    Settled,
    /// Its content is not known, or publishing what is known failed: the build says why.
    ToBuild,
    /// Whatever was built would not be published.
    Refused(PublishError),
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The digest is published already: nothing was written.
    Unchanged,
    /// The same publication has other representations, or another ref.
    Revised,
    /// A new generation.
    Published,
    /// The service is pinned: nothing was published.
    Pinned,
    /// The service was deleted or has another definition by now: nothing was published.
    Withdrawn,
}

/// What an operator wants of a service's versions.
#[derive(Debug, Clone)]
pub(crate) struct VersionChange {
    /// Only when the current generation is this one; `None`: whatever it is.
    pub(crate) expected: Option<Generation>,
    /// The operator's name, for the history.
    pub(crate) by: Option<String>,
    pub(crate) now: SystemTime,
}

/// A change of what operators defined in one repository: made whole, or not at all.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DefinitionChange {
    /// The repository's own document: another one, or none any more. `None`: it stays.
    pub(crate) repository: Option<Option<Value>>,
    /// Documents of services of the repository: another one, or none any more.
    pub(crate) services: Vec<(ServiceName, Option<Value>)>,
}

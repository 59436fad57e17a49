//! Requests to a publisher, and their results.

use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_rollout::State;

use super::error::PublishError;

/// The result of publishing a candidate from stored content.
#[derive(Debug)]
pub enum Cached {
    /// The candidate is published or waits for what is staged, or its service is pinned or withdrawn: there is nothing to do.
    UpToDate,
    /// The content is not stored, or publishing it failed; the build reports the error.
    NeedsBuild,
    /// A build could not be published either.
    Refused(PublishError),
}

/// The result of publishing a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The digest is published already; nothing was written.
    Unchanged,
    /// Other representations, or another ref, for the same publication.
    Revised,
    /// It has a new generation.
    Published,
    /// An operator has pinned the service; nothing was written.
    Pinned,
    /// Another version is staged, or this one was and was aborted: it waits.
    Waits,
    /// The service was deleted or redefined meanwhile; nothing was published.
    Withdrawn,
}

/// A request of an operator to change a service's versions.
#[derive(Debug, Clone)]
pub struct VersionChange {
    /// Applied only if the current generation is this one; `None`: always.
    pub expected: Option<Generation>,
    /// Who wants it, for the history.
    pub author: Author,
    /// When it was made.
    pub now: SystemTime,
}

/// A version that a plan stages, as it is stored.
#[derive(Debug, Clone)]
pub struct StagedByPlan {
    /// The repository of the service.
    pub repository: RepositoryName,
    /// The service.
    pub service: ServiceName,
    /// The digest of the version.
    pub digest: TarballDigest,
    /// Its generation.
    pub generation: Generation,
    /// Where its rollout stands.
    pub state: Arc<State>,
}

/// The operator of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// The operator's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why, in the operator's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Author {
    /// No operator: the origin itself, for this reason.
    pub fn origin(reason: &str) -> Self {
        Self { by: None, reason: Some(reason.to_owned()) }
    }
}

/// A change of operators' definitions in one repository, applied as a whole.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DefinitionChange {
    /// The repository's document: replaced, or removed by `Some(None)`. `None`: unchanged.
    pub repository: Option<Option<Value>>,
    /// Documents of the repository's services: replaced, or removed by `None`.
    pub services: Vec<(ServiceName, Option<Value>)>,
}

//! What a source resolves a service to.

use std::sync::Arc;

use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;
use weir_tarball::ContentKey;

use super::service::Service;

/// A service at the current revision of its ref.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) service: Arc<Service>,
    pub(crate) revision: RevisionId,
    /// The version of that revision, if its source names it by one.
    pub(crate) version: Option<SourceVersion>,
    /// What that revision is composed of. Empty: of the service's repository alone.
    pub(crate) parts: Vec<Part>,
    /// The key of its content at that revision.
    pub(crate) key: ContentKey,
}

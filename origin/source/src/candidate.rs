//! What a source resolves a service to.

use std::sync::Arc;

use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;
use weir_tarball::ContentKey;

use super::service::Service;

/// A service at the current revision of its ref.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The service.
    pub service: Arc<Service>,
    /// The revision that its ref leads to.
    pub revision: RevisionId,
    /// The version of that revision, if its source names it by one.
    pub version: Option<SourceVersion>,
    /// What that revision is composed of. Empty: of the service's repository alone.
    pub parts: Vec<Part>,
    /// The key of its content at that revision.
    pub key: ContentKey,
}

//! What a source resolves a service to.

use std::sync::Arc;
use std::time::Instant;

use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;
use weir_tarball::ContentKey;

use super::service::Service;
use super::standing::{Admission, Age, StepBack};

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
    /// What tells how old that revision is.
    pub age: Box<Age>,
    /// Why it is published although it is older than what the service followed before.
    pub stepped_back: Option<StepBack>,
}

impl Candidate {
    /// Whether it may be published without further polls. What was asked for counts once.
    pub fn admit(&self, now: Instant) -> Admission {
        self.service.admit(&self.revision, &self.parts, &self.age, now)
    }

    /// Records that the service follows it.
    pub fn followed(&self) {
        self.service.followed(&self.revision, &self.parts, &self.age);
    }
}

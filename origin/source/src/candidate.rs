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

    /// What of it is older, if it is: itself, or parts by their folders; and when the poll began that found it.
    pub fn behind(&self) -> Vec<(&str, &RevisionId, Option<Instant>)> {
        if self.parts.is_empty() {
            return vec![("", &self.revision, self.age.seen_at)];
        }
        let parts = self.parts.iter().zip(&self.age.parts).filter(|(_, age)| age.behind.is_some());
        parts.map(|(part, age)| (part.to.as_str(), &part.revision_id, age.seen_at)).collect()
    }

    /// The history has it, or these of its parts, before what the service follows.
    pub fn followed_before(&mut self, whole: bool, parts: &[bool]) {
        let reason = || "it was followed before".to_owned();
        let is_any = |ages: &[Age]| ages.iter().any(|age| age.behind.is_some());
        let is_any_known = is_any(&self.age.parts);
        let of_parts = self.service.parts.iter().zip(self.parts.iter().zip(&mut self.age.parts)).zip(parts);
        // What a service publishes was admitted there, also if an operator rolled it back.
        let of_sources: Vec<_> = of_parts.filter(|((part, _), _)| part.of_service().is_none()).collect();
        let is_any_known = is_any_known || of_sources.iter().any(|(_, is_past)| **is_past);
        for ((part, (at, age)), is_past) in of_sources {
            // If no part is known to be older by itself, all that have changed are.
            let has_moved = || part.last_revision().as_ref() != Some(&at.revision_id);
            if *is_past || (whole && !is_any_known && has_moved()) {
                age.behind.get_or_insert_with(reason);
            }
        }
        if (whole && self.parts.is_empty()) || is_any(&self.age.parts) {
            self.age.behind.get_or_insert_with(reason);
        }
    }

    /// Records that it waits until it is confirmed: what is published stays meanwhile, once polls have told that.
    pub fn held_back(&self) {
        if self.behind().iter().all(|(.., seen_at)| seen_at.is_some()) {
            self.service.held_back();
        }
    }

    /// Records that the service follows it.
    pub fn followed(&self) {
        self.service.set_tip(self.key);
        self.service.followed(&self.revision, &self.parts, &self.age);
    }
}

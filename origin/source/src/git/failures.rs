//! Converts errors of Git into failures, and marks the mirror as suspect where damage may be the cause.

use std::sync::Arc;
use std::time::Instant;

use weir_git::commit_policy::VerifyError;
use weir_git::mirror::MirrorError;
use weir_git::revision::{Revision, RevisionError, Tip};
use weir_protocol::commit_id::CommitId;
use weir_protocol::revision_id::RevisionId;
use weir_tarball::TarballError;

use super::GitSource;
use crate::{Followed, LeftOutRef, PollFailure, RetryPolicy, Service, ServiceFailure};

impl GitSource {
    /// Converts a tarball error. If an object could not be read, the mirror is checked for it.
    pub(crate) fn tarball_failure(&self, step: &'static str, error: &TarballError) -> ServiceFailure {
        // The mirror may be repaired and the disk may get space; other errors are in the commit or the configuration.
        let passing = match error {
            TarballError::Object { id, .. } => {
                self.mirror.check_object(id);
                true
            }
            TarballError::Malformed { id, .. } => self.mirror.check_object(id),
            TarballError::Lfs { .. } | TarballError::Write(_) | TarballError::Interrupted => true,
            _ => false,
        };
        // The filters are wrong, not the build.
        let step = if matches!(error, TarballError::Empty) { "select" } else { step };
        let retry = if passing { RetryPolicy::NextPoll } else { RetryPolicy::Never };
        ServiceFailure { retry, ..ServiceFailure::transient(step, error.to_string()) }
    }

    /// The failure of a service. A missing ref may be one that was left out.
    pub(super) fn resolve_failure(&self, error: &RevisionError, service: &Arc<Service>) -> ServiceFailure {
        use RevisionError::{NoDefaultBranch, NoVersion, RefMissing};
        let is_missing = matches!(error, RefMissing(_) | NoVersion(_) | NoDefaultBranch);
        match self.left_out(std::slice::from_ref(service)).into_iter().find(|each| is_missing && each.is_followed) {
            Some(LeftOutRef { failure, .. }) => ServiceFailure::transient("resolve", failure.reason),
            None => self.revision_failure(error),
        }
    }

    /// The commit of a revision of this repository.
    pub(super) fn commit_of(revision: &RevisionId) -> Result<CommitId, ServiceFailure> {
        let reason = || format!("`{revision}` is not a commit of a Git repository");
        revision.commit().ok_or_else(|| ServiceFailure::transient("resolve", reason()))
    }

    /// What is followed, if it is in a Git repository.
    pub(super) fn revision_of(followed: &Followed) -> Result<&Revision, ServiceFailure> {
        let reason = || format!("`{followed}` is not in a Git repository");
        followed.revision().ok_or_else(|| ServiceFailure::transient("resolve", reason()))
    }

    pub(super) fn revision_failure(&self, error: &RevisionError) -> ServiceFailure {
        if matches!(error, RevisionError::Unreadable { .. }) {
            self.mirror.mark_suspect(Instant::now());
        }
        ServiceFailure::transient("resolve", error.to_string())
    }

    /// The commit of a service must not be published.
    pub(super) fn verify_failure(&self, service: &Service, tip: &Tip, error: &VerifyError) -> ServiceFailure {
        if let VerifyError::Unreadable { object, .. } = error {
            self.mirror.check_object(&object.to_string());
        }
        let published = service.published().is_some_and(|published| published == RevisionId::from(&tip.commit));
        ServiceFailure::unverified(error, published)
    }
}

impl From<MirrorError> for ServiceFailure {
    fn from(error: MirrorError) -> Self {
        Self::transient("resolve", error.to_string())
    }
}

impl From<MirrorError> for PollFailure {
    fn from(error: MirrorError) -> Self {
        Self::new(error.step(), error.kind(), &error, error.is_timeout(), error.retry_after())
    }
}

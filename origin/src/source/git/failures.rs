//! What failures of Git come down to; a mirror that gave trouble is remembered, and looked at.

use std::time::Instant;

use super::GitSource;
use super::commit_policy::VerifyError;
use super::mirror::MirrorError;
use super::revision::{RevisionError, Tip};
use crate::service::Service;
use crate::source::{PollFailure, RetryPolicy, ServiceFailure};
use crate::tarball::TarballError;

impl GitSource {
    /// What a tarball that cannot be made comes down to; an object that gave trouble is looked at, because the mirror may be
    /// damaged.
    pub(super) fn tarball_failure(&self, step: &'static str, error: &TarballError) -> ServiceFailure {
        // The mirror may be mended and the disk may get room; everything else is in the commit or in the configuration.
        let passing = match error {
            TarballError::Object { id, .. } => {
                self.mirror.lacks(id);
                true
            }
            TarballError::Malformed { id, .. } => self.mirror.lacks(id),
            TarballError::Lfs { .. } | TarballError::Write(_) | TarballError::Interrupted => true,
            _ => false,
        };
        let retry = if passing { RetryPolicy::NextPoll } else { RetryPolicy::Never };
        ServiceFailure { retry, ..ServiceFailure::transient(step, error.to_string()) }
    }

    pub(super) fn revision_failure(&self, error: &RevisionError) -> ServiceFailure {
        if matches!(error, RevisionError::Unreadable { .. }) {
            self.mirror.trouble(Instant::now());
        }
        ServiceFailure::transient("resolve", error.to_string())
    }

    /// Why what a service is at may not be published. What is published stays, also when it is that very commit: it came
    /// before the policy, or its key has gone since.
    pub(super) fn verify_failure(&self, service: &Service, tip: &Tip, error: &VerifyError) -> ServiceFailure {
        if let VerifyError::Unreadable { object, .. } = error {
            self.mirror.lacks(&object.to_string());
        }
        let published = service.current().is_some_and(|current| current.publication().commit == tip.commit);
        let stays = if published { " (it was published before, and stays published)" } else { "" };
        ServiceFailure::transient("verify", format!("{error}{stays}"))
    }
}

impl From<MirrorError> for ServiceFailure {
    fn from(error: MirrorError) -> Self {
        Self::transient("resolve", error.to_string())
    }
}

impl From<MirrorError> for PollFailure {
    fn from(error: MirrorError) -> Self {
        Self {
            step: error.step(),
            reason: error.to_string(),
            kind: error.kind(),
            timeout: error.is_timeout(),
            retry_after: error.retry_after(),
            partial_success: error.all_but_a_ref(),
        }
    }
}

//! Staging: a version for some agents first, while the one in force stays for everybody else.

use std::sync::Arc;

use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::staged::Audience;
use weir_source::{Candidate, Service};
use weir_tarball::Built;

use super::decide::draft::{BuiltContent, Draft};
use super::decide::staging::StageSource;
use super::error::{StageError, VersionChangeError};
use super::publisher::Publisher;
use super::request::VersionChange;
use super::write::attempt::Attempt;
use super::write::pending_change::PendingChange;

impl Publisher {
    /// Stages a retained version, in place of what is staged, and returns its generation. The caller must check that its
    /// objects can be read.
    ///
    /// # Errors
    /// Nothing is in force, the version is, or it is not retained; or both descriptors together are too large.
    pub async fn stage(
        &self,
        service: &Arc<Service>,
        digest: &TarballDigest,
        audience: Audience,
        change: VersionChange,
    ) -> Result<Generation, StageError> {
        let (owned, source) = (service.clone(), StageSource::Retained(*digest));
        let stage = move |draft: &mut Draft<'_>| draft.stage(&owned, source, audience, &change);
        self.repositories.handle(&service.repository).change(vec![service.name.clone()], stage).await
    }

    /// Stages a build whose frames were stored through `attempt`, in place of what is staged, and returns its generation.
    ///
    /// # Errors
    /// As for [`Publisher::stage`].
    pub async fn stage_built(
        &self,
        candidate: &Candidate,
        built: Built,
        attempt: Attempt,
        audience: Audience,
        change: VersionChange,
    ) -> Result<Generation, StageError> {
        let service = candidate.service.clone();
        let (protection, time) = attempt.finish().await?;
        let (content, recipe) = self.store_built(&service, built, &protection).await?;
        let built = BuiltContent { candidate: candidate.clone(), content, recipe: Some(recipe) };
        let (owned, source) = (service.clone(), StageSource::Built(Box::new(built)));
        let (mut pending_change, answer) =
            PendingChange::new(vec![service.name.clone()], move |draft| draft.stage(&owned, source, audience, &change));
        pending_change.attempt = Some((protection, time));
        self.repositories.handle(&service.repository).send(pending_change, answer).await
    }

    /// Publishes for everybody what is staged, or what was staged and aborted, and returns its generation. If it is not the tip
    /// of the service's ref, the service is pinned to it.
    ///
    /// # Errors
    /// Nothing is staged, it is no longer retained, the current generation is not the expected one, it was aborted and none is
    /// expected, or the change cannot be stored.
    pub async fn promote(&self, service: &Arc<Service>, change: VersionChange) -> Result<Generation, StageError> {
        let owned = service.clone();
        let promote = move |draft: &mut Draft<'_>| draft.promote(&owned, &change);
        self.repositories.handle(&service.repository).change(vec![service.name.clone()], promote).await
    }

    /// Aborts what is staged: the version in force is published again, above it. Returns false if nothing was staged.
    ///
    /// # Errors
    /// The current generation is not the expected one, or the change cannot be stored.
    pub async fn abort(&self, service: &Arc<Service>, change: VersionChange) -> Result<bool, VersionChangeError> {
        let owned = service.clone();
        let abort = move |draft: &mut Draft<'_>| draft.abort(&owned, &change);
        self.repositories.handle(&service.repository).change(vec![service.name.clone()], abort).await
    }
}

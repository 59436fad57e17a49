//! Operations of operators on staged versions: stage, promote and abort.

use std::sync::Arc;

use weir_protocol::descriptor::Generation;
use weir_protocol::name::ServiceName;
use weir_protocol::staged::Audience;
use weir_publish::{Rollout, StageError};
use weir_rollout::Action;
use weir_source::{Service, ServiceConfig};

use crate::reconcile::BuildToStageError;
use crate::versions::{ChangeRequest, VersionError, Versions, acquire};

impl Versions {
    /// Stages a version for some agents, and returns its generation: a retained one, or a commit, branch, tag or version of
    /// its source, which is checked as what the service follows, and built.
    ///
    /// # Errors
    /// There is no such service, the revision is not found or cannot be built, or it cannot be staged.
    pub async fn stage(
        &self,
        name: &ServiceName,
        revision: &str,
        audience: Audience,
        request: ChangeRequest,
    ) -> Result<Generation, VersionError> {
        let service = self.service(name)?;
        let permit = acquire(&self.stagings, "stagings").await?;
        let staged = match self.resolve(name, revision).await {
            Ok(retained) => {
                self.readable(&service, &retained.digest).await?;
                // Looked up again, because it may have been changed meanwhile.
                let service = self.service(name)?;
                let staged = self.publisher.stage(&service, &retained.digest, audience, request.change()).await;
                staged.map_err(|error| not_staged(name, error))
            }
            Err(VersionError::NotRetained(..)) => self.build_and_stage(&service, revision, audience, request).await,
            Err(error) => Err(error),
        };
        drop(permit);
        self.resolve_again(&service);
        staged
    }

    async fn build_and_stage(
        &self,
        service: &Arc<Service>,
        revision: &str,
        audience: Audience,
        request: ChangeRequest,
    ) -> Result<Generation, VersionError> {
        let name = &service.name;
        let not_stageable = |reason: String| VersionError::NotStageable { service: name.clone(), reason };
        // Before a build that would be in vain.
        if service.current().is_none() {
            return Err(not_staged(name, StageError::NothingInForce(name.clone())));
        }
        if service.is_pinned() {
            return Err(not_staged(name, StageError::Pinned(name.clone())));
        }
        let not_retained = || VersionError::NotRetained(name.clone(), revision.to_owned());
        let definitions = &self.catalog.snapshot().definitions;
        let document = definitions.services.get(name).and_then(|defined| defined.document.valid());
        let document = document.filter(|_| service.parts.is_empty()).ok_or_else(not_retained)?;
        let mut document = ServiceConfig::clone(document);
        document.followed_ref = revision.parse().map_err(|_| not_retained())?;
        let probe = Service::new(&document, |repository| definitions.kind_of(repository), None);
        let probe = probe.map_err(|_| not_retained())?.with_oci(service.oci.clone());
        let worker = self.catalog.repository(&service.repository).ok_or_else(not_retained)?;
        worker.stage(service, probe, audience, request.change()).await.map_err(|error| match error {
            BuildToStageError::Failed { step, reason } => not_stageable(format!("`{revision}`, step {step}: {reason}")),
            BuildToStageError::Stage(error) => not_staged(name, error),
        })
    }

    /// Publishes for everybody what is staged, or what was staged and aborted. If its ref leads elsewhere, the service is
    /// pinned to it. Returns its generation.
    ///
    /// # Errors
    /// There is no such service, nothing is staged, or it is no longer retained.
    pub async fn promote(&self, name: &ServiceName, request: ChangeRequest) -> Result<Generation, VersionError> {
        let service = self.service(name)?;
        let promoted = self.publisher.promote(&service, request.change()).await;
        self.resolve_again(&service);
        promoted.map_err(|error| not_staged(name, error))
    }

    /// Aborts what is staged: the version in force is published again, above it.
    ///
    /// # Errors
    /// There is no such service, or nothing is staged.
    pub async fn abort(&self, name: &ServiceName, request: ChangeRequest) -> Result<(), VersionError> {
        let service = self.service(name)?;
        let was_staged = self.publisher.abort(&service, request.change()).await;
        self.resolve_again(&service);
        if was_staged? { Ok(()) } else { Err(VersionError::NothingStaged(name.clone())) }
    }

    /// Pauses, resumes or approves the rollout that stages a service by a plan.
    ///
    /// # Errors
    /// There is no such service or rollout, or the action has no sense now.
    pub async fn act(&self, name: &ServiceName, action: Action, request: ChangeRequest) -> Result<(), VersionError> {
        let service = self.service(name)?;
        let done = self.publisher.act(&service, action, request.change()).await;
        done.map_err(|error| not_staged(name, error))
    }

    /// What is staged, or was and was aborted. `None`: nothing.
    ///
    /// # Errors
    /// There is no such service, or the state cannot be read.
    pub async fn rollout(&self, name: &ServiceName) -> Result<Option<Rollout>, VersionError> {
        let service = self.service(name)?;
        Ok(self.publisher.queries.rollout(&service.repository, name).await?)
    }

    /// What a tip does depends on what is staged.
    pub(crate) fn resolve_again(&self, service: &Service) {
        if let Some(worker) = self.catalog.repository(&service.repository) {
            worker.resolve_all();
        }
    }
}

fn not_staged(service: &ServiceName, error: StageError) -> VersionError {
    match error {
        StageError::Change(error) => error.into(),
        StageError::NothingStaged(service) => VersionError::NothingStaged(service),
        error => VersionError::NotStageable { service: service.clone(), reason: error.to_string() },
    }
}

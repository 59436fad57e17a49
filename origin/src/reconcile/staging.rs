//! Builds what no service follows yet, to stage it.

use std::sync::Arc;

use weir_protocol::descriptor::Generation;
use weir_protocol::staged::Audience;
use weir_publish::{PublishError, StageError, VersionChange, VersionChangeError};
use weir_source::{Service, ServiceFailure};

use super::handle::Handle;
use super::lfs::{LfsPolicy, NeededObjects};
use super::repository::Repository;

/// Why nothing was built and staged.
#[derive(Debug)]
pub(crate) enum BuildToStageError {
    /// A step failed, as of a service that follows it.
    Failed { step: &'static str, reason: String },
    /// It cannot be staged.
    Stage(StageError),
}

impl Handle {
    /// Stages what `probe` follows: the same service with another ref. The commit is checked as those that it follows.
    pub(crate) async fn stage(
        &self,
        service: &Arc<Service>,
        probe: Service,
        audience: Audience,
        change: VersionChange,
    ) -> Result<Generation, BuildToStageError> {
        let Repository { threads, context, .. } = &*self.repository;
        let staged = threads.track(self.build_and_stage(service, probe, audience, change));
        let stopped = || VersionChangeError::Withdrawn(service.name.clone());
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(BuildToStageError::Stage(stopped().into())),
            staged = staged => staged.map_err(|failure| match failure {
                BuildToStageError::Failed { step, reason } => {
                    BuildToStageError::Failed { step, reason: context.data_dir.redact(&reason) }
                }
                failure => failure,
            }),
        }
    }

    async fn build_and_stage(
        &self,
        service: &Arc<Service>,
        probe: Service,
        audience: Audience,
        change: VersionChange,
    ) -> Result<Generation, BuildToStageError> {
        let (pipeline, publisher) = (&self.pipeline, &self.repository.context.publisher);
        let mut resolved = pipeline.resolve(vec![Arc::new(probe)]).await?;
        let Some((_, found)) = resolved.pop() else {
            return Err(ServiceFailure::transient("resolve", "nothing was resolved".to_owned()).into());
        };
        let mut candidate = found?;
        candidate.service = service.clone();
        let policy = LfsPolicy { may_fetch: true, progress: None, needed_objects: NeededObjects::default() };
        pipeline.lfs.fetch(service, &candidate.revision, &policy).await?;
        let mut reuse = true;
        loop {
            let (built, attempt) = pipeline.build(service, (&candidate.revision, &candidate.parts), reuse).await?;
            let staged = publisher.stage_built(&candidate, built, attempt, audience.clone(), change.clone()).await;
            match staged {
                Err(StageError::Change(VersionChangeError::Publish(error @ PublishError::LostFrame(_)))) if reuse => {
                    tracing::warn!(service = %service.name, %error, "all frames are built again");
                    reuse = false;
                }
                staged => return staged.map_err(BuildToStageError::Stage),
            }
        }
    }
}

impl From<ServiceFailure> for BuildToStageError {
    fn from(failure: ServiceFailure) -> Self {
        Self::Failed { step: failure.step, reason: failure.reason }
    }
}

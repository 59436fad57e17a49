//! Rollouts by plans: what they stage now, and their steps.

use std::sync::Arc;

use weir_rollout::{Action, Step};
use weir_source::Service;

use super::decide::draft::Draft;
use super::error::StageError;
use super::publisher::Publisher;
use super::request::{StagedByPlan, VersionChange};

impl Publisher {
    /// What plans stage in all repositories that this origin knows.
    pub fn staged_by_plans(&self) -> Vec<StagedByPlan> {
        let mut all = Vec::new();
        for repository in self.repositories.all() {
            let known = repository.known();
            all.extend(known.services.iter().filter_map(|(service, row)| {
                let (repository, service) = (repository.name.clone(), service.clone());
                let staged = row.staged.as_ref().filter(|_| row.holds())?;
                let (digest, generation) = (staged.digest, staged.generation);
                Some(StagedByPlan { repository, service, digest, generation, state: staged.rollout.clone()? })
            }));
        }
        all
    }

    /// Does a step of a rollout. Returns false if it does not stand as it was seen, and nothing was done.
    ///
    /// # Errors
    /// The change cannot be stored.
    pub async fn advance(
        &self,
        service: &Arc<Service>,
        seen: StagedByPlan,
        step: Step,
        change: VersionChange,
    ) -> Result<bool, StageError> {
        let owned = service.clone();
        let advance = move |draft: &mut Draft<'_>| draft.advance(&owned, &seen, step, &change);
        self.repositories.handle(&service.repository).change(vec![service.name.clone()], advance).await
    }

    /// An operator pauses, resumes or approves a rollout.
    ///
    /// # Errors
    /// No plan stages the service, the action has no sense now, or the change cannot be stored.
    pub async fn act(&self, service: &Arc<Service>, action: Action, change: VersionChange) -> Result<(), StageError> {
        let owned = service.clone();
        let act = move |draft: &mut Draft<'_>| draft.act(&owned, action.clone(), &change).map(|()| ((), Vec::new()));
        self.repositories.handle(&service.repository).change(vec![service.name.clone()], act).await
    }
}

//! Carries out edits: makes them durable, then applies them to the catalog.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use weir_protocol::name::{RepositoryName, ServiceName};

use super::Snapshot;
use super::definitions::Documents;
use super::edit::{Edit, Outcome, Precondition, Refusal, Write};
use super::owner::Owner;
use super::reconcile::{Cause, ChangedNames};
use super::storing::Plan;
use crate::publish::{PublishError, Started};
use crate::reconcile::Terminated;

/// Requests changes of the catalog. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Editor {
    pub(super) requests: mpsc::Sender<EditRequest>,
}

/// Why an edit was not made.
#[derive(Debug)]
pub(crate) enum EditError {
    Refused(Refusal),
    /// Another origin owns the repository, or none does now.
    NotOwner(RepositoryName),
    /// The queue is full, or the origin is stopping.
    Busy,
    /// The edit could not be made durable, and may still have been committed. The text is the cause.
    Failed(String),
}

pub(crate) struct AppliedEdit {
    pub(crate) outcome: Outcome,
    /// The catalog right after the edit; it may have changed since.
    pub(crate) snapshot: Arc<Snapshot>,
}

/// A request to the owner.
pub(super) enum EditRequest {
    Edit(Edit, Precondition, oneshot::Sender<Result<AppliedEdit, EditError>>),
    /// The current documents of the configuration file.
    Reload(Documents, oneshot::Sender<()>),
    /// Show what was read from the store before.
    ApplyReloads(oneshot::Sender<()>),
    /// The publisher has taken the repository.
    Take(RepositoryName, oneshot::Sender<()>),
    Release(RepositoryName, oneshot::Sender<Terminated>),
    Align(RepositoryName, oneshot::Sender<Result<(), PublishError>>),
}

impl Editor {
    /// Makes an edit completely or not at all, even if the caller gives up.
    pub(crate) async fn edit(&self, edit: Edit, precondition: Precondition) -> Result<AppliedEdit, EditError> {
        let (done, outcome) = oneshot::channel();
        self.requests.try_send(EditRequest::Edit(edit, precondition, done)).map_err(|_| EditError::Busy)?;
        outcome.await.unwrap_or(Err(EditError::Busy))
    }

    /// Applies the documents of the configuration file. Returns false if the origin is stopping.
    pub(crate) async fn reload(&self, file: Documents) -> bool {
        let (done, taken) = oneshot::channel();
        self.requests.send(EditRequest::Reload(file, done)).await.is_ok() && taken.await.is_ok()
    }

    /// Waits until the catalog shows what the publisher has reloaded. Returns false if the origin is stopping.
    pub(crate) async fn apply_reloads(&self) -> bool {
        let (done, applied) = oneshot::channel();
        self.requests.send(EditRequest::ApplyReloads(done)).await.is_ok() && applied.await.is_ok()
    }
}

impl Owner {
    pub(super) async fn edit(&mut self, edit: &Edit, precondition: &Precondition) -> Result<Outcome, EditError> {
        self.resolve_unknown_outcome().await?;
        self.clean_up().await;
        let before = self.catalog.snapshot();
        if let Some(repository) = edit.repository(&before.definitions).filter(|name| !before.owns(name)) {
            return Err(EditError::NotOwner(repository.clone()));
        }
        let decided = edit.decide(precondition, &before.definitions, &self.limits).map_err(EditError::Refused)?;
        if decided.writes.is_empty() {
            return Ok(decided.outcome);
        }
        let comes_back = |write: &Write| {
            let Write::DeleteService(name) = write else { return false };
            self.cleanups.iter().any(|plan| plan.removes(name))
        };
        if decided.writes.iter().any(comes_back) {
            let reason =
                "the service was moved, but its old repository still stores it: a restart would restore it there";
            return Err(EditError::Failed(reason.to_owned()));
        }
        let plan = Plan::of(&decided.writes, &self.api);
        self.commit(plan, decided.writes, false).await?;
        Ok(decided.outcome)
    }

    /// Repeats an edit with an unknown outcome until its outcome is known.
    pub(super) async fn resolve_unknown_outcome(&mut self) -> Result<(), EditError> {
        let Some((plan, writes)) = self.unknown_outcome.take() else { return Ok(()) };
        self.commit(plan, writes, true).await
    }

    /// Makes an edit durable, then applies it. An edit that certainly failed is dropped.
    async fn commit(&mut self, plan: Plan, writes: Vec<Write>, may_be_committed: bool) -> Result<(), EditError> {
        if let Some((repository, change)) = &plan.change
            && let Err(error) = self.context.publisher.define(repository, change.clone()).await
        {
            tracing::error!(%repository, %error, "an operator's edit failed");
            let reason = error.to_string();
            // A suspended repository has resolved the outcome, and will be reloaded. So will one that is owned elsewhere.
            let is_resolved =
                !may_be_committed || matches!(error, PublishError::Suspended { .. } | PublishError::NotOwner(_));
            if matches!(error, PublishError::UnknownOutcome(_)) || !is_resolved {
                self.unknown_outcome = Some((plan, writes));
            }
            return Err(match error {
                PublishError::NotOwner(repository) => EditError::NotOwner(repository),
                _ => EditError::Failed(reason),
            });
        }
        let changed_names = ChangedNames::by(&writes);
        writes.iter().for_each(|write| self.api.apply(write));
        self.reconcile(changed_names, Started::default(), Cause::Edit).await;
        if plan.cleanup.is_some() {
            self.cleanups.push(plan);
        }
        Ok(())
    }

    /// Removes moved services from their old repositories. Failures are retried; until then the newer document
    /// counts.
    pub(super) async fn clean_up(&mut self) {
        for plan in std::mem::take(&mut self.cleanups) {
            let Some((repository, change)) = plan.cleanup.clone() else { continue };
            // The service may have moved back.
            let is_back = |name: &ServiceName| {
                self.api.services.get(name).is_some_and(|document| *document.repository() == repository)
            };
            if change.services.iter().any(|(name, _)| is_back(name)) {
                continue;
            }
            // Its owner finds the newer document, and removes the older one.
            if !self.catalog.snapshot().owns(&repository) {
                continue;
            }
            if let Err(error) = self.context.publisher.define(&repository, change).await {
                tracing::warn!(%repository, %error, "a moved service is still stored in its old repository; the origin tries again");
                self.cleanups.push(plan);
            }
        }
    }
}

//! How an edit is asked for, made durable, and carried out.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use weir_protocol::name::ServiceName;

use super::Snapshot;
use super::definitions::Documents;
use super::edit::{Edit, Outcome, Precondition, Refusal, Write};
use super::owner::Owner;
use super::reconcile::ChangedNames;
use super::storing::Plan;
use crate::publish::{PublishError, Started};

/// Asks for changes of the catalogue. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Editor {
    pub(super) requests: mpsc::Sender<EditRequest>,
}

/// Why an edit was not made.
#[derive(Debug)]
pub(crate) enum EditError {
    Refused(Refusal),
    /// Too many changes wait already, or the origin ends.
    Busy,
    /// It could not be made durable, and may have been committed all the same: why.
    Failed(String),
}

/// An edit that was made.
pub(crate) struct AppliedEdit {
    pub(crate) outcome: Outcome,
    /// The catalogue as the edit left it: others may have changed it since.
    pub(crate) left: Arc<Snapshot>,
}

/// What the owner is asked.
pub(super) enum EditRequest {
    Edit(Edit, Precondition, oneshot::Sender<Result<AppliedEdit, EditError>>),
    /// What the configuration file says now.
    Reload(Documents, oneshot::Sender<()>),
}

impl Editor {
    /// Makes a change. It is made whole, or not at all, also when nobody waits for it any more.
    pub(crate) async fn edit(&self, edit: Edit, precondition: Precondition) -> Result<AppliedEdit, EditError> {
        let (done, outcome) = oneshot::channel();
        self.requests.try_send(EditRequest::Edit(edit, precondition, done)).map_err(|_| EditError::Busy)?;
        outcome.await.unwrap_or(Err(EditError::Busy))
    }

    /// Takes over what the configuration file says. False when the origin ends.
    pub(crate) async fn reload(&self, file: Documents) -> bool {
        let (done, taken) = oneshot::channel();
        self.requests.send(EditRequest::Reload(file, done)).await.is_ok() && taken.await.is_ok()
    }
}

impl Owner {
    pub(super) async fn edit(&mut self, edit: &Edit, precondition: &Precondition) -> Result<Outcome, EditError> {
        self.settle().await?;
        self.clean_up().await;
        let before = self.catalog.snapshot();
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
                "the service was moved, and is stored still where it was: a restart would bring it back from there";
            return Err(EditError::Failed(reason.to_owned()));
        }
        let plan = Plan::of(&decided.writes, &self.api);
        self.make(plan, decided.writes, false).await?;
        Ok(decided.outcome)
    }

    /// Makes an edit durable whose outcome is not known.
    pub(super) async fn settle(&mut self) -> Result<(), EditError> {
        let Some((plan, writes)) = self.unknown_outcome.take() else { return Ok(()) };
        self.make(plan, writes, true).await
    }

    /// Makes an edit durable, and carries it out. One that was certainly not made is forgotten.
    async fn make(&mut self, plan: Plan, writes: Vec<Write>, may_be_made: bool) -> Result<(), EditError> {
        if let Some((repository, change)) = &plan.change
            && let Err(error) = self.context.publisher.define(repository, change.clone()).await
        {
            tracing::error!(%repository, %error, "an operator's edit failed");
            let reason = error.to_string();
            // A suspended repository has settled it, and is read again.
            let is_settled = !may_be_made || matches!(error, PublishError::Suspended { .. });
            if matches!(error, PublishError::UnknownOutcome(_)) || !is_settled {
                self.unknown_outcome = Some((plan, writes));
            }
            return Err(EditError::Failed(reason));
        }
        let changed_names = ChangedNames::by(&writes);
        writes.iter().for_each(|write| self.api.apply(write));
        self.reconcile(changed_names, Started::default()).await;
        if plan.cleanup.is_some() {
            self.cleanups.push(plan);
        }
        Ok(())
    }

    /// Takes services that moved out of where they were. What fails is tried again; until then the newer document holds.
    pub(super) async fn clean_up(&mut self) {
        for plan in std::mem::take(&mut self.cleanups) {
            let Some((repository, change)) = plan.cleanup.clone() else { continue };
            // It may have moved back.
            let is_back = |name: &ServiceName| {
                self.api.services.get(name).is_some_and(|document| *document.repository() == repository)
            };
            if change.services.iter().any(|(name, _)| is_back(name)) {
                continue;
            }
            if let Err(error) = self.context.publisher.define(&repository, change).await {
                tracing::warn!(%repository, %error, "a service that moved is stored twice; it is tried again");
                self.cleanups.push(plan);
            }
        }
    }
}

//! Carries out edits: makes them durable, then applies them to the catalog.
//!
//! The writes run beside the owner, one at a time for each repository and each service. So a store that does not answer for
//! one record delays nothing else.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::sleep;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::{PublishError, Retired, Started};
use weir_runtime::shutdown::Drain;

use super::definitions::{Documents, Write};
use super::edit::{Decision, Edit, Outcome, Precondition, Refusal};
use super::reconcile::{Cause, ChangedNames, Reconciler, Unsettled};
use super::storing::Plan;
use super::{Snapshot, ownership};
use crate::config::LimitsConfig;
use crate::reconcile::Terminated;

/// The interval for retrying a write with an unknown outcome.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Requests changes of the catalog. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Editor {
    pub(super) requests: mpsc::Sender<EditRequest>,
    pub(super) edits: Arc<Semaphore>,
}

/// Why an edit was not made.
#[derive(Debug, Clone)]
pub(crate) enum EditError {
    Refused(Refusal),
    /// Another origin owns the repository, or none does now.
    NotOwner(RepositoryName),
    /// Too many edits are in progress, or the origin is stopping.
    Busy,
    /// The edit could not be made durable, and may still have been committed. The text is the cause.
    Failed(String),
}

pub(crate) struct AppliedEdit {
    pub(crate) outcome: Outcome,
    /// The catalog right after the edit; it may have changed since.
    pub(crate) snapshot: Arc<Snapshot>,
}

/// Who waits for an edit.
pub(super) struct Caller {
    done: oneshot::Sender<Result<AppliedEdit, EditError>>,
    _permit: OwnedSemaphorePermit,
}

/// A request to the owner.
pub(super) enum EditRequest {
    Edit(Edit, Precondition, Caller),
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
        let permit = self.edits.clone().try_acquire_owned().map_err(|_| EditError::Busy)?;
        let request = EditRequest::Edit(edit, precondition, Caller { done, _permit: permit });
        self.requests.send(request).await.map_err(|_| EditError::Busy)?;
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

    /// Starts the worker of a repository that the publisher has taken, and announces its services, current and deleted.
    /// Returns false if the origin is stopping.
    pub(crate) async fn take(&self, repository: &RepositoryName) -> bool {
        let (done, taken) = oneshot::channel();
        self.requests.send(EditRequest::Take(repository.clone(), done)).await.is_ok() && taken.await.is_ok()
    }

    /// Stops the worker of a repository, withdraws the repository from the publisher, and announces that it is released.
    /// Its mirror and its services stay. When the worker has terminated, `Ownership::release` must follow.
    pub(crate) async fn release(&self, repository: &RepositoryName) -> Option<Terminated> {
        let (done, released) = oneshot::channel();
        self.requests.send(EditRequest::Release(repository.clone(), done)).await.ok()?;
        released.await.ok()
    }

    /// Brings an owned repository in line with the definitions and keys of now: see `Ownership::align`.
    pub(crate) async fn align(&self, repository: &RepositoryName) -> Result<(), PublishError> {
        let (done, aligned) = oneshot::channel();
        let sent = self.requests.send(EditRequest::Align(repository.clone(), done)).await;
        sent.map_err(|_| PublishError::ShuttingDown)?;
        aligned.await.unwrap_or(Err(PublishError::ShuttingDown))
    }
}

/// What is being written to the record of a repository.
struct Writing {
    /// The services that it changes.
    services: Vec<ServiceName>,
    /// Somebody waits for the outcome.
    is_awaited: bool,
    /// What comes after it.
    waiting: Vec<EditRequest>,
}

/// An edit that is being made.
pub(super) struct PendingEdit {
    kind: &'static str,
    repository: RepositoryName,
    plan: Plan,
    writes: Vec<Write>,
    outcome: Outcome,
    /// `None`: the outcome of the first attempt is unknown, and was answered.
    caller: Option<Caller>,
}

/// The outcome of a write.
pub(super) enum Written {
    Edit(Box<PendingEdit>, Result<(), PublishError>),
    /// The services that an edit has deleted are retired, and those that it has replaced are settled.
    Retired(Box<PendingEdit>, Vec<Retired>, Unsettled),
    /// The same of other changes.
    Settled(Unsettled),
    CleanUp(RepositoryName, Plan, Result<(), PublishError>),
    Align(RepositoryName, Result<Started, PublishError>, oneshot::Sender<Result<(), PublishError>>),
}

/// The edits and other writes in progress.
pub(super) struct Edits {
    limits: LimitsConfig,
    /// The records that are being written.
    writing: BTreeMap<RepositoryName, Writing>,
    /// Receives the outcomes.
    written: mpsc::Sender<Written>,
    /// Requests that have waited for one.
    pub(super) again: VecDeque<EditRequest>,
    /// Writes that remain after services have moved.
    pub(super) cleanups: Vec<Plan>,
    drain: Drain,
}

impl Edits {
    pub(super) fn new(limits: LimitsConfig, written: mpsc::Sender<Written>, cleanups: Vec<Plan>, drain: Drain) -> Self {
        Self { limits, writing: BTreeMap::new(), written, again: VecDeque::new(), cleanups, drain }
    }

    /// Whether somebody waits for the outcome of a write.
    pub(super) fn is_awaited(&self) -> bool {
        self.writing.values().any(|writing| writing.is_awaited)
    }

    pub(super) fn edit(&mut self, at: &Reconciler, edit: Edit, precondition: Precondition, caller: Caller) {
        let before = at.catalog.snapshot();
        let repository = edit.repository(&before.definitions).cloned();
        if let Some(first) = self.writing(repository.as_ref(), edit.service().as_slice()) {
            return first.waiting.push(EditRequest::Edit(edit, precondition, caller));
        }
        let decided = match repository.filter(|name| !before.owns(name)) {
            Some(repository) => Err(EditError::NotOwner(repository)),
            None => self.decide(at, &edit, &precondition, &before),
        };
        let Decision { writes, outcome } = match decided {
            Ok(decision) => decision,
            Err(error) => return answer(at, edit.into_str(), Err(error), caller),
        };
        let plan = Plan::of(&writes, &at.api);
        let Some(repository) = plan.change.as_ref().map(|(repository, _)| repository.clone()) else {
            return answer(at, edit.into_str(), Ok(outcome), caller);
        };
        if let Some(first) = self.writing(None, &services(&writes)) {
            return first.waiting.push(EditRequest::Edit(edit, precondition, caller));
        }
        let (kind, caller) = (edit.into_str(), Some(caller));
        self.write(at, Box::new(PendingEdit { kind, repository, plan, writes, outcome, caller }), Duration::ZERO);
    }

    fn decide(
        &self,
        at: &Reconciler,
        edit: &Edit,
        precondition: &Precondition,
        before: &Snapshot,
    ) -> Result<Decision, EditError> {
        let decided = edit.decide(precondition, &before.definitions, &self.limits).map_err(EditError::Refused)?;
        let stored_too = decided.writes.iter().find_map(|write| {
            let Write::DeleteService(name) = write else { return None };
            at.context.publisher.repositories.defined_elsewhere(at.api.services.get(name)?.repository(), name)
        });
        if let Some(repository) = stored_too {
            return Err(EditError::Failed(format!(
                "the service was moved, but its old repository `{repository}` still stores it: a restart would restore it there"
            )));
        }
        Ok(decided)
    }

    /// What has to be written before something else about a repository or services.
    fn writing(&mut self, repository: Option<&RepositoryName>, services: &[ServiceName]) -> Option<&mut Writing> {
        let is_before = |name: &RepositoryName, writing: &Writing| {
            Some(name) == repository || writing.services.iter().any(|service| services.contains(service))
        };
        self.writing.iter_mut().find(|(name, writing)| is_before(name, writing)).map(|(_, writing)| writing)
    }

    /// Writes beside the owner, to which the outcome comes.
    fn beside(
        &mut self,
        repository: &RepositoryName,
        services: Vec<ServiceName>,
        is_awaited: bool,
        write: impl Future<Output = Written> + Send + 'static,
    ) {
        let waiting = self.writing.remove(repository).map_or_else(Vec::new, |before| before.waiting);
        self.writing.insert(repository.clone(), Writing { services, is_awaited, waiting });
        self.send(write);
    }

    fn send(&self, write: impl Future<Output = Written> + Send + 'static) {
        let written = self.written.clone();
        self.drain.spawn(async move {
            // The owner ends first when the origin stops.
            let _ = written.send(write.await).await;
        });
    }

    /// Waits beside the owner until former publications have ended.
    pub(super) fn settle(&self, at: &Reconciler, unsettled: Unsettled) {
        let publisher = at.context.publisher.clone();
        self.send(async move {
            unsettled.wait(&publisher).await;
            Written::Settled(unsettled)
        });
    }

    /// Brings an owned repository in line with the definitions and keys of now. Reloads were applied: a service may be defined
    /// in one.
    pub(super) fn align(
        &mut self,
        at: &Reconciler,
        repository: RepositoryName,
        done: oneshot::Sender<Result<(), PublishError>>,
    ) {
        if let Some(first) = self.writing(Some(&repository), &[]) {
            return first.waiting.push(EditRequest::Align(repository, done));
        }
        let definitions = at.catalog.snapshot().definitions.clone();
        let publisher = at.context.publisher.clone();
        self.beside(&repository.clone(), Vec::new(), false, async move {
            let is_configured = |service: &ServiceName| definitions.services.contains_key(service);
            let aligned = publisher.ownership.align(&repository, &is_configured, SystemTime::now()).await;
            Written::Align(repository, aligned, done)
        });
    }

    fn write(&mut self, at: &Reconciler, edit: Box<PendingEdit>, after: Duration) {
        let Some((repository, change)) = edit.plan.change.clone() else { return };
        let publisher = at.context.publisher.clone();
        self.beside(&edit.repository.clone(), services(&edit.writes), edit.caller.is_some(), async move {
            sleep(after).await;
            let result = publisher.define(&repository, change).await;
            Written::Edit(edit, result)
        });
    }

    /// Handles the outcome of a write.
    pub(super) fn written(&mut self, at: &mut Reconciler, written: Written) {
        match written {
            Written::Edit(edit, Ok(())) => {
                let changed_names = ChangedNames::by(&edit.writes);
                edit.writes.iter().for_each(|write| at.api.apply(write));
                let (gone, unsettled) = at.reconcile(changed_names, Started::default(), Cause::Edit);
                self.cleanups.extend(edit.plan.cleanup.is_some().then(|| edit.plan.clone()));
                if gone.is_empty() && unsettled.is_empty() {
                    return self.edited(at, *edit);
                }
                // Once the edit is answered, no publication of a service that it replaced may follow.
                let (retired, publisher) = (at.retire(gone), at.context.publisher.clone());
                self.beside(&edit.repository.clone(), services(&edit.writes), edit.caller.is_some(), async move {
                    unsettled.wait(&publisher).await;
                    Written::Retired(edit, retired.await, unsettled)
                });
            }
            Written::Edit(edit, Err(error)) => self.not_written(at, edit, error),
            Written::Settled(unsettled) => at.settled(&unsettled),
            Written::Retired(edit, retired, unsettled) => {
                at.settled(&unsettled);
                at.announce_retired(retired);
                self.edited(at, *edit);
            }
            Written::CleanUp(repository, plan, result) => {
                if let Err(error) = result {
                    tracing::warn!(%repository, %error, "a moved service is still stored in its old repository; the origin tries again");
                    self.cleanups.push(plan);
                }
                self.go_on(&repository);
            }
            Written::Align(repository, result, done) => {
                let result = result.map(|aligned| ownership::aligned(at, &repository, aligned));
                let _ = done.send(result);
                self.go_on(&repository);
            }
        }
    }

    fn edited(&mut self, at: &Reconciler, edit: PendingEdit) {
        if let Some(caller) = edit.caller {
            answer(at, edit.kind, Ok(edit.outcome), caller);
        }
        self.go_on(&edit.repository);
        self.clean_up(at);
    }

    /// An edit that certainly failed is dropped. One with an unknown outcome is repeated until its outcome is known.
    fn not_written(&mut self, at: &Reconciler, mut edit: Box<PendingEdit>, error: PublishError) {
        let repository = edit.repository.clone();
        tracing::error!(%repository, %error, "an operator's edit failed");
        // A suspended repository has resolved the outcome, and will be reloaded. So will one that is owned elsewhere.
        let is_resolved = match &error {
            PublishError::Suspended { .. } | PublishError::NotOwner(_) | PublishError::Moving(_) => true,
            PublishError::UnknownOutcome(_) => false,
            _ => edit.caller.is_some(),
        };
        let error = match error {
            PublishError::NotOwner(repository) => EditError::NotOwner(repository),
            error => EditError::Failed(error.to_string()),
        };
        if let Some(caller) = edit.caller.take() {
            answer(at, edit.kind, Err(error.clone()), caller);
        }
        if is_resolved {
            return self.go_on(&repository);
        }
        let waiting = self.writing.get_mut(&repository).map(|writing| std::mem::take(&mut writing.waiting));
        for request in waiting.into_iter().flatten() {
            match request {
                EditRequest::Edit(edit, _, caller) => answer(at, edit.into_str(), Err(error.clone()), caller),
                other => self.again.push_back(other),
            }
        }
        self.write(at, edit, RETRY_AFTER);
    }

    /// The record of a repository is written: what waited for that follows.
    fn go_on(&mut self, repository: &RepositoryName) {
        self.again.extend(self.writing.remove(repository).into_iter().flat_map(|writing| writing.waiting));
    }

    /// Removes moved services from their old repositories. Failures are retried; until then the newer document
    /// counts.
    pub(super) fn clean_up(&mut self, at: &Reconciler) {
        for plan in std::mem::take(&mut self.cleanups) {
            let Some((repository, change)) = plan.cleanup.clone() else { continue };
            // The service may have moved back.
            let is_back = |name: &ServiceName| {
                at.api.services.get(name).is_some_and(|document| *document.repository() == repository)
            };
            if change.services.iter().any(|(name, _)| is_back(name)) {
                continue;
            }
            let services: Vec<_> = change.services.iter().map(|(name, _)| name.clone()).collect();
            let is_stored = services.iter().any(|name| at.context.publisher.repositories.defines(&repository, name));
            // Otherwise its owner finds the newer document, and removes the older one.
            if !is_stored || !at.catalog.snapshot().owns(&repository) {
                continue;
            }
            if self.writing(Some(&repository), &services).is_some() {
                self.cleanups.push(plan);
                continue;
            }
            let publisher = at.context.publisher.clone();
            self.beside(&repository.clone(), services, false, async move {
                let result = publisher.define(&repository, change).await;
                Written::CleanUp(repository, plan, result)
            });
        }
    }
}

fn answer(at: &Reconciler, kind: &str, result: Result<Outcome, EditError>, caller: Caller) {
    let word = match &result {
        Ok(outcome) => outcome.into_str(),
        Err(EditError::Refused(_)) => "refused",
        Err(EditError::Failed(_) | EditError::Busy | EditError::NotOwner(_)) => "failed",
    };
    at.context.metrics.catalog_edits.with_label_values(&[kind, word]).inc();
    let snapshot = at.catalog.snapshot();
    // The caller may have gone.
    let _ = caller.done.send(result.map(|outcome| AppliedEdit { outcome, snapshot }));
}

fn services(writes: &[Write]) -> Vec<ServiceName> {
    let named = writes.iter().filter_map(|write| match write {
        Write::PutService(it) => Some(it.name.clone()),
        Write::DeleteService(name) => Some(name.clone()),
        Write::PutRepository(_) | Write::DeleteRepository(_) => None,
    });
    named.collect()
}

//! The one task that changes the catalogue: by edits (`edits`), by the configuration file, and by what can be read again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;
use weir_protocol::event::EventKind;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_runtime::shutdown::Drain;

use super::definitions::Documents;
use super::edit::Write;
use super::edits::{AppliedEdit, EditError, EditRequest, Editor};
use super::reconcile::ChangedNames;
use super::storing::Plan;
use super::{Catalog, Snapshot};
use crate::config::LimitsConfig;
use crate::publish::{Started, StoredDefinitions};
use crate::reconcile::{Context, Gone};
use crate::service::Service;

/// Changes that wait at the most.
const QUEUE: usize = 64;

/// How often a write is tried again of which it is not known whether it was committed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What the owner works with.
pub(crate) struct Dependencies {
    /// What the file says.
    pub(crate) file: Documents,
    /// What operators said, as it is stored.
    pub(crate) stored: StoredDefinitions,
    pub(crate) secrets_dir: Option<PathBuf>,
    pub(crate) limits: LimitsConfig,
    pub(crate) context: Context,
}

pub(super) struct Owner {
    pub(super) file: Documents,
    pub(super) api: Documents,
    /// An edit of which it is not known whether it was committed.
    pub(super) unknown_outcome: Option<(Plan, Vec<Write>)>,
    /// What is left to be done after services have moved.
    pub(super) cleanups: Vec<Plan>,
    pub(super) secrets_dir: Option<PathBuf>,
    pub(super) limits: LimitsConfig,
    pub(super) context: Context,
    pub(super) catalog: Arc<Catalog>,
    /// The services of each repository that its agent publishes.
    pub(super) assigned: BTreeMap<RepositoryName, BTreeMap<ServiceName, Arc<Service>>>,
    /// The agents that were stopped and may not have ended.
    pub(super) leaving: BTreeMap<RepositoryName, Gone>,
    pub(super) drain: Drain,
}

/// Brings up everything that is defined, and changes it from then on until the drain.
pub(crate) async fn begin(dependencies: Dependencies, mut started: Started, drain: &Drain) -> (Arc<Catalog>, Editor) {
    let Dependencies { file, stored, secrets_dir, limits, context } = dependencies;
    let begins = Snapshot { operators_have_defined: stored.had_any, ..Snapshot::default() };
    let catalog = Arc::new(Catalog::new(begins, std::mem::take(&mut started.retired)));
    let metrics = context.metrics.clone();
    let mut owner = Owner {
        file,
        api: Documents::stored(&stored),
        unknown_outcome: None,
        cleanups: stored.outdated.into_iter().map(|(repository, service)| Plan::removal(repository, service)).collect(),
        secrets_dir,
        limits,
        context,
        catalog: catalog.clone(),
        assigned: BTreeMap::new(),
        leaving: BTreeMap::new(),
        drain: drain.clone(),
    };
    for (kind, limit) in [("repository", owner.limits.max_repositories), ("service", owner.limits.max_services)] {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        owner.context.metrics.catalog_limit.with_label_values(&[kind]).set(limit);
    }
    owner.log_shadowed();
    for (object, reason) in owner.api.refused() {
        tracing::error!(object, reason, "its stored document is refused: put another one, or delete it");
    }
    let changed_names = ChangedNames::all(&owner.file, &owner.api);
    owner.reconcile(changed_names, started).await;
    owner.log_left_alone();
    let (requests, mut waiting) = mpsc::channel(QUEUE);
    let queue = requests.downgrade();
    let queued = move || queue.upgrade().map_or(0, |queue| queue.max_capacity() - queue.capacity());
    metrics.bounds.show("edits", QUEUE, queued);
    let (begun, publisher) = (drain.clone(), owner.context.publisher.clone());
    drain.spawn(async move {
        loop {
            let has_rest =
                owner.unknown_outcome.is_some() || !owner.cleanups.is_empty() || !publisher.to_take_over().is_empty();
            let order = tokio::select! {
                () = begun.begun() => return,
                Some(order) = waiting.recv() => order,
                () = publisher.read_again() => {
                    owner.take_over().await;
                    continue;
                }
                () = sleep(RETRY_AFTER), if has_rest => {
                    if owner.settle().await.is_ok() {
                        owner.clean_up().await;
                    }
                    owner.take_over().await;
                    continue;
                }
            };
            // From now on what is added changes nothing about it.
            let _ = owner.catalog.ready();
            owner.carry_out(order).await;
        }
    });
    (catalog, Editor { requests })
}

impl Owner {
    async fn carry_out(&mut self, order: EditRequest) {
        match order {
            EditRequest::Edit(edit, precondition, done) => {
                let result = self.edit(&edit, &precondition).await;
                let word = match &result {
                    Ok(outcome) => outcome.as_str(),
                    Err(EditError::Refused(_)) => "refused",
                    Err(EditError::Failed(_) | EditError::Busy) => "failed",
                };
                self.context.metrics.catalog_edits.with_label_values(&[edit.as_str(), word]).inc();
                // Whoever asked may have gone.
                let left = self.catalog.snapshot();
                let _ = done.send(result.map(|outcome| AppliedEdit { outcome, left }));
                self.clean_up().await;
            }
            EditRequest::Reload(file, done) => {
                let mut changed_names = ChangedNames::all(&self.file, &self.api);
                changed_names.extend(ChangedNames::all(&file, &Documents::default()));
                self.file = file;
                self.log_shadowed();
                self.reconcile(changed_names, Started::default()).await;
                self.log_left_alone();
                let _ = done.send(());
            }
        }
    }

    /// Takes over what operators defined in repositories that could not be read before, or were damaged.
    async fn take_over(&mut self) {
        let publisher = self.context.publisher.clone();
        for repository in publisher.to_take_over() {
            match publisher.definitions_read_again(&repository).await {
                Ok((stored, published)) => {
                    self.take_over_one(repository.name(), &Documents::stored(&stored), published).await;
                    publisher.taken_over(&repository);
                }
                Err(error) => tracing::warn!(repository = %repository.name(), %error, "it is read again soon"),
            }
        }
    }

    async fn take_over_one(&mut self, repository: &RepositoryName, stored: &Documents, published: Started) {
        let is_elsewhere = |name: &ServiceName| {
            self.api.services.get(name).is_some_and(|document| document.repository() != repository)
        };
        // One that is in two repositories, because it was being moved, stays where the catalogue has it until a restart.
        let services: Vec<_> = stored.services.iter().filter(|(name, _)| !is_elsewhere(name)).collect();
        for (name, document) in services {
            self.api.services.insert_mut(name.clone(), document.clone());
        }
        for (name, document) in &stored.repositories {
            self.api.repositories.insert_mut(name.clone(), document.clone());
        }
        let (repositories, services) = (stored.repositories.size(), stored.services.size());
        tracing::info!(%repository, repositories, services, "what operators defined in it was read again");
        self.reconcile(ChangedNames::all(stored, &Documents::default()), Started::default()).await;
        let snapshot = self.catalog.snapshot();
        for (name, descriptor) in published.current {
            let Some(service) = snapshot.services.get(&name) else { continue };
            if let Some(since) = published.pins.get(&name).filter(|_| !service.is_pinned()) {
                service.pinned(*since);
            }
            service.show(descriptor, |shown| self.context.log.append(EventKind::Descriptor(shown.bytes().clone())));
        }
    }

    /// What operators defined under a name that the file has now stays stored, and is not used.
    fn log_shadowed(&self) {
        for name in self.api.repositories.keys().filter(|name| self.file.repositories.contains_key(*name)) {
            tracing::warn!(repository = %name, "it stands in the file: what operators defined under this name is not used");
        }
        for name in self.api.services.keys().filter(|name| self.file.services.contains_key(*name)) {
            tracing::warn!(service = %name, "it stands in the file: what operators defined under this name is not used");
        }
    }

    /// Who takes a repository out of the file may not know who else uses it.
    fn log_left_alone(&self) {
        for (service, repository) in self.catalog.snapshot().definitions.left_alone() {
            tracing::warn!(%service, %repository, "nobody defines the repository of this service: its version stays as it is");
        }
    }
}

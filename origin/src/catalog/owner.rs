//! The one task that changes the catalog: after edits (`edits`), reloads of the configuration file, and reloads of
//! stored state.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;
use weir_protocol::event::EventKind;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_runtime::shutdown::Drain;
use weir_source::{Service, ServiceConfig};

use super::definitions::Documents;
use super::edits::{EditRequest, Editor, Writing, Written};
use super::raw_document::RawDocument;
use super::reconcile::ChangedNames;
use super::storing::Plan;
use super::{Catalog, Map, Snapshot};
use crate::config::LimitsConfig;
use crate::publish::{Reloaded, Started, StoredDefinitions};
use crate::reconcile::{Context, Terminated};

/// The most queued requests, and edits in progress.
const QUEUE: usize = 64;

/// The interval for retrying a write with an unknown outcome.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(crate) struct Dependencies {
    /// The documents of the configuration file.
    pub(crate) file: Documents,
    /// The stored documents of operators.
    pub(crate) stored: StoredDefinitions,
    pub(crate) secrets_dir: Option<PathBuf>,
    pub(crate) limits: LimitsConfig,
    pub(crate) context: Context,
}

pub(super) struct Owner {
    pub(super) file: Documents,
    pub(super) api: Documents,
    /// The records that are being written.
    pub(super) writing: BTreeMap<RepositoryName, Writing>,
    /// Receives the outcomes.
    pub(super) written: mpsc::Sender<Written>,
    /// Requests that have waited for one.
    pub(super) again: VecDeque<EditRequest>,
    /// Writes that remain after services have moved.
    pub(super) cleanups: Vec<Plan>,
    pub(super) secrets_dir: Option<PathBuf>,
    pub(super) limits: LimitsConfig,
    pub(super) context: Context,
    pub(super) catalog: Arc<Catalog>,
    /// The services of each repository.
    pub(super) assigned: BTreeMap<RepositoryName, BTreeMap<ServiceName, Arc<Service>>>,
    /// The parts of composed services, by their own repositories.
    pub(super) parts: BTreeMap<RepositoryName, BTreeMap<ServiceName, Vec<Arc<Service>>>>,
    /// Services that no worker gets yet, and how many waits that takes.
    pub(super) unsettled: BTreeMap<ServiceName, usize>,
    /// Workers that were stopped and may still be running.
    pub(super) leaving: BTreeMap<RepositoryName, Terminated>,
    pub(super) drain: Drain,
}

/// Starts everything that is defined, and applies changes until the drain.
pub(crate) async fn begin(dependencies: Dependencies, mut started: Started, drain: &Drain) -> (Arc<Catalog>, Editor) {
    let Dependencies { file, stored, secrets_dir, limits, context } = dependencies;
    let owned = context.publisher.repositories.is_in_cluster().then(Map::default);
    let begins = Snapshot { owned, ..Snapshot::default() };
    let catalog = Arc::new(Catalog::new(begins, std::mem::take(&mut started.retired)));
    let metrics = context.metrics.clone();
    let (written, mut outcomes) = mpsc::channel(QUEUE);
    let mut owner = Owner {
        file,
        api: Documents::stored(&stored),
        writing: BTreeMap::new(),
        written,
        again: VecDeque::new(),
        cleanups: stored.outdated.into_iter().map(|(repository, service)| Plan::removal(repository, service)).collect(),
        secrets_dir,
        limits,
        context,
        catalog: catalog.clone(),
        assigned: BTreeMap::new(),
        parts: BTreeMap::new(),
        unsettled: BTreeMap::new(),
        leaving: BTreeMap::new(),
        drain: drain.clone(),
    };
    for (kind, limit) in [("repository", owner.limits.max_repositories), ("service", owner.limits.max_services)] {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        owner.context.metrics.catalog_limit.with_label_values(&[kind]).set(limit);
    }
    owner.log_shadowed();
    let changed_names = ChangedNames::all(&owner.file, &owner.api);
    owner.reconcile_all(changed_names, started).await;
    for (object, reason) in catalog.snapshot().definitions.refused() {
        tracing::error!(object, reason, "the stored document is invalid: replace or delete it");
    }
    owner.log_without_repository();
    let (requests, mut waiting) = mpsc::channel(QUEUE);
    let edits = metrics.bounds.semaphore("edits", QUEUE);
    let (begun, publisher) = (drain.clone(), owner.context.publisher.clone());
    drain.spawn(async move {
        loop {
            if let Some(order) = owner.again.pop_front() {
                owner.handle(order).await;
                continue;
            }
            let has_rest = !owner.cleanups.is_empty() || !publisher.reloads.unapplied().is_empty();
            let is_awaited = owner.writing.values().any(|writing| writing.is_awaited);
            let order = tokio::select! {
                () = begun.begun(), if !is_awaited => return,
                Some(written) = outcomes.recv() => {
                    owner.written(written);
                    continue;
                }
                Some(order) = waiting.recv() => order,
                () = publisher.reloads.wait() => {
                    owner.apply_reloads().await;
                    continue;
                }
                () = sleep(RETRY_AFTER), if has_rest => {
                    owner.clean_up();
                    owner.apply_reloads().await;
                    continue;
                }
            };
            // Later additions do not affect readiness.
            let _ = owner.catalog.ready();
            owner.handle(order).await;
        }
    });
    (catalog, Editor { requests, edits })
}

impl Owner {
    async fn handle(&mut self, order: EditRequest) {
        match order {
            EditRequest::Edit(edit, precondition, caller) => self.edit(edit, precondition, caller),
            EditRequest::Reload(file, done) => {
                let mut changed_names = ChangedNames::all(&self.file, &self.api);
                changed_names.extend(ChangedNames::all(&file, &Documents::default()));
                self.file = file;
                self.log_shadowed();
                self.reconcile_all(changed_names, Started::default()).await;
                self.log_without_repository();
                let _ = done.send(());
            }
            EditRequest::ApplyReloads(done) => {
                self.apply_reloads().await;
                let _ = done.send(());
            }
            EditRequest::Take(repository, done) => {
                self.take(&repository).await;
                let _ = done.send(());
            }
            EditRequest::Release(repository, done) => drop(done.send(self.release(&repository).await)),
            EditRequest::Align(repository, done) => self.align(repository, done).await,
        }
    }

    /// Applies what has changed in repositories that were reloaded.
    pub(super) async fn apply_reloads(&mut self) {
        let publisher = self.context.publisher.clone();
        for repository in publisher.reloads.unapplied() {
            self.apply_reload(repository.name(), publisher.reloads.read(&repository)).await;
            publisher.reloads.mark_applied(&repository);
        }
    }

    async fn apply_reload(&mut self, repository: &RepositoryName, Reloaded { stored, undefined, published }: Reloaded) {
        let stored = Documents::stored(&stored);
        let is_here = |document: &RawDocument<ServiceConfig>| document.repository() == repository;
        let mut changed_names = ChangedNames::default();
        // None of these has a newer document in another repository. An older one is removed by the owner of that.
        for (name, document) in &stored.services {
            let known = self.api.services.get(name);
            if known == Some(document) {
                continue;
            }
            let moved_from = known.filter(|known| !is_here(known)).map(|known| known.repository().clone());
            self.cleanups.extend(moved_from.map(|before| Plan::removal(before, name.clone())));
            self.api.services.insert_mut(name.clone(), document.clone());
            changed_names.services.insert(name.clone());
        }
        for name in undefined {
            if self.api.services.get(&name).is_some_and(is_here) {
                self.api.services.remove_mut(&name);
                changed_names.services.insert(name);
            }
        }
        let document = stored.repositories.get(repository);
        if self.api.repositories.get(repository) != document {
            match document {
                Some(document) => self.api.repositories.insert_mut(repository.clone(), document.clone()),
                None => drop(self.api.repositories.remove_mut(repository)),
            }
            changed_names.repositories.insert(repository.clone());
        }
        let (repositories, services) = (changed_names.repositories.len(), changed_names.services.len());
        if repositories + services > 0 {
            tracing::info!(%repository, repositories, services, "operators' definitions of the repository were reloaded");
            self.reconcile_all(changed_names, Started::default()).await;
        }
        self.show(repository, published);
    }

    /// Shows what is published. Events are of owned repositories alone.
    pub(super) fn show(&self, repository: &RepositoryName, published: Started) {
        let snapshot = self.catalog.snapshot();
        let is_owned = snapshot.owns(repository);
        for (name, descriptor) in published.current {
            let Some(service) = snapshot.services.get(&name) else { continue };
            match published.pins.get(&name) {
                Some(since) if !service.is_pinned() => service.pinned(*since),
                None if !is_owned => service.unpinned(),
                _ => {}
            }
            service.show(descriptor, |shown| {
                if is_owned {
                    self.context.log.append(EventKind::Descriptor(shown.bytes().clone()));
                }
            });
        }
    }

    /// A definition by operators under a name that the file defines stays stored and has no effect.
    fn log_shadowed(&self) {
        for name in self.api.repositories.keys().filter(|name| self.file.repositories.contains_key(*name)) {
            tracing::warn!(repository = %name, "the configuration file and operators both define this repository: the file takes precedence");
        }
        for name in self.api.services.keys().filter(|name| self.file.services.contains_key(*name)) {
            tracing::warn!(service = %name, "the configuration file and operators both define this service: the file takes precedence");
        }
    }

    /// Whoever removes a repository from the file may not know all its services.
    fn log_without_repository(&self) {
        for (service, repository) in self.catalog.snapshot().definitions.without_repository() {
            tracing::warn!(%service, %repository, "the service's repository is not defined: the service keeps its published version");
        }
    }
}

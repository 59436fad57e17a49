//! The one task that changes the catalog: after edits (`edits`), reloads of the configuration file, and reloads of
//! stored state.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::sleep;
use weir_protocol::name::RepositoryName;
use weir_publish::{Reloaded, Started, StoredDefinitions};
use weir_runtime::shutdown::Drain;
use weir_source::ServiceConfig;

use super::definitions::Documents;
use super::edits::{EditRequest, Editor, Edits, RETRY_AFTER};
use super::raw_document::RawDocument;
use super::reconcile::{Cause, ChangedNames, Reconciler};
use super::storing::Plan;
use super::{Catalog, Map, Snapshot, ownership};
use crate::config::{LimitsConfig, OciConfig};
use crate::reconcile::Context;

/// The most queued requests, and edits in progress.
const QUEUE: usize = 64;

pub(crate) struct Dependencies {
    /// The documents of the configuration file.
    pub(crate) file: Documents,
    /// The stored documents of operators.
    pub(crate) stored: StoredDefinitions,
    pub(crate) secrets_dir: Option<PathBuf>,
    pub(crate) limits: LimitsConfig,
    pub(crate) oci: OciConfig,
    pub(crate) context: Context,
}

struct Owner {
    reconciler: Reconciler,
    edits: Edits,
}

/// Starts everything that is defined, and applies changes until the drain.
pub(crate) async fn begin(dependencies: Dependencies, mut started: Started, drain: &Drain) -> (Arc<Catalog>, Editor) {
    let Dependencies { file, stored, secrets_dir, limits, oci, context } = dependencies;
    let is_in_cluster = context.publisher.repositories.is_in_cluster();
    let owned = is_in_cluster.then(Map::default);
    let begins = Snapshot { owned, ..Snapshot::default() };
    let catalog = Arc::new(Catalog::new(begins, std::mem::take(&mut started.retired)));
    let metrics = context.metrics.clone();
    let (written, mut outcomes) = mpsc::channel(QUEUE);
    let api = Documents::stored(&stored, is_in_cluster);
    let cleanups =
        stored.outdated.into_iter().map(|(repository, service)| Plan::removal(repository, service)).collect();
    let reconciler = Reconciler {
        file,
        api,
        secrets_dir,
        oci,
        context,
        catalog: catalog.clone(),
        assigned: BTreeMap::new(),
        parts: BTreeMap::new(),
        unsettled: BTreeMap::new(),
        leaving: BTreeMap::new(),
        drain: drain.clone(),
    };
    for (kind, limit) in [("repository", limits.max_repositories), ("service", limits.max_services)] {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        metrics.catalog_limit.with_label_values(&[kind]).set(limit);
    }
    let mut owner = Owner { reconciler, edits: Edits::new(limits, written, cleanups, drain.clone()) };
    owner.log_shadowed();
    let changed_names = ChangedNames::all(&owner.reconciler.file, &owner.reconciler.api);
    owner.reconcile_all(changed_names, started).await;
    for (object, reason) in catalog.snapshot().definitions.refused() {
        tracing::error!(object, reason, "the stored document is invalid: replace or delete it");
    }
    owner.log_without_repository();
    let (requests, mut waiting) = mpsc::channel(QUEUE);
    let edits = metrics.bounds.semaphore("edits", QUEUE);
    let (begun, publisher) = (drain.clone(), owner.reconciler.context.publisher.clone());
    drain.spawn(async move {
        loop {
            if let Some(order) = owner.edits.again.pop_front() {
                owner.handle(order).await;
                continue;
            }
            let has_rest = !owner.edits.cleanups.is_empty() || !publisher.reloads.unapplied().is_empty();
            let order = tokio::select! {
                () = begun.begun(), if !owner.edits.is_awaited() => return,
                Some(written) = outcomes.recv() => {
                    owner.edits.written(&mut owner.reconciler, written);
                    continue;
                }
                Some(order) = waiting.recv() => order,
                () = publisher.reloads.wait() => {
                    owner.apply_reloads().await;
                    continue;
                }
                () = sleep(RETRY_AFTER), if has_rest => {
                    owner.edits.clean_up(&owner.reconciler);
                    owner.apply_reloads().await;
                    continue;
                }
            };
            // Later additions do not affect readiness.
            let _ = owner.reconciler.catalog.ready();
            owner.handle(order).await;
        }
    });
    (catalog, Editor { requests, edits })
}

impl Owner {
    async fn handle(&mut self, order: EditRequest) {
        let at = &mut self.reconciler;
        match order {
            EditRequest::Edit(edit, precondition, caller) => self.edits.edit(at, edit, precondition, caller),
            EditRequest::Reload(file, done) => {
                let mut changed_names = ChangedNames::all(&at.file, &at.api);
                changed_names.extend(ChangedNames::all(&file, &Documents::default()));
                at.file = file;
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
                // The state that the publisher has read for it.
                self.apply_reloads().await;
                ownership::take(&mut self.reconciler, &repository);
                let outdated = self.reconciler.context.publisher.repositories.outdated(&repository).into_iter();
                self.edits.cleanups.extend(outdated.map(|service| Plan::removal(repository.clone(), service)));
                let _ = done.send(());
            }
            EditRequest::Release(repository, done) => drop(done.send(ownership::release(at, &repository))),
            EditRequest::Align(repository, done) => {
                self.apply_reloads().await;
                self.edits.align(&self.reconciler, repository, done);
            }
        }
    }

    /// Reconciles after the configuration file or the stored state was read again.
    async fn reconcile_all(&mut self, changed_names: ChangedNames, started: Started) {
        let (gone, unsettled) = self.reconciler.reconcile(changed_names, started, Cause::Other);
        if !unsettled.is_empty() {
            self.edits.settle(&self.reconciler, unsettled);
        }
        let retired = self.reconciler.retire(gone).await;
        self.reconciler.announce_retired(retired);
    }

    /// Applies what has changed in repositories that were reloaded.
    async fn apply_reloads(&mut self) {
        let publisher = self.reconciler.context.publisher.clone();
        for repository in publisher.reloads.unapplied() {
            self.apply_reload(repository.name(), publisher.reloads.read(&repository)).await;
            publisher.reloads.mark_applied(&repository);
        }
    }

    async fn apply_reload(&mut self, repository: &RepositoryName, Reloaded { stored, undefined, published }: Reloaded) {
        let is_in_cluster = self.reconciler.context.publisher.repositories.is_in_cluster();
        let stored = Documents::stored(&stored, is_in_cluster);
        let is_here = |document: &RawDocument<ServiceConfig>| document.repository() == repository;
        let mut changed_names = ChangedNames::default();
        let api = &mut self.reconciler.api;
        // None of these has a newer document in another repository. An older one is removed by the owner of that.
        for (name, document) in &stored.services {
            let known = api.services.get(name);
            if known == Some(document) {
                continue;
            }
            let moved_from = known.filter(|known| !is_here(known)).map(|known| known.repository().clone());
            self.edits.cleanups.extend(moved_from.map(|before| Plan::removal(before, name.clone())));
            api.services.insert_mut(name.clone(), document.clone());
            changed_names.services.insert(name.clone());
        }
        for name in undefined {
            if api.services.get(&name).is_some_and(is_here) {
                api.services.remove_mut(&name);
                changed_names.services.insert(name);
            }
        }
        let document = stored.repositories.get(repository);
        if api.repositories.get(repository) != document {
            match document {
                Some(document) => api.repositories.insert_mut(repository.clone(), document.clone()),
                None => drop(api.repositories.remove_mut(repository)),
            }
            changed_names.repositories.insert(repository.clone());
        }
        let (repositories, services) = (changed_names.repositories.len(), changed_names.services.len());
        if repositories + services > 0 {
            tracing::info!(%repository, repositories, services, "operators' definitions of the repository were reloaded");
            self.reconcile_all(changed_names, Started::default()).await;
        }
        self.reconciler.show(repository, published);
    }

    /// A definition by operators under a name that the file defines stays stored and has no effect.
    fn log_shadowed(&self) {
        let Reconciler { file, api, .. } = &self.reconciler;
        for name in api.repositories.keys().filter(|name| file.repositories.contains_key(*name)) {
            tracing::warn!(repository = %name, "the configuration file and operators both define this repository: the file takes precedence");
        }
        for name in api.services.keys().filter(|name| file.services.contains_key(*name)) {
            tracing::warn!(service = %name, "the configuration file and operators both define this service: the file takes precedence");
        }
    }

    /// Whoever removes a repository from the file may not know all its services.
    fn log_without_repository(&self) {
        for (service, repository) in self.reconciler.catalog.snapshot().definitions.without_repository() {
            tracing::warn!(%service, %repository, "the service's repository is not defined: the service keeps its published version");
        }
    }
}

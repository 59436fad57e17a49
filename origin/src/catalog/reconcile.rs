//! Reconciles workers and services with the definitions. It visits only changed names, so an edit costs what it
//! changes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::join_all;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::event::EventKind;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::{Publisher, Retired, Started};
use weir_runtime::config::ConfigError;
use weir_runtime::shutdown::Drain;
use weir_source::{OciChoice, Service, ServiceConfig};
use weir_upstream::DefinedBy;

use super::definitions::{Definitions, Documents, Write};
use super::permitted::permitted;
use super::raw_document::RawDocument;
use super::{Catalog, NotMirrored, Snapshot};
use crate::config::OciConfig;
use crate::reconcile::{self, Context, MirrorDisposal, StartOptions, Terminated};

/// Names whose definitions may have changed.
#[derive(Debug, Default)]
pub(super) struct ChangedNames {
    pub(super) repositories: BTreeSet<RepositoryName>,
    pub(super) services: BTreeSet<ServiceName>,
}

/// Why definitions have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// An operator edited them here.
    Edit,
    /// The configuration file or the stored state was read again.
    Other,
}

/// Services that were replaced while a publication of their former documents may run. Their workers get the new ones when
/// that has ended: what it publishes has to be known before.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    /// By their former repositories.
    services: BTreeMap<RepositoryName, Vec<ServiceName>>,
    /// Owned repositories that services have left for those of other origins.
    moved_from: BTreeSet<RepositoryName>,
}

impl Unsettled {
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Waits until those publications have ended.
    pub(super) async fn wait(&self, publisher: &Publisher) {
        join_all(self.services.keys().map(|repository| publisher.repositories.wait_for_publications(repository))).await;
    }
}

impl ChangedNames {
    /// All names.
    pub(super) fn all(file: &Documents, api: &Documents) -> Self {
        let repositories = file.repositories.keys().chain(api.repositories.keys());
        let services = file.services.keys().chain(api.services.keys());
        Self { repositories: repositories.cloned().collect(), services: services.cloned().collect() }
    }

    /// The names in some writes.
    pub(super) fn by(writes: &[Write]) -> Self {
        let mut changed_names = Self::default();
        for write in writes {
            match write {
                Write::PutRepository(it) => drop(changed_names.repositories.insert(it.name.clone())),
                Write::DeleteRepository(name) => drop(changed_names.repositories.insert(name.clone())),
                Write::PutService(it) => drop(changed_names.services.insert(it.name.clone())),
                Write::DeleteService(name) => drop(changed_names.services.insert(name.clone())),
            }
        }
        changed_names
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.repositories.extend(other.repositories);
        self.services.extend(other.services);
    }
}

/// Makes the catalog and the workers follow the documents.
pub(super) struct Reconciler {
    pub(super) file: Documents,
    pub(super) api: Documents,
    pub(super) secrets_dir: Option<PathBuf>,
    pub(super) oci: OciConfig,
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

impl Reconciler {
    /// Reconciles the changed names. Readers see the whole change at once. Deleted services are retired after that,
    /// so that no reader receives a deletion while the service is still served. `started`: the state published before
    /// the start.
    ///
    /// In a cluster another member may still define a service that the file does not: only an edit retires it at once.
    /// Returns the services to retire, and those to [settle](Reconciler::settled).
    #[expect(clippy::too_many_lines, reason = "one pass over the changed names")]
    pub(super) fn reconcile(
        &mut self,
        mut changed_names: ChangedNames,
        mut started: Started,
        cause: Cause,
    ) -> (Vec<Arc<Service>>, Unsettled) {
        let before = self.catalog.snapshot();
        let mut after = Snapshot::clone(&before);
        let definitions = &mut after.definitions;
        for name in &changed_names.repositories {
            definitions.update_repository(name, &self.file, &self.api);
            // Its services may have another source now.
            changed_names.services.extend(self.assigned.get(name).into_iter().flat_map(|of| of.keys().cloned()));
            changed_names.services.extend(self.parts.get(name).into_iter().flat_map(|of| of.keys().cloned()));
        }
        // What a `ref` means may have changed, also of a service that was refused for it.
        let kinds = |name: &&RepositoryName| before.definitions.kind_of(name) != definitions.kind_of(name);
        let other_kind: BTreeSet<_> = changed_names.repositories.iter().filter(kinds).collect();
        if !other_kind.is_empty() {
            let services = definitions.services.iter();
            let concerned = services.filter(|(_, each)| each.document.names(|name| other_kind.contains(name)));
            changed_names.services.extend(concerned.map(|(name, _)| name.clone()));
        }
        changed_names.services.iter().for_each(|name| definitions.update_service(name, &self.file, &self.api));

        let (mut created, mut gone, mut reassigned) = (HashSet::new(), Vec::new(), changed_names.repositories.clone());
        let (mut unsettled, mut redefined) = (Unsettled::default(), Vec::new());
        for name in &changed_names.services {
            let known = before.services.get(name);
            let service = after.definitions.services.get(name).and_then(|defined| {
                let is_alike = |document: &Arc<ServiceConfig>| {
                    document.repositories().all(|name| published_alike(&before.definitions, &after.definitions, name))
                };
                let was = before.definitions.services.get(name);
                let stays = was.is_some_and(|was| was.document == defined.document)
                    && defined.document.valid().is_none_or(is_alike);
                let of = (&after.definitions, self.oci);
                let service = service(name, &defined.document, of, known, stays, started.current.remove(name));
                let cannot_be = |error: &ConfigError| {
                    tracing::error!(service = %name, %error, "the service cannot be created");
                };
                let service = service.inspect_err(cannot_be).ok()?;
                if let Some(pin) = started.pins.remove(name) {
                    service.pinned(pin);
                }
                if let Some(refused) = defined.document.refused().filter(|refused| before.owns(&refused.repository)) {
                    service.mark_failed("document", refused.reason.clone(), SystemTime::now());
                }
                Some(service)
            });
            if known.zip(service.as_ref()).is_some_and(|(known, service)| Arc::ptr_eq(known, service)) {
                continue;
            }
            redefined.push(name);
            if let Some(known) = known {
                if let Some(of) = self.assigned.get_mut(&known.repository) {
                    of.remove(name);
                }
                reassigned.insert(known.repository.clone());
                self.context.part_sources.remove_composed(known);
                for part in known.sources() {
                    if let Some(of) = self.parts.get_mut(&part.repository) {
                        of.remove(name);
                    }
                    reassigned.insert(part.repository.clone());
                }
                if known.is_withdrawn() {
                    unsettled.services.entry(known.repository.clone()).or_default().push(name.clone());
                }
            }
            match service {
                Some(service) => {
                    let left = known.map(|known| &known.repository).filter(|left| **left != service.repository);
                    let left = left.filter(|left| before.owns(left) && !before.owns(&service.repository));
                    unsettled.moved_from.extend(left.cloned());
                    let of = self.assigned.entry(service.repository.clone()).or_default();
                    of.insert(name.clone(), service.clone());
                    reassigned.insert(service.repository.clone());
                    self.context.part_sources.add_composed(&service);
                    for part in service.sources() {
                        let of = self.parts.entry(part.repository.clone()).or_default();
                        of.entry(name.clone()).or_default().push(part.clone());
                        reassigned.insert(part.repository.clone());
                    }
                    if known.is_none() {
                        created.insert(name.clone());
                    }
                    after.services.insert_mut(name.clone(), service);
                }
                None => {
                    after.services.remove_mut(name);
                    gone.extend(known.cloned());
                }
            }
        }
        for name in &reassigned {
            remove_empty(&mut self.assigned, name);
            remove_empty(&mut self.parts, name);
        }
        unsettled.services.retain(|repository, _| self.context.publisher.repositories.is_publishing(repository));
        for service in unsettled.services.values().flatten() {
            *self.unsettled.entry(service.clone()).or_default() += 1;
        }

        self.reconcile_workers(&reassigned, &before, &mut after);
        reassigned.iter().for_each(|repository| self.mark_not_mirrored(repository, &after));
        if after.owned.is_some() {
            gone.retain(|service| {
                let is_retired = cause == Cause::Edit && after.owns(&service.repository);
                if !is_retired {
                    service.withdraw();
                }
                is_retired
            });
        }
        self.catalog.replace(after, &created);
        redefined.iter().for_each(|name| _ = self.context.part_sources.resolve_composed(name));
        if unsettled.is_empty() {
            std::mem::take(&mut unsettled.moved_from).iter().for_each(|repository| self.vouch_anew(repository));
        }
        (gone, unsettled)
    }

    /// The publications that [`Reconciler::reconcile`] found have ended: the workers get the new services.
    pub(super) fn settled(&mut self, Unsettled { services, moved_from }: &Unsettled) {
        if services.is_empty() {
            return;
        }
        let before = self.catalog.snapshot();
        let (mut after, mut reassigned) = (Snapshot::clone(&before), BTreeSet::new());
        for name in services.values().flatten() {
            if let Some(times) = self.unsettled.get_mut(name) {
                *times -= 1;
            }
            if let Some(service) = after.services.get(name) {
                reassigned.extend(service.followers().map(|follower| follower.repository.clone()));
                reassigned.insert(service.repository.clone());
            }
        }
        self.unsettled.retain(|_, times| *times > 0);
        self.reconcile_workers(&reassigned, &before, &mut after);
        reassigned.iter().for_each(|repository| self.mark_not_mirrored(repository, &after));
        self.catalog.replace(after, &HashSet::new());
        moved_from.iter().filter(|left| before.owns(left)).for_each(|left| self.vouch_anew(left));
    }

    /// Marks the services of an owned repository without a worker.
    pub(super) fn mark_not_mirrored(&self, repository: &RepositoryName, after: &Snapshot) {
        if !after.owns(repository) || after.workers.contains_key(repository) {
            return;
        }
        let reason = after.not_mirrored.get(repository).map(|not_mirrored| not_mirrored.reason.clone());
        let reason = reason.unwrap_or_else(|| format!("repository `{repository}` is not defined"));
        for service in self.followed(repository) {
            service.mark_failed("resolve", reason.clone(), SystemTime::now());
        }
    }

    /// The services that the worker of a repository publishes.
    pub(super) fn followed(&self, repository: &RepositoryName) -> impl Iterator<Item = &Arc<Service>> {
        let of_it = self.assigned.get(repository).into_iter().flat_map(BTreeMap::values);
        of_it.filter(|service| !service.is_refused && !self.unsettled.contains_key(&service.name))
    }

    /// Stops the workers of deleted and changed repositories, starts new ones, and assigns services to workers.
    pub(super) fn reconcile_workers(
        &mut self,
        changed_names: &BTreeSet<RepositoryName>,
        before: &Snapshot,
        after: &mut Snapshot,
    ) {
        let mut wanted = BTreeMap::new();
        for name in changed_names {
            let defined = after.definitions.repositories.get(name).filter(|_| after.owns(name));
            let config = defined.map(|defined| match &defined.document {
                RawDocument::Valid(document) => {
                    permitted(defined.by, document, self.secrets_dir.as_deref()).map_err(|refusals| joined(&refusals))
                }
                RawDocument::Refused(refused) => Err(refused.reason.clone()),
            });
            after.not_mirrored.remove_mut(name);
            match config {
                None => {}
                Some(Ok(config)) => drop(wanted.insert(name, config)),
                Some(Err(why)) => {
                    let reason = format!("repository `{name}` is not mirrored: {why}");
                    let known = before.not_mirrored.get(name).filter(|known| known.reason == reason).cloned();
                    let not_mirrored = known.unwrap_or_else(|| {
                        tracing::warn!("{reason}");
                        NotMirrored { since: SystemTime::now(), reason }
                    });
                    after.not_mirrored.insert_mut(name.clone(), not_mirrored);
                }
            }
        }
        for name in changed_names {
            let Some(worker) = before.workers.get(name) else { continue };
            if wanted.get(name).is_some_and(|config| config.has_same_upstream(&worker.config())) {
                continue;
            }
            let by_operators = !self.file.repositories.contains_key(name)
                && !after.definitions.repositories.contains_key(name)
                && before.definitions.repositories.get(name).is_some_and(|was| was.by == DefinedBy::Api);
            // A repository may be missing from the file by mistake, which must not cost a new clone.
            let disposal = if by_operators { MirrorDisposal::Remove } else { MirrorDisposal::Keep };
            self.leaving.insert(name.clone(), worker.stop(disposal));
            after.workers.remove_mut(name);
            if !wanted.contains_key(name) {
                self.drop_metrics_when_terminated(name.clone(), worker);
            }
        }
        self.leaving.retain(|_, terminated| !terminated.is_over());
        let started_together = wanted.keys().filter(|name| !after.workers.contains_key(**name)).count();
        for (name, config) in wanted {
            let own = self.followed(name);
            let parts = self.parts.get(name).into_iter().flatten();
            let parts = parts.filter(|(of, _)| !self.unsettled.contains_key(*of)).flat_map(|(_, parts)| parts);
            let own: Vec<_> = own.chain(parts).cloned().collect();
            if let Some(worker) = after.workers.get(name) {
                worker.reconfigure(config);
                worker.assign(own);
                continue;
            }
            let handover = before.workers.get(name).map(|worker| worker.handover(&config)).unwrap_or_default();
            let predecessor = self.leaving.remove(name);
            let options = StartOptions { started_together, predecessor, handover };
            let worker = reconcile::start(config, &own, &self.context, options, &self.drain);
            after.workers.insert_mut(name.clone(), worker);
        }
    }

    /// Drops the metric labels of a deleted repository.
    fn drop_metrics_when_terminated(&self, name: RepositoryName, worker: &reconcile::Handle) {
        let (terminated, catalog, metrics) = (worker.terminated(), self.catalog.clone(), self.context.metrics.clone());
        let begun = self.drain.clone();
        self.drain.spawn(async move {
            tokio::select! {
                () = begun.begun() => return,
                () = terminated.wait() => {}
            }
            if catalog.repository(&name).is_none() {
                metrics.forget_repository(name.as_str());
            }
        });
    }

    /// Retires services in all repositories of this origin that publish them.
    pub(super) fn retire(&self, gone: Vec<Arc<Service>>) -> impl Future<Output = Vec<Retired>> + Send + use<> {
        let mut of: BTreeMap<RepositoryName, Vec<Arc<Service>>> = BTreeMap::new();
        let (snapshot, publisher) = (self.catalog.snapshot(), self.context.publisher.clone());
        for service in gone {
            let mut repositories = publisher.repositories.repositories_of(&service.name);
            if !repositories.contains(&service.repository) {
                repositories.push(service.repository.clone());
            }
            repositories.retain(|repository| snapshot.owns(repository));
            for repository in repositories {
                of.entry(repository).or_default().push(service.clone());
            }
        }
        async move {
            let mut last: HashMap<ServiceName, (Generation, RepositoryName)> = HashMap::new();
            for (repository, gone) in of {
                let outcome = publisher.retire(&repository, &gone, SystemTime::now()).await;
                if let Err(error) = &outcome {
                    let services = gone.len();
                    tracing::error!(%error, services, "deleted services cannot be retired yet; the origin tries again");
                }
                let shown = || gone.iter().filter_map(|service| service.generation()).collect();
                let retired = outcome.unwrap_or_else(|_| shown());
                for (service, generation) in retired {
                    tracing::info!(%service, generation, %repository, "the service is deleted");
                    let last = last.entry(service).or_insert((generation, repository.clone()));
                    last.0 = generation.max(last.0);
                }
            }
            let retired = last.into_iter();
            retired.map(|(service, (generation, repository))| Retired { repository, service, generation }).collect()
        }
    }

    /// Vouches no longer for a service that has moved from an owned repository to one of another origin: the repository is
    /// released, and the services that remain are announced again.
    fn vouch_anew(&self, repository: &RepositoryName) {
        let (log, snapshot) = (&self.context.log, self.catalog.snapshot());
        log.append(EventKind::Released(repository.clone()));
        for service in snapshot.services.values().filter(|service| service.repository == *repository) {
            if let Some(current) = service.current() {
                log.append(EventKind::Descriptor(current.bytes().clone()));
            }
        }
        for seen in snapshot.workers.get(repository).into_iter().flat_map(|worker| worker.revisions()) {
            log.append(EventKind::Revision(seen));
        }
    }

    /// Shows what is published. Events are of owned repositories alone.
    pub(super) fn show(&self, repository: &RepositoryName, published: Started) {
        let snapshot = self.catalog.snapshot();
        let is_owned = snapshot.owns(repository);
        for (name, descriptor) in published.current {
            let Some(service) = snapshot.services.get(&name) else { continue };
            match published.pins.get(&name) {
                // Of an owned one the publisher says it.
                Some(pin) if !service.is_pinned() || (!is_owned && service.pin().as_ref() != Some(pin)) => {
                    service.pinned(pin.clone());
                }
                None if !is_owned => service.unpinned(),
                _ => {}
            }
            service.show(descriptor, |shown| {
                if is_owned {
                    self.context.log.append(EventKind::Descriptor(shown.bytes().clone()));
                } else {
                    self.context.part_sources.resolve_composed(&name);
                }
            });
        }
    }

    pub(super) fn announce_retired(&self, retired: Vec<Retired>) {
        self.catalog.retire(&retired);
        for Retired { service, generation, .. } in retired {
            self.context.part_sources.resolve_composed(&service);
            self.context.log.append(EventKind::Tombstone { service, generation });
        }
    }
}

fn remove_empty<T>(all: &mut BTreeMap<RepositoryName, BTreeMap<ServiceName, T>>, name: &RepositoryName) {
    if all.get(name).is_some_and(BTreeMap::is_empty) {
        all.remove(name);
    }
}

/// Joins refusals to one line.
fn joined(refusals: &[(&'static str, String)]) -> String {
    let lines: Vec<_> = refusals.iter().map(|(field, why)| format!("`{field}`: {why}")).collect();
    lines.join("; ")
}

/// Whether a repository still publishes from the same source by the same policy.
fn published_alike(before: &Definitions, now: &Definitions, repository: &RepositoryName) -> bool {
    let defined = before.repositories.get(repository).zip(now.repositories.get(repository));
    defined.is_some_and(|(before, now)| {
        let is_asked_alike = || {
            let (was, is) = before.document.valid().zip(now.document.valid())?;
            Some(before.by == now.by && was.verify == is.verify && is.has_same_upstream(was))
        };
        before == now || is_asked_alike().unwrap_or(false)
    })
}

/// The service of a document: the existing one if it is unchanged, or its successor.
fn service(
    name: &ServiceName,
    document: &RawDocument<ServiceConfig>,
    (definitions, oci): (&Definitions, OciConfig),
    known: Option<&Arc<Service>>,
    stays: bool,
    published: Option<Descriptor>,
) -> Result<Arc<Service>, ConfigError> {
    let oci = document.valid().map_or(OciChoice::Off, |document| definitions.oci(document, oci));
    if let Some(service) = known.filter(|known| stays && known.oci == oci) {
        return Ok(service.clone());
    }
    if oci == OciChoice::NoName {
        tracing::warn!(service = %name, "the service has no OCI form: its name is none of OCI. Rename it, or set `oci = false`");
    }
    let new = match document {
        RawDocument::Valid(document) => {
            Service::new(document, |name| definitions.kind_of(name), published)?.with_oci(oci)
        }
        RawDocument::Refused(refused) => Service::refused(name.clone(), refused.repository.clone(), published)?,
    };
    Ok(Arc::new(match known {
        None => new,
        Some(known) => new.replacing(known),
    }))
}

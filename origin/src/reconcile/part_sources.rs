//! Composed services: resolves, builds and lists the parts, each by the source of its own repository, or as a service has
//! published it.
//!
//! The worker of the first part's repository publishes the service. The workers of the other parts' repositories notify it
//! when their content changes. All methods that take services block.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::part::{self, Part};
use weir_protocol::revision_id::RevisionId;
use weir_source::{Age, Candidate, ResolvedServices, Service, ServiceFailure, Source, Tree};
use weir_tarball::{
    BuildContext, Built, ComposedTree, ContentKey, FolderPath, FrameSink, Limits, ListedEntry, Listing, TarballError,
};
use weir_upstream::RepositoryConfig;

use super::part_changes::PartChange;
use super::published_parts::{PartVersions, PublishedParts};
use super::signals::WorkerSignals;
use super::state::{Health, RepositoryState};
use crate::names::ServiceNames;

/// The sources of the origin's workers, by repository, and what services have published.
pub(crate) struct PartSources {
    running: Mutex<HashMap<RepositoryName, PartSource>>,
    published: PublishedParts,
    composed: Mutex<Composed>,
}

/// The services that are parts, each with the composed ones and the repositories that publish these.
type Composed = BTreeMap<ServiceName, BTreeMap<ServiceName, RepositoryName>>;

/// What a part is now, the key of its contents, and its age.
type FoundPart = (Part, ContentKey, Age);

/// The source of a running worker.
#[derive(Clone)]
pub(super) struct PartSource {
    pub(super) source: Arc<Source>,
    pub(super) config: watch::Receiver<Arc<RepositoryConfig>>,
    pub(super) state: watch::Receiver<RepositoryState>,
    pub(super) signals: WorkerSignals,
}

impl PartSource {
    /// A failure of this source. If it lacks something that a poll may fetch, that is triggered. The failure counts once the poll
    /// has ended, or at once if polls fail or must pause. It may pass with the first poll, too.
    fn failed(&self, failure: ServiceFailure) -> ServiceFailure {
        let (is_first, is_up) = {
            let state = self.state.borrow();
            (state.polls == 0, !matches!(state.health, Health::Unhealthy { .. }) && state.held_until.is_none())
        };
        let needs_poll = self.source.needs_poll(Instant::now());
        if needs_poll {
            self.signals.poll.notify_one();
        }
        ServiceFailure { awaits_poll: is_first || needs_poll && is_up, ..failure }
    }
}

impl PartSources {
    pub(super) fn new(published: PublishedParts) -> Self {
        Self { running: Mutex::default(), published, composed: Mutex::default() }
    }

    /// Looks up the names of services: other origins may move these.
    pub(super) fn in_cluster(&self, names: ServiceNames) {
        drop(self.published.names.set(names));
    }

    /// A service is defined: it is told when a part of it that is a service has another version.
    pub(crate) fn add_composed(&self, service: &Service) {
        let mut composed = self.composed();
        for part in service.part_services() {
            composed.entry(part.clone()).or_default().insert(service.name.clone(), service.repository.clone());
        }
    }

    /// A service is defined no longer.
    pub(crate) fn remove_composed(&self, service: &Service) {
        let mut composed = self.composed();
        for part in service.part_services() {
            let Some(of_part) = composed.get_mut(part) else { continue };
            of_part.remove(&service.name);
            if of_part.is_empty() {
                composed.remove(part);
            }
        }
    }

    /// Has the workers here that publish services with this part resolve them. Returns the other repositories that do.
    pub(crate) fn resolve_composed(&self, part: &ServiceName) -> Vec<RepositoryName> {
        let homes: BTreeSet<_> = self.composed().get(part).into_iter().flat_map(|of| of.values().cloned()).collect();
        let all = self.lock();
        let (here, elsewhere): (Vec<_>, Vec<_>) = homes.into_iter().partition(|home| all.contains_key(home));
        here.iter().filter_map(|home| all.get(home)).for_each(|home| home.signals.part_changes.notify());
        elsewhere
    }

    /// Has the workers here resolve all services with such parts. Returns how many workers that are.
    pub(crate) fn resolve_all(&self) -> usize {
        let homes: BTreeSet<_> = self.composed().values().flat_map(|of| of.values().cloned()).collect();
        let all = self.lock();
        homes.iter().filter_map(|home| all.get(home)).map(|home| home.signals.part_changes.notify()).count()
    }

    /// Reads the versions in force of the parts of these services that are services.
    pub(super) async fn versions(&self, composed: &[Arc<Service>]) -> PartVersions {
        self.published.versions(composed).await
    }

    fn composed(&self) -> MutexGuard<'_, Composed> {
        self.composed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the source of a worker that starts.
    pub(super) fn insert(&self, repository: RepositoryName, source: PartSource) {
        self.lock().insert(repository, source);
    }

    /// Removes the source of a worker that stops, unless the repository has another one by now.
    pub(super) fn remove(&self, repository: &RepositoryName, source: &Arc<Source>) {
        let mut all = self.lock();
        if all.get(repository).is_some_and(|known| Arc::ptr_eq(&known.source, source)) {
            all.remove(repository);
        }
    }

    /// Has the publishers of these parts resolve them: the content of their repository may have changed.
    pub(super) fn notify_publishers(&self, parts: &[Arc<Service>], change: &Arc<PartChange>) {
        let homes: BTreeSet<_> = parts.iter().filter_map(|part| Some(&part.part_of.as_ref()?.home)).collect();
        let all = self.lock();
        homes.iter().filter_map(|home| all.get(*home)).for_each(|home| home.signals.part_changes.put(change.clone()));
    }

    /// Resolves composed services: all parts of each, or none. Each repository is read once. Failures of one that was not polled
    /// since the start may pass by themselves. `versions`: what was read before.
    pub(super) fn resolve(
        &self,
        services: &[Arc<Service>],
        versions: &PartVersions,
        stop: &AtomicBool,
    ) -> ResolvedServices {
        let mut by_repository: BTreeMap<&RepositoryName, Vec<Arc<Service>>> = BTreeMap::new();
        let mut resolved = HashMap::new();
        for part in services.iter().flat_map(|service| &service.parts) {
            match part.of_service() {
                Some(service) => {
                    let Some(current) = versions.get(service).cloned() else { continue };
                    let found = current.and_then(|current| published_part(part, &current));
                    resolved.insert(Arc::as_ptr(part), found.map_err(|failure| of_part(part, failure)));
                }
                None => by_repository.entry(&part.repository).or_default().push(part.clone()),
            }
        }
        for (repository, parts) in by_repository {
            let mut awaits_poll = false;
            let found = self.get(repository).and_then(|PartSource { source, config, state, .. }| {
                awaits_poll = state.borrow().polls == 0;
                let config = config.borrow().clone();
                source.resolve(&config, &parts, stop)
            });
            let found =
                found.unwrap_or_else(|failure| parts.into_iter().map(|part| (part, Err(failure.clone()))).collect());
            resolved.extend(found.into_iter().map(|(part, found)| {
                let found = found.map(|found| {
                    let of = Part::of_repository(folder(&part).to_string(), part.repository.clone(), found.revision);
                    (of, found.key, *found.age)
                });
                let found = found.map_err(|failure| ServiceFailure { awaits_poll, ..of_part(&part, failure) });
                (Arc::as_ptr(&part), found)
            }));
        }
        let mut compose = |service: &Arc<Service>| {
            let found = service.parts.iter().map(|part| {
                let unknown = || ServiceFailure::transient("resolve", "it was not resolved".to_owned());
                resolved.remove(&Arc::as_ptr(part)).unwrap_or_else(|| Err(of_part(part, unknown())))
            });
            let found = all(found.collect())?;
            let (mut parts, mut keys, mut age) = (Vec::new(), Vec::new(), Box::<Age>::default());
            for (part, found) in service.parts.iter().zip(found) {
                let (at, key, of_this) = found;
                if let Some(behind) = &of_this.behind {
                    age.behind.get_or_insert_with(|| format!("part `{}`: {behind}", folder(part)));
                }
                age.parts.push(of_this);
                parts.push(at);
                keys.push(key);
            }
            let key = ContentKey::new(&service.repository, &service.selection, |key| {
                key.field(b"parts v1");
                let parts = parts.iter().zip(&keys);
                key.list(parts.flat_map(|(part, key)| [part.to.as_bytes(), key.as_bytes()]));
            });
            let revision = part::revision_of(&parts);
            Ok(Candidate { service: service.clone(), revision, version: None, parts, key, age, stepped_back: None })
        };
        services.iter().map(|service| (service.clone(), compose(service))).collect()
    }

    /// Builds the tarball of a composed service at the revisions of its parts.
    pub(super) fn build(
        &self,
        service: &Service,
        parts: &[Part],
        context: &BuildContext<'_>,
        sink: &dyn FrameSink,
    ) -> Result<Built, ServiceFailure> {
        let build = |tree: &ComposedTree<'_, Tree<'_>>| weir_tarball::build(tree, &service.selection, context, sink);
        self.with_tree(service, parts, ("build", context.limits, context.interrupt), build)
    }

    /// Lists what the tarball of a composed service would contain. Returns the revision, too, which is `at`.
    pub(super) fn list(
        &self,
        service: &Arc<Service>,
        at: Option<&RevisionId>,
        limits: &Limits,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(ListedEntry),
    ) -> Result<(RevisionId, Listing), ServiceFailure> {
        let services = std::slice::from_ref(service);
        let versions = self.published.runtime.block_on(self.versions(services));
        let resolved = self.resolve(services, &versions, stop);
        let candidates: Result<Vec<Candidate>, _> = resolved.into_iter().map(|(_, found)| found).collect();
        let Some(Candidate { revision, parts, .. }) = candidates?.pop() else { unreachable!("one was resolved") };
        if at.is_some_and(|at| *at != revision) {
            let reason = "a part has changed since the first page: begin with the first page";
            return Err(ServiceFailure::transient("resolve", reason.to_owned()));
        }
        let list = |tree: &ComposedTree<'_, Tree<'_>>| weir_tarball::list(tree, &service.selection, limits, stop, emit);
        Ok((revision, self.with_tree(service, &parts, ("select", limits, stop), list)?))
    }

    /// Composes the contents of the parts. If a repository must be polled for them, that is triggered.
    fn with_tree<'a, T>(
        &self,
        service: &'a Service,
        at: &[Part],
        (step, limits, stop): (&'static str, &Limits, &AtomicBool),
        work: impl FnOnce(&ComposedTree<'a, Tree<'a>>) -> Result<T, TarballError>,
    ) -> Result<T, ServiceFailure> {
        let open = |part: &'a Service| -> Result<(Tree<'a>, Option<(PartSource, RevisionId)>), ServiceFailure> {
            let is_it = |at: &&Part| {
                at.to == folder(part).as_str()
                    && at.service.as_ref() == part.of_service()
                    && (at.service.is_some() || at.repository == part.repository)
            };
            let other = || ServiceFailure::transient("build", "the version was composed of other parts".to_owned());
            let at = at.iter().find(is_it).ok_or_else(other)?;
            if let Some((digest, service)) = at.digest.zip(at.service.as_ref()) {
                let version = self.published.version(&at.repository, service, &digest)?;
                return Ok((self.published.tree(part, &version, limits, stop)?, None));
            }
            let of = self.get(&part.repository)?;
            let tree = of.source.tree(part, &at.revision_id).map_err(|failure| of.failed(failure))?;
            Ok((tree, Some((of, at.revision_id.clone()))))
        };
        // All are opened, even if one fails: one poll fetches all that is lacking.
        let opened = service.parts.iter().map(|part| {
            let (tree, of) = open(part).map_err(|failure| of_part(part, failure))?;
            Ok(((folder(part), tree), of))
        });
        let (trees, sources): (Vec<_>, Vec<_>) = all(opened.collect())?.into_iter().unzip();
        work(&ComposedTree::new(trees)).map_err(|error| {
            let (at, error) = match error {
                TarballError::Part { part, error } => (Some(part), *error),
                error => (None, error),
            };
            let index = at.unwrap_or_default();
            let of_part = |failure| if at.is_some() { of_part(&service.parts[index], failure) } else { failure };
            match &sources[index] {
                Some((of, revision)) => of.failed(of_part(of.source.failure(revision, step, &error))),
                None => of_part(ServiceFailure::of_tarball(step, &error)),
            }
        })
    }

    fn get(&self, repository: &RepositoryName) -> Result<PartSource, ServiceFailure> {
        let reason = || {
            format!(
                "repository `{repository}` is not followed by this origin: define it. In a cluster a part of another repository is a service"
            )
        };
        self.lock().get(repository).cloned().ok_or_else(|| ServiceFailure::transient("resolve", reason()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RepositoryName, PartSource>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The folder of a part.
fn folder(part: &Service) -> &FolderPath {
    &part.part_of.as_ref().expect("it is a part of a service").to
}

/// The results of all parts, or the failure to show: first one that no poll may end.
fn all<T>(results: Vec<Result<T, ServiceFailure>>) -> Result<Vec<T>, ServiceFailure> {
    let failures = results.iter().filter_map(|result| result.as_ref().err());
    match failures.min_by_key(|failure| failure.awaits_poll) {
        Some(failure) => Err(failure.clone()),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

/// The failure of a composed service that one of its parts has.
fn of_part(part: &Service, mut failure: ServiceFailure) -> ServiceFailure {
    let of = match part.of_service() {
        Some(service) => format!("service `{service}`"),
        None => format!("repository `{}`", part.repository),
    };
    failure.reason = format!("part `{}` ({of}): {}", folder(part), failure.reason);
    failure
}

/// What a part is now that is a service, by the version of that.
fn published_part(part: &Service, current: &Descriptor) -> Result<FoundPart, ServiceFailure> {
    let publication = current.publication();
    let refused = |reason: &str| Err(ServiceFailure::transient("resolve", reason.to_owned()));
    if !publication.parts.is_empty() {
        return refused("it has parts itself: name these in place of it");
    }
    if let Some(used) = part.used_generation().filter(|used| publication.generation < *used) {
        return refused(&format!(
            "its generation {} is lower than {used}, which was used: the store may have an older copy of its record. To publish \
             it all the same, refresh repository `{}`",
            publication.generation, part.repository,
        ));
    }
    let at = Part {
        service: Some(publication.service.clone()),
        digest: Some(publication.digest),
        ..Part::of_repository(folder(part).to_string(), publication.repository.clone(), publication.revision_id.clone())
    };
    let age = Age { generation: Some(publication.generation), ..Age::default() };
    Ok((at, ContentKey::from_bytes(*publication.digest.as_bytes()), age))
}

//! The repositories, each with its [writer](super::writer) task. Questions are answered from memory; only `row` reads a page.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use weir_ownership::Claim;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_source::Candidate;
use weir_store::{Area, ObjectWriter, Objects, Version};

use super::attempt::Attempt;
use super::pending_change::PendingChange;
use super::protection::Protection;
use super::repository::{Repository, Shared};
use super::writer::{MAX_WAITING, Request, Writer};
use crate::decide::draft::{Draft, VisibleChange};
use crate::error::PublishError;
use crate::stored::known::{Known, KnownService, Suspension};
use crate::stored::load::read_pages;
use crate::stored::page;
use crate::stored::record::RepositoryRecord;
use crate::stored::row::Row;

/// All repositories that have a record, or work here.
pub struct Repositories {
    pub(crate) shared: Arc<Shared>,
    map: RwLock<BTreeMap<RepositoryName, Handle>>,
    /// Those that had objects but no record at the start.
    without_record: BTreeSet<RepositoryName>,
}

/// A repository, and the way to its writer.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) repository: Arc<Repository>,
    requests: mpsc::Sender<Request>,
}

impl Handle {
    /// Lets the writer apply a change; see [`PendingChange::new`]. If the caller gives up, it is completed anyway.
    pub(crate) async fn change<T, E>(
        &self,
        services: Vec<ServiceName>,
        apply: impl FnOnce(&mut Draft<'_>) -> Result<(T, Vec<VisibleChange>), E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<PublishError> + Send + 'static,
    {
        let (pending_change, answer) = PendingChange::new(services, apply);
        self.send(pending_change, answer).await
    }

    /// As [`Handle::change`], for a change that nothing is shown or announced of. If `apply` fails, it must leave the draft
    /// unchanged.
    pub(crate) async fn edit<T: Send + 'static>(
        &self,
        services: Vec<ServiceName>,
        apply: impl FnOnce(&mut Draft<'_>) -> Result<T, PublishError> + Send + 'static,
    ) -> Result<T, PublishError> {
        self.change(services, |draft| Ok((apply(draft)?, Vec::new()))).await
    }

    pub(crate) async fn send<T, E: From<PublishError>>(
        &self,
        pending_change: PendingChange,
        answer: oneshot::Receiver<Result<T, E>>,
    ) -> Result<T, E> {
        let sent = self.requests.send(Request::Change(Box::new(pending_change))).await;
        sent.map_err(|_| PublishError::ShuttingDown)?;
        answer.await.map_err(|_| PublishError::ShuttingDown)?
    }

    /// Drops retained versions, and returns how many were found.
    pub(crate) async fn drop_versions(
        &self,
        versions: Vec<(ServiceName, TarballDigest)>,
    ) -> Result<usize, PublishError> {
        let services = versions.iter().map(|(service, _)| service.clone()).collect();
        let drop_versions = move |draft: &mut Draft<'_>| {
            let mut dropped = 0;
            for (service, digest) in &versions {
                dropped += draft.drop_versions(service, &[*digest])?;
            }
            Ok(dropped)
        };
        self.edit(services, drop_versions).await
    }

    /// Asks the writer for anything else.
    pub(crate) async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, PublishError> {
        let (done, answer) = oneshot::channel();
        self.requests.send(request(done)).await.map_err(|_| PublishError::ShuttingDown)?;
        answer.await.map_err(|_| PublishError::ShuttingDown)
    }
}

impl Repositories {
    pub(crate) fn new(shared: Arc<Shared>, without_record: BTreeSet<RepositoryName>) -> Self {
        Self { shared, map: RwLock::default(), without_record }
    }

    /// Adds a repository with its writer, unless it is there.
    pub(crate) fn add(&self, repository: Repository) -> Handle {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let handle = map.entry(repository.name.clone()).or_insert_with(|| {
            for (service, known) in &repository.known().services {
                self.shared.homes.set(service, &repository.name, known.defined_at);
            }
            let repository = Arc::new(repository);
            let (requests, waiting) = mpsc::channel(MAX_WAITING);
            tokio::spawn(Writer::new(self.shared.clone(), repository.clone()).run(waiting));
            Handle { repository, requests }
        });
        handle.clone()
    }

    /// A repository; a new one if it is not known yet.
    pub(crate) fn handle(&self, name: &RepositoryName) -> Handle {
        self.existing(name).unwrap_or_else(|| {
            let known = Known::new(RepositoryRecord::new(name.clone()), None);
            self.add(Repository::new(name.clone(), known, !self.is_in_cluster()))
        })
    }

    pub(crate) fn existing(&self, name: &RepositoryName) -> Option<Handle> {
        self.map().get(name).cloned()
    }

    pub(crate) fn handles(&self) -> Vec<Handle> {
        self.map().values().cloned().collect()
    }

    /// A repository that has a record or a queued change.
    pub(crate) fn repository(&self, name: &RepositoryName) -> Option<Arc<Repository>> {
        Some(self.map().get(name)?.repository.clone())
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Repository>> {
        self.map().values().map(|handle| handle.repository.clone()).collect()
    }

    fn map(&self) -> RwLockReadGuard<'_, BTreeMap<RepositoryName, Handle>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether other origins may own repositories of this store.
    pub fn is_in_cluster(&self) -> bool {
        self.shared.superseded.is_some()
    }

    /// What is published consists of these.
    pub fn objects(&self) -> &Objects {
        &self.shared.objects
    }

    /// A sink for the frames of a build. Garbage collection deletes none of them until it is dropped. Must be called
    /// within the runtime.
    pub fn begin_attempt(&self, repository: &RepositoryName) -> Attempt {
        let writer = ObjectWriter::new(&self.shared.objects, repository, Area::Public);
        let protection = Protection::new(self.handle(repository).repository.protected.clone());
        Attempt::new(writer, protection, self.shared.grace_period, self.shared.metrics.clone())
    }

    /// Stores an object that nothing references yet.
    pub(crate) async fn store(
        &self,
        repository: &RepositoryName,
        (area, kind): (Area, &str),
        bytes: Bytes,
        protection: &Protection,
    ) -> Result<ObjectDigest, PublishError> {
        self.shared.metrics.object_bytes.with_label_values(&[kind]).inc_by(bytes.len() as u64);
        protection.add(ObjectDigest::of(&bytes)).await;
        Ok(self.shared.objects.put(repository, area, bytes).await?)
    }

    /// Reads from a service's state in memory. `None`: the repository has no such service.
    pub(crate) fn known_service<T>(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
        read: impl FnOnce(&KnownService) -> T,
    ) -> Option<T> {
        Some(read(self.repository(repository)?.known().services.get(service)?))
    }

    /// Reads the stored row of a service.
    pub(crate) async fn row(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
    ) -> Result<Option<Row>, PublishError> {
        let Some(known) = self.repository(repository) else { return Ok(None) };
        let pages = known.known().record.pages.clone();
        let position = page::position(&pages, service);
        let read = read_pages(&self.shared.objects, repository, &pages, [position]).await?;
        let row = read.get(&position).map_or(Ok(None), |page| page.row(service));
        row.map_err(|error| PublishError::Object(error.to_string()))
    }

    /// Whether anything is known about a repository: it has a record, or work here.
    pub fn knows(&self, repository: &RepositoryName) -> bool {
        self.repository(repository).is_some()
    }

    /// The claim in the last known record of a repository. `None`: it has no record.
    pub fn claim(&self, repository: &RepositoryName) -> Option<Claim> {
        let repository = self.repository(repository)?;
        let known = repository.known();
        known.version.as_ref().and_then(|_| known.record.claim().ok())
    }

    /// The version of a repository's record that this origin knows.
    pub fn record_version(&self, repository: &RepositoryName) -> Option<Version> {
        self.repository(repository)?.known().version.clone()
    }

    /// The fence of a repository that this origin owns.
    pub fn fence(&self, repository: &RepositoryName) -> Option<u64> {
        self.repository(repository)?.is_taken().then(|| self.claim(repository))?.map(|claim| claim.fence)
    }

    /// The deleted services of a repository, with their last generations. Those that have moved are not deleted.
    pub fn tombstones(&self, repository: &RepositoryName) -> BTreeMap<ServiceName, Generation> {
        let Some(repository) = self.repository(repository) else { return BTreeMap::new() };
        let known = repository.known();
        let gone = known
            .services
            .iter()
            .filter(|(_, known)| known.current.is_none() && known.generation > 0 && !known.is_moving);
        gone.map(|(service, known)| (service.clone(), known.generation)).collect()
    }

    /// Whether a candidate's content is current already.
    pub fn is_at(&self, candidate: &Candidate) -> bool {
        let Candidate { service, key, .. } = candidate;
        self.known_service(&service.repository, &service.name, |known| known.is_at(key)).unwrap_or(false)
    }

    /// Those of the services that a repository does not hold.
    pub fn unheld(&self, repository: &RepositoryName, services: &[ServiceName]) -> Vec<ServiceName> {
        let holds = |service: &&ServiceName| self.known_service(repository, service, |known| known.holds());
        services.iter().filter(|service| !holds(service).unwrap_or(false)).cloned().collect()
    }

    /// Whether a service has a published version in a repository that it does not move away from.
    pub fn is_published(&self, service: &ServiceName) -> bool {
        self.repositories_of(service).iter().any(|repository| !self.is_withdrawn(repository, service))
    }

    /// Whether a record has a trace of the service: it was published from this store, or is defined.
    pub fn has_ever_had(&self, service: &ServiceName) -> bool {
        self.map().values().any(|handle| handle.repository.known().services.contains_key(service))
    }

    /// The repositories in which the service has a current version: for a while after a move there are two.
    pub fn repositories_of(&self, service: &ServiceName) -> Vec<RepositoryName> {
        let has_it = |handle: &Handle| {
            handle.repository.known().services.get(service).is_some_and(|known| known.current.is_some())
        };
        self.map().iter().filter(|(_, handle)| has_it(handle)).map(|(name, _)| name.clone()).collect()
    }

    /// The current version of a service, and its repository: not one that it has moved away from.
    pub fn current(&self, service: &ServiceName) -> Option<(RepositoryName, Arc<Descriptor>)> {
        let all = self.repositories_of(service).into_iter().filter_map(|repository| {
            let current = self.known_service(&repository, service, |known| {
                let current = known.current.as_ref().filter(|_| !known.is_moving)?;
                Some(current.descriptor.clone())
            });
            Some((repository, current??))
        });
        all.max_by_key(|(_, current)| current.version())
    }

    /// Why no version of a service is in force.
    pub fn why_unpublished(&self, service: &ServiceName) -> &'static str {
        let map = self.map();
        let rows = map.values().filter_map(|handle| {
            let known = handle.repository.known();
            known.services.get(service).map(|known| (known.generation, known.is_moving))
        });
        match rows.max() {
            None | Some((0, _)) => "it has no published version yet",
            Some((_, true)) => "it moves to another repository, and is not published there yet",
            Some((_, false)) => "it was deleted, and is not published again yet",
        }
    }

    /// The last generation of a service in a repository; 0 if it has none.
    pub fn last_generation(&self, repository: &RepositoryName, service: &ServiceName) -> Generation {
        self.known_service(repository, service, |known| known.generation).unwrap_or_default()
    }

    /// Whether a repository has a published version or a document of the service.
    pub fn has(&self, repository: &RepositoryName, service: &ServiceName) -> bool {
        self.known_service(repository, service, KnownService::is_present).unwrap_or(false)
    }

    /// The services that a repository has, and whether they are withdrawn.
    pub fn present(&self, repository: &RepositoryName) -> Vec<(ServiceName, bool)> {
        let Some(repository) = self.repository(repository) else { return Vec::new() };
        let known = repository.known();
        let present = known.services.iter().filter(|(_, known)| known.is_present());
        present.map(|(service, known)| (service.clone(), known.is_moving)).collect()
    }

    /// Whether a service moves away from a repository.
    pub fn is_withdrawn(&self, repository: &RepositoryName, service: &ServiceName) -> bool {
        self.known_service(repository, service, |known| known.is_moving).unwrap_or(false)
    }

    /// How often services were withdrawn from a repository: for [`Publisher::adopt`](crate::publisher::Publisher::adopt).
    pub fn withdrawals(&self, repository: &RepositoryName) -> u64 {
        self.repository(repository).map_or(0, |repository| repository.withdrawals.load(Ordering::SeqCst))
    }

    /// Whether the record of a repository has a document of operators for the service.
    pub fn defines(&self, repository: &RepositoryName, service: &ServiceName) -> bool {
        self.known_service(repository, service, |known| known.defined_at.is_some()).unwrap_or(false)
    }

    /// Another repository whose record stores a document of operators for the service.
    pub fn defined_elsewhere(&self, repository: &RepositoryName, service: &ServiceName) -> Option<RepositoryName> {
        self.shared.homes.other(service, repository)
    }

    /// The services whose document of operators in this repository is older than that in another one: they have moved.
    pub fn outdated(&self, repository: &RepositoryName) -> Vec<ServiceName> {
        let Some(repository) = self.repository(repository) else { return Vec::new() };
        let known = repository.known();
        let written = known.services.iter().filter_map(|(service, known)| Some((service.clone(), known.defined_at?)));
        let written = written.collect();
        drop(known);
        self.outdated_of(&written)
    }

    /// Whether a service that was withdrawn before the call may still be published in a repository.
    pub fn is_publishing(&self, repository: &RepositoryName) -> bool {
        self.repository(repository).is_some_and(|repository| repository.committing.try_lock().is_err())
    }

    /// Waits until running publications of services that were withdrawn before the call have ended.
    pub async fn wait_for_publications(&self, repository: &RepositoryName) {
        if let Some(repository) = self.repository(repository) {
            drop(repository.committing.lock().await);
        }
    }

    /// The suspended repositories.
    pub fn suspended(&self) -> BTreeMap<RepositoryName, Suspension> {
        let all = self.all().into_iter();
        all.filter_map(|repository| Some((repository.name.clone(), repository.suspension()?))).collect()
    }

    /// Why a repository is suspended.
    pub fn suspension(&self, repository: &RepositoryName) -> Option<Suspension> {
        self.repository(repository)?.suspension()
    }

    /// Whether the catalog has applied all reloads of a repository.
    pub fn is_applied(&self, repository: &RepositoryName) -> bool {
        self.repository(repository).is_none_or(|repository| {
            let Repository { reloads, applied_reloads, .. } = &*repository;
            reloads.load(Ordering::SeqCst) == applied_reloads.load(Ordering::SeqCst)
        })
    }

    /// Whether the catalog may lack definitions: a repository is suspended, was reloaded just now, or has lost its
    /// record.
    pub fn may_have_unknown_definitions(&self) -> bool {
        // In a statement of its own, which unlocks the map.
        let unknown = self.map().values().any(|handle| handle.repository.may_have_unknown_definitions());
        unknown || self.without_record() > 0
    }

    /// Whether operators ever defined anything, even if it was deleted since.
    pub fn operators_have_defined(&self) -> bool {
        self.map().values().any(|handle| handle.repository.known().record.operators_have_defined)
    }

    /// How many repositories have objects but still no record.
    pub fn without_record(&self) -> usize {
        let has_none = |name: &&RepositoryName| {
            self.repository(name).is_none_or(|repository| repository.known().version.is_none())
        };
        self.without_record.iter().filter(has_none).count()
    }

    /// Those of these services, with the times of their documents, that have a newer document in another repository.
    pub(crate) fn outdated_of(&self, written: &BTreeMap<ServiceName, u64>) -> Vec<ServiceName> {
        let is_newer =
            |service: &ServiceName, at: u64| self.shared.homes.newest(service).is_some_and(|newest| newest > at);
        written.iter().filter(|(name, at)| is_newer(name, **at)).map(|(name, _)| name.clone()).collect()
    }
}

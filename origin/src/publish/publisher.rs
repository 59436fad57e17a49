//! The publisher: the interface of this module. Each repository has its own [writer](super::writer) task. Reads are
//! served from memory or from one page.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::{ClusterId, RepositoryName, ServiceName};
use weir_source::{Candidate, Service};
use weir_store::{Area, Objects};

use super::attempt::Attempt;
use super::draft::{Draft, VisibleChange};
use super::error::{PublishError, VersionChangeError};
use super::known::{Known, KnownService};
use super::pending_change::PendingChange;
use super::protection::Protection;
use super::record::RepositoryRecord;
use super::request::{DefinitionChange, VersionChange};
use super::row::{Definition, unix_milliseconds};
use super::store_identity::StoreIdentity;
use super::writer::{MAX_WAITING, Repository, Request, Shared, Writer};
use crate::config::RetentionConfig;

/// Publishes, and changes versions and definitions. A method that writes returns when the change is durable and
/// visible. If the caller gives up, the change is completed anyway.
pub(crate) struct Publisher {
    pub(super) shared: Arc<Shared>,
    pub(super) retention: RetentionConfig,
    pub(super) repositories: RwLock<BTreeMap<RepositoryName, Handle>>,
    pub(super) identity: StoreIdentity,
    /// Repositories that had objects but no record when the publisher was opened.
    pub(super) without_record: BTreeSet<RepositoryName>,
}

#[derive(Clone)]
pub(super) struct Handle {
    pub(super) repository: Arc<Repository>,
    pub(super) requests: mpsc::Sender<Request>,
}

impl Publisher {
    /// The cluster of the origins that share this store. `None`: the record of its identity is damaged.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.identity.id.as_ref()?.parse().ok()
    }

    pub(crate) fn store_created_at(&self) -> SystemTime {
        self.identity.created_at
    }

    /// Whether other origins may own repositories of this store.
    pub(crate) fn is_in_cluster(&self) -> bool {
        self.shared.superseded.is_some()
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.shared.objects
    }

    /// A sink for the frames of a build. Garbage collection deletes none of them until it is dropped. Must be called
    /// within the runtime.
    pub(crate) fn begin_attempt(&self, repository: &RepositoryName) -> Attempt {
        let writer = self.shared.objects.writer(repository, Area::Public);
        let protection = Protection::new(self.handle(repository).repository.protected.clone());
        Attempt::new(writer, protection, self.shared.grace_period, self.shared.metrics.clone())
    }

    /// The recipe of the current version, the base of the next build. `None`: there is none, or it cannot be read.
    pub(crate) async fn recipe(&self, service: &Service) -> Option<Bytes> {
        let repository = &service.repository;
        let recipe = self.known_service(repository, &service.name, |known| known.current.as_ref()?.recipe)??;
        let read = self.shared.objects.get(repository, Area::Private, &recipe).await;
        read.inspect_err(|error| tracing::warn!(service = %service.name, %error, "the last recipe cannot be read: the next build reuses no frames")).ok()
    }

    /// Pins a service to a digest: the current one (`None`), or a retained one, which is published under a new
    /// generation. The caller must check that its objects can be read.
    pub(crate) async fn pin(
        &self,
        service: &Arc<Service>,
        digest: Option<&TarballDigest>,
        change: VersionChange,
    ) -> Result<(), VersionChangeError> {
        let (owned, digest) = (service.clone(), digest.copied());
        let pin = move |draft: &mut Draft<'_>| draft.pin(&owned, digest.as_ref(), &change);
        self.change(&self.handle(&service.repository), vec![service.name.clone()], pin).await
    }

    /// Lets a service follow its ref again. Returns false if it was not pinned.
    pub(crate) async fn unpin(
        &self,
        service: &Arc<Service>,
        change: VersionChange,
    ) -> Result<bool, VersionChangeError> {
        let owned = service.clone();
        let unpin = move |draft: &mut Draft<'_>| draft.unpin(&owned, &change);
        self.change(&self.handle(&service.repository), vec![service.name.clone()], unpin).await
    }

    /// Drops a retained version whose objects are lost.
    pub(crate) async fn drop_version(&self, service: &Service, digest: &TarballDigest) -> Result<(), PublishError> {
        self.drop_versions(&service.repository, vec![(service.name.clone(), *digest)]).await.map(drop)
    }

    /// Drops retained versions, and returns how many were found.
    pub(super) async fn drop_versions(
        &self,
        repository: &RepositoryName,
        versions: Vec<(ServiceName, TarballDigest)>,
    ) -> Result<usize, PublishError> {
        let services = versions.iter().map(|(service, _)| service.clone()).collect();
        let drop_versions = move |draft: &mut Draft<'_>| {
            let mut dropped = 0;
            for (service, digest) in &versions {
                dropped += draft.drop_versions(service, &[*digest])?;
            }
            Ok::<_, PublishError>((dropped, Vec::new()))
        };
        self.change(&self.handle(repository), services, drop_versions).await
    }

    /// Removes the rows of deleted services.
    pub(super) async fn drop_tombstones(
        &self,
        repository: &RepositoryName,
        services: Vec<ServiceName>,
    ) -> Result<(), PublishError> {
        let gone = services.clone();
        let drop_all = move |draft: &mut Draft<'_>| {
            gone.iter().try_for_each(|service| draft.drop_tombstone(service))?;
            Ok::<_, PublishError>(((), Vec::new()))
        };
        self.change(&self.handle(repository), services, drop_all).await
    }

    /// Retires deleted services in one write; nothing more is published for them. Returns those that had a current
    /// version, with its generation.
    pub(crate) async fn retire(
        &self,
        repository: &RepositoryName,
        services: &[Arc<Service>],
        now: SystemTime,
    ) -> Result<HashMap<ServiceName, Generation>, PublishError> {
        services.iter().for_each(|service| service.withdraw());
        let names: Vec<ServiceName> = services.iter().map(|service| service.name.clone()).collect();
        // A service of another repository has moved there.
        let is_home = |service: &Arc<Service>| (service.name.clone(), service.repository == *repository);
        let gone: Vec<_> = services.iter().map(is_home).collect();
        let retire = move |draft: &mut Draft<'_>| {
            let mut retired = HashMap::new();
            for (service, is_home) in gone {
                let generation = draft.retire(&service, is_home, now)?;
                retired.extend(generation.map(|generation| (service, generation)));
            }
            Ok::<_, PublishError>((retired, Vec::new()))
        };
        self.change(&self.handle(repository), names, retire).await
    }

    /// Retires services that are still at these generations and that another repository has published since.
    pub(super) async fn retire_at(
        &self,
        repository: &RepositoryName,
        services: Vec<(ServiceName, Generation)>,
        now: SystemTime,
    ) -> Result<(), PublishError> {
        let names = services.iter().map(|(service, _)| service.clone()).collect();
        let retire = move |draft: &mut Draft<'_>| {
            for (service, generation) in services {
                if draft.row(&service)?.generation == generation {
                    draft.retire(&service, false, now)?;
                }
            }
            Ok::<_, PublishError>(((), Vec::new()))
        };
        self.change(&self.handle(repository), names, retire).await
    }

    /// The repositories in which the service has a current version: for a while after a move there are two.
    pub(crate) fn repositories_of(&self, service: &ServiceName) -> Vec<RepositoryName> {
        let handles = self.repositories.read().unwrap_or_else(PoisonError::into_inner);
        let has_it = |handle: &Handle| {
            handle.repository.known().services.get(service).is_some_and(|known| known.current.is_some())
        };
        handles.iter().filter(|(_, handle)| has_it(handle)).map(|(name, _)| name.clone()).collect()
    }

    /// Whether a service that was withdrawn before the call may still be published in a repository.
    pub(crate) fn is_publishing(&self, repository: &RepositoryName) -> bool {
        self.existing(repository).is_some_and(|handle| handle.repository.committing.try_lock().is_err())
    }

    /// Waits until running publications of services that were withdrawn before the call have ended.
    pub(crate) async fn wait_for_publications(&self, repository: &RepositoryName) {
        if let Some(handle) = self.existing(repository) {
            drop(handle.repository.committing.lock().await);
        }
    }

    /// Stores a change of operators' definitions.
    pub(crate) async fn define(
        &self,
        repository: &RepositoryName,
        change: DefinitionChange,
    ) -> Result<(), PublishError> {
        let services: Vec<ServiceName> = change.services.iter().map(|(service, _)| service.clone()).collect();
        // The newest document of a service decides. What this origin has seen is older, whatever the clocks say.
        let seen = services.iter().filter_map(|service| self.shared.homes.newest(service)).max().unwrap_or_default();
        let written_at = unix_milliseconds(SystemTime::now()).max(seen.saturating_add(1));
        let define = move |draft: &mut Draft<'_>| {
            let mut rows = Vec::with_capacity(change.services.len());
            for (service, document) in change.services {
                let mut row = draft.row(&service)?;
                if row.is_moving && document.is_some() {
                    return Err(PublishError::Moving(service));
                }
                // What another repository stores is older than the generation that was passed on.
                let written_at = written_at.max(row.generation.saturating_add(1));
                row.definition = document.map(|document| Definition { written_at, document });
                rows.push(row);
            }
            rows.into_iter().for_each(|row| draft.put(row));
            if let Some(document) = change.repository {
                draft.record.definition = document;
                draft.set_changed();
            }
            draft.record.operators_have_defined = true;
            Ok::<_, PublishError>(((), Vec::new()))
        };
        self.change(&self.handle(repository), services, define).await
    }

    pub(super) async fn change<T, E>(
        &self,
        handle: &Handle,
        services: Vec<ServiceName>,
        apply: impl FnOnce(&mut Draft<'_>) -> Result<(T, Vec<VisibleChange>), E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<PublishError> + Send + 'static,
    {
        let (pending_change, answer) = PendingChange::new(services, apply);
        self.send(handle, pending_change, answer).await
    }

    pub(super) async fn send<T, E: From<PublishError>>(
        &self,
        handle: &Handle,
        pending_change: PendingChange,
        answer: oneshot::Receiver<Result<T, E>>,
    ) -> Result<T, E> {
        let sent = handle.requests.send(Request::Change(Box::new(pending_change))).await;
        sent.map_err(|_| PublishError::ShuttingDown)?;
        answer.await.map_err(|_| PublishError::ShuttingDown)?
    }

    /// Whether a candidate's content is current already.
    pub(crate) fn is_at(&self, candidate: &Candidate) -> bool {
        let Candidate { service, key, .. } = candidate;
        self.known_service(&service.repository, &service.name, |known| known.is_at(key)).unwrap_or(false)
    }

    /// Reads from a service's state in memory. `None`: the repository has no such service.
    pub(super) fn known_service<T>(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
        read: impl FnOnce(&KnownService) -> T,
    ) -> Option<T> {
        Some(read(self.existing(repository)?.repository.known().services.get(service)?))
    }

    pub(super) fn repositories(&self) -> Vec<Arc<Repository>> {
        self.handles().into_values().map(|handle| handle.repository).collect()
    }

    /// A repository that has a record or a queued change.
    pub(super) fn repository(&self, name: &RepositoryName) -> Option<Arc<Repository>> {
        self.existing(name).map(|handle| handle.repository)
    }

    pub(super) fn existing(&self, name: &RepositoryName) -> Option<Handle> {
        self.repositories.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(super) fn handles(&self) -> BTreeMap<RepositoryName, Handle> {
        self.repositories.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn handle(&self, name: &RepositoryName) -> Handle {
        self.existing(name).unwrap_or_else(|| {
            let known = Known::new(RepositoryRecord::new(name.clone()), None);
            self.add(Repository::new(name.clone(), known, !self.is_in_cluster()))
        })
    }

    pub(super) fn add(&self, repository: Repository) -> Handle {
        let mut repositories = self.repositories.write().unwrap_or_else(PoisonError::into_inner);
        let handle = repositories.entry(repository.name.clone()).or_insert_with(|| {
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
}

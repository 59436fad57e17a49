//! The publisher: what others call. Each repository has a [writer](super::writer) of its own, and requests read what is in
//! memory or a page.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::{RepositoryName, ServiceName};

use super::attempt::Attempt;
use super::draft::{Draft, VisibleChange};
use super::error::{PublishError, VersionChangeError};
use super::known::{Known, KnownService};
use super::pending_change::PendingChange;
use super::protection::Protection;
use super::record::RepositoryRecord;
use super::request::{Candidate, DefinitionChange, VersionChange};
use super::row::{Definition, unix_milliseconds};
use super::store_identity::StoreIdentity;
use super::writer::{MAX_WAITING, Repository, Request, Shared, Writer};
use crate::config::RetentionConfig;
use crate::service::Service;
use crate::store::{Area, Objects};

/// Publishes. Every method that writes returns when the write is durable, and shown; a call that is given up finishes what it
/// had begun.
pub(crate) struct Publisher {
    pub(super) shared: Arc<Shared>,
    pub(super) retention: RetentionConfig,
    pub(super) repositories: RwLock<BTreeMap<RepositoryName, Handle>>,
    pub(super) identity: StoreIdentity,
    /// Repositories that had objects and no record when it was opened.
    pub(super) without_record: BTreeSet<RepositoryName>,
}

#[derive(Clone)]
pub(super) struct Handle {
    pub(super) repository: Arc<Repository>,
    pub(super) requests: mpsc::Sender<Request>,
}

impl Publisher {
    /// When the store was first used.
    pub(crate) fn store_created_at(&self) -> SystemTime {
        self.identity.created_at
    }

    /// The objects.
    pub(crate) fn objects(&self) -> &Objects {
        &self.shared.objects
    }

    /// A sink for the frames of a build, which protects them from garbage collection until it is dropped. To be made within
    /// the runtime.
    pub(crate) fn begin_attempt(&self, repository: &RepositoryName) -> Attempt {
        let writer = self.shared.objects.writer(repository, Area::Public);
        let protection = Protection::new(self.handle(repository).repository.protected.clone());
        Attempt::new(writer, protection, self.shared.grace_period, self.shared.metrics.clone())
    }

    /// The recipe of a service's current version: the base of its next build. `None`: there is none, or it cannot be read.
    pub(crate) async fn recipe(&self, service: &Service) -> Option<Bytes> {
        let repository = &service.repository;
        let recipe = self.known_service(repository, &service.name, |known| known.current.as_ref()?.recipe)??;
        let read = self.shared.objects.get(repository, Area::Private, &recipe).await;
        read.inspect_err(|error| tracing::warn!(service = %service.name, %error, "a build begins from nothing")).ok()
    }

    /// Pins a service to a digest, the current one (`None`) or a retained one, which is published under a new generation.
    /// Whether its objects can be read is the caller's to see to.
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

    /// Lets a service follow its ref again. False: it was not pinned.
    pub(crate) async fn unpin(
        &self,
        service: &Arc<Service>,
        change: VersionChange,
    ) -> Result<bool, VersionChangeError> {
        let owned = service.clone();
        let unpin = move |draft: &mut Draft<'_>| draft.unpin(&owned, &change);
        self.change(&self.handle(&service.repository), vec![service.name.clone()], unpin).await
    }

    /// Drops a retained version that cannot be had again.
    pub(crate) async fn forget_version(&self, service: &Service, digest: &TarballDigest) -> Result<(), PublishError> {
        self.forget(&service.repository, vec![(service.name.clone(), *digest)]).await.map(drop)
    }

    /// Drops retained versions. How many there were.
    pub(super) async fn forget(
        &self,
        repository: &RepositoryName,
        versions: Vec<(ServiceName, TarballDigest)>,
    ) -> Result<usize, PublishError> {
        let services = versions.iter().map(|(service, _)| service.clone()).collect();
        let forget = move |draft: &mut Draft<'_>| {
            let mut dropped = 0;
            for (service, digest) in &versions {
                dropped += draft.forget(service, &[*digest])?;
            }
            Ok::<_, PublishError>((dropped, Vec::new()))
        };
        self.change(&self.handle(repository), services, forget).await
    }

    /// Forgets services that are gone.
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

    /// Takes deleted services of a repository out of what is current, all at once: nothing is published of them from this
    /// call on. Returns those of which anything was published, each with its last generation.
    pub(crate) async fn retire(
        &self,
        repository: &RepositoryName,
        services: &[Arc<Service>],
        now: SystemTime,
    ) -> Result<HashMap<ServiceName, Generation>, PublishError> {
        services.iter().for_each(|service| service.withdraw());
        let names: Vec<ServiceName> = services.iter().map(|service| service.name.clone()).collect();
        let gone = names.clone();
        let retire = move |draft: &mut Draft<'_>| {
            let mut retired = HashMap::new();
            for service in gone {
                let generation = draft.retire(&service, now)?;
                retired.extend(generation.map(|generation| (service, generation)));
            }
            Ok::<_, PublishError>((retired, Vec::new()))
        };
        self.change(&self.handle(repository), names, retire).await
    }

    /// Retires services that are still at these generations, which were superseded in another repository.
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
                    draft.retire(&service, now)?;
                }
            }
            Ok::<_, PublishError>(((), Vec::new()))
        };
        self.change(&self.handle(repository), names, retire).await
    }

    /// The repositories in which a version of the service is current: for a while also where it was moved away from.
    pub(crate) fn repositories_of(&self, service: &ServiceName) -> Vec<RepositoryName> {
        let handles = self.repositories.read().unwrap_or_else(PoisonError::into_inner);
        let has_it = |handle: &Handle| {
            handle.repository.known().services.get(service).is_some_and(|known| known.current.is_some())
        };
        handles.iter().filter(|(_, handle)| has_it(handle)).map(|(name, _)| name.clone()).collect()
    }

    /// Returns when nothing is published any more of services of the repository that were withdrawn before the call.
    pub(crate) async fn let_publications_end(&self, repository: &RepositoryName) {
        if let Some(handle) = self.existing(repository) {
            drop(handle.repository.committing.lock().await);
        }
    }

    /// Changes what operators defined in a repository. Durable when it returns.
    pub(crate) async fn define(
        &self,
        repository: &RepositoryName,
        change: DefinitionChange,
    ) -> Result<(), PublishError> {
        let services = change.services.iter().map(|(service, _)| service.clone()).collect();
        let written_at = unix_milliseconds(SystemTime::now());
        let define = move |draft: &mut Draft<'_>| {
            let mut rows = Vec::with_capacity(change.services.len());
            for (service, document) in change.services {
                let mut row = draft.row(&service)?;
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

    /// Whether the content of a candidate is what its service has.
    pub(crate) fn is_at(&self, candidate: &Candidate) -> bool {
        let Candidate { service, key, .. } = candidate;
        self.known_service(&service.repository, &service.name, |known| known.is_at(key)).unwrap_or(false)
    }

    /// A part of what is in memory of a service. `None`: there is no such service in the repository.
    pub(super) fn known_service<T>(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
        read: impl FnOnce(&KnownService) -> T,
    ) -> Option<T> {
        Some(read(self.existing(repository)?.repository.known().services.get(service)?))
    }

    /// The repositories that have a record.
    pub(super) fn repositories(&self) -> Vec<Arc<Repository>> {
        self.handles().into_values().map(|handle| handle.repository).collect()
    }

    /// A repository that has a record, or had a change.
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
            self.add(Repository::new(name.clone(), known))
        })
    }

    pub(super) fn add(&self, repository: Repository) -> Handle {
        let mut repositories = self.repositories.write().unwrap_or_else(PoisonError::into_inner);
        let handle = repositories.entry(repository.name.clone()).or_insert_with(|| {
            let repository = Arc::new(repository);
            let (requests, waiting) = mpsc::channel(MAX_WAITING);
            tokio::spawn(Writer::new(self.shared.clone(), repository.clone()).run(waiting));
            Handle { repository, requests }
        });
        handle.clone()
    }
}

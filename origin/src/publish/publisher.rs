//! The publisher: what others call. Each repository has a [writer](super::writer) of its own, and requests read what is in
//! memory or a page.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;
use weir_shared::descriptor::{Descriptor, Generation, Representation};
use weir_shared::digest::{ObjectDigest, TarballDigest};
use weir_shared::encoding::Encoding;
use weir_shared::manifest::{Frame, Manifest};
use weir_shared::name::{RepositoryName, ServiceName};

use super::attempt::Attempt;
use super::decision::Content;
use super::draft::{Draft, Found, Rules};
use super::error::{PublishError, VersionChangeError};
use super::known::{KnownService, Suspension, Until};
use super::load::{Loaded, load, without_record};
use super::metrics::PublishMetrics;
use super::order::Order;
use super::protection::Protection;
use super::request::{Cached, Candidate, DefinitionChange, Outcome, VersionChange};
use super::row::{Definition, unix_milliseconds};
use super::store_identity::StoreIdentity;
use super::stored_definitions::{Definitions, StoredDefinitions};
use super::writer::{MAX_WAITING, Repository, Request, Shared, Writer};
use crate::config::RetentionConfig;
use crate::data_dir::DataDir;
use crate::event_log::EventLog;
use crate::service::Service;
use crate::signing::Signer;
use crate::store::{Area, Objects, Records};
use crate::tarball::Built;

/// Repositories that are read at a time when a publisher is opened.
const CONCURRENT_LOADS: usize = 64;

/// How long a start waits to know whether there are objects without a record.
const LISTING_DEADLINE: Duration = Duration::from_secs(10);

/// What a publisher is opened with.
pub(crate) struct Options {
    pub(crate) generation_floor: Generation,
    pub(crate) retention: RetentionConfig,
    pub(crate) signer: Arc<Signer>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) metrics: PublishMetrics,
}

/// What was published before the process started.
#[derive(Debug, Default)]
pub(crate) struct Started {
    /// Of the services that are configured.
    pub(crate) current: HashMap<ServiceName, Descriptor>,
    /// Those of them that are pinned, each since when.
    pub(crate) pins: HashMap<ServiceName, SystemTime>,
    /// The services that are not configured any more since this start, each with its last generation.
    pub(crate) retired: Vec<(ServiceName, Generation)>,
}

/// Publishes. Every method that writes returns when the write is durable, and shown; a call that is given up finishes what it
/// had begun.
pub(crate) struct Publisher {
    pub(super) shared: Arc<Shared>,
    pub(super) retention: RetentionConfig,
    repositories: RwLock<BTreeMap<RepositoryName, Handle>>,
    pub(super) identity: StoreIdentity,
    /// Repositories that had objects and no record when it was opened.
    without_record: BTreeSet<RepositoryName>,
}

/// A repository that was read again, how often so far.
pub(crate) struct ReadAgain {
    repository: Arc<Repository>,
    number: u64,
}

impl ReadAgain {
    pub(crate) fn name(&self) -> &RepositoryName {
        &self.repository.name
    }
}

impl Started {
    /// Adds what is published of a repository.
    fn add(&mut self, repository: &Repository, is_configured: impl Fn(&ServiceName) -> bool) {
        for (service, known) in &repository.known().services {
            let Some(current) = known.current.as_ref().filter(|_| is_configured(service)) else { continue };
            let descriptor = &current.descriptor;
            let is_newer = |other: &Descriptor| other.version() < descriptor.version();
            if self.current.get(service).is_none_or(is_newer) {
                self.current.insert(service.clone(), Descriptor::clone(descriptor));
                self.pins.remove(service);
                self.pins.extend(known.pinned_since.map(|since| (service.clone(), since)));
            }
        }
    }
}

#[derive(Clone)]
struct Handle {
    repository: Arc<Repository>,
    requests: mpsc::Sender<Request>,
}

impl Publisher {
    /// Reads every record and page. The lock of `data_dir` is held as long as anything may be written. The record `cluster/store` is written when there is none.
    ///
    /// # Errors
    /// The store cannot be read just now, or its objects are another's. What is damaged suspends its repository, and is no error.
    pub(crate) async fn open(
        objects: Objects,
        records: Records,
        data_dir: DataDir,
        options: Options,
    ) -> Result<(Arc<Self>, StoredDefinitions), PublishError> {
        let Options { generation_floor, retention, signer, events, metrics } = options;
        let keys = records.list("repositories/").await?;
        let identity = StoreIdentity::read_or_create(&records, SystemTime::now(), keys.is_empty()).await?;
        match timeout(LISTING_DEADLINE, identity.check(&objects)).await {
            Ok(Err(error @ PublishError::ForeignObjects { .. })) => return Err(error),
            Ok(Ok(())) => {}
            // It is looked at again before anything is deleted.
            Ok(Err(_)) | Err(_) => tracing::warn!("whether the objects are of these records is not known"),
        }
        let listed = timeout(LISTING_DEADLINE, without_record(&objects, &keys)).await;
        let without_record = listed.ok().and_then(Result::ok).unwrap_or_else(|| {
            tracing::warn!(
                "objects cannot be listed: whether one of the repositories has lost its record is not known"
            );
            BTreeSet::new()
        });
        for repository in &without_record {
            tracing::error!(
                %repository,
                "it has objects and no record: if that was lost, put it back; it begins from nothing otherwise"
            );
        }
        metrics.store_created.set(i64::try_from(unix_milliseconds(identity.created_at) / 1000).unwrap_or(i64::MAX));
        let shared = Arc::new(Shared {
            objects,
            records,
            rules: Rules { generation_floor, versions: retention.versions, signer },
            grace_period: retention.gc_grace_period,
            events,
            metrics,
            written: Notify::new(),
            read_again: Notify::new(),
            _data_dir: data_dir,
        });
        let names = keys.into_iter().filter_map(|key| key.name().parse::<RepositoryName>().ok());
        let mut loads = stream::iter(names.map(|name| {
            let shared = shared.clone();
            let loaded = tokio::spawn(async move { (load(&shared.objects, &shared.records, &name).await, name) });
            async move { loaded.await.map_err(|_| PublishError::ShuttingDown) }
        }))
        .buffer_unordered(CONCURRENT_LOADS);
        let (shared_too, repositories) = (shared.clone(), RwLock::default());
        let publisher = Arc::new(Self { shared: shared_too, retention, repositories, identity, without_record });
        let mut definitions = Definitions::default();
        while let Some(loaded) = loads.next().await {
            let (Loaded { known, definitions: of_services, .. }, name) = loaded?;
            if let Some(suspension) = &known.suspension {
                let reason = &suspension.reason;
                tracing::error!(repository = %name, reason, "nothing is published of it until an operator confirms");
                shared.metrics.suspended_repositories.inc();
            }
            definitions.stored.had_any |= known.record.operators_have_defined;
            definitions.add(&name, known.record.definition.clone(), of_services);
            shared.metrics.retained_versions.add(i64::try_from(known.retained()).unwrap_or(i64::MAX));
            publisher.add(Repository::new(name, known));
        }
        Ok((publisher, definitions.stored))
    }

    /// Retires the services that are not configured any more (`configured`: each with its repository), signs again what was
    /// signed with other keys, and publishes again above the floor of generations. Once, after [`Publisher::open`].
    ///
    /// # Errors
    /// A record cannot be written.
    pub(crate) async fn start(
        &self,
        configured: &HashMap<ServiceName, RepositoryName>,
        now: SystemTime,
    ) -> Result<Started, PublishError> {
        let mut started = Started::default();
        let handles: Vec<Handle> = self.handles().into_values().collect();
        let keys = self.shared.rules.signer.public_keys();
        // A service that nobody seems to have defined may be defined in what cannot be read.
        let all_are_known = !self.may_have_unknown_definitions();
        for handle in &handles {
            // Nothing is written there; what can be read is served.
            if handle.repository.suspension().is_some() {
                continue;
            }
            let (services, mut gone) = self.due_at_start(&handle.repository, configured, &keys);
            if !all_are_known {
                gone.clear();
            }
            if services.is_empty() && handle.repository.known().record.signed_with == keys {
                continue;
            }
            let keys = keys.clone();
            let (raised, signed, retired) = self
                .change(handle, services.clone(), move |draft| apply_start(draft, &services, &gone, keys, now))
                .await?;
            if raised > 0 || signed > 0 || !retired.is_empty() {
                let (repository, retired) = (&handle.repository.name, retired.len());
                tracing::info!(%repository, raised, signed, retired, "what was published was brought up to date");
            }
            started.retired.extend(retired);
        }
        for Handle { repository, .. } in &handles {
            started.add(repository, |service| configured.contains_key(service));
        }
        Ok(started)
    }

    /// The services of a repository that a start changes, and those among them that are not configured any more.
    fn due_at_start(
        &self,
        repository: &Repository,
        configured: &HashMap<ServiceName, RepositoryName>,
        keys: &str,
    ) -> (Vec<ServiceName>, HashSet<ServiceName>) {
        let known = repository.known();
        let floor = self.shared.rules.generation_floor;
        let is_signed = known.record.signed_with == keys;
        let (mut due, mut gone) = (Vec::new(), HashSet::new());
        for (service, row) in &known.services {
            let is_gone = row.current.is_some() && self.is_gone(service, row.generation, &repository.name, configured);
            if is_gone {
                gone.insert(service.clone());
            }
            let has_versions = row.current.is_some() || !row.retained.is_empty();
            if is_gone || (row.current.is_some() && row.generation < floor) || (!is_signed && has_versions) {
                due.push(service.clone());
            }
        }
        (due, gone)
    }

    /// Whether a service is configured no longer, or is published in another repository since.
    fn is_gone(
        &self,
        service: &ServiceName,
        generation: Generation,
        repository: &RepositoryName,
        configured: &HashMap<ServiceName, RepositoryName>,
    ) -> bool {
        match configured.get(service) {
            None => true,
            Some(home) if home == repository => false,
            Some(home) => {
                let is_newer = |known: &KnownService| known.current.is_some() && known.generation > generation;
                self.known_service(home, service, is_newer).unwrap_or(false)
            }
        }
    }

    /// When the store was first used.
    pub(crate) fn store_created_at(&self) -> SystemTime {
        self.identity.created_at
    }

    /// The objects.
    pub(crate) fn objects(&self) -> &Objects {
        &self.shared.objects
    }

    /// The repositories of which nothing new is published until an operator confirms.
    pub(crate) fn suspended(&self) -> BTreeMap<RepositoryName, Suspension> {
        let handles = self.handles().into_iter();
        handles.filter_map(|(name, handle)| Some((name, handle.repository.suspension()?))).collect()
    }

    /// Whether operators may have defined anything that the catalogue does not have: something cannot be read, or was just
    /// read, or a record is gone.
    pub(crate) fn may_have_unknown_definitions(&self) -> bool {
        let repositories = self.repositories.read().unwrap_or_else(PoisonError::into_inner);
        let unknown = repositories.values().any(|handle| handle.repository.may_have_unknown_definitions());
        drop(repositories);
        unknown || self.without_record() > 0
    }

    /// How many repositories have objects, and no record still.
    pub(crate) fn without_record(&self) -> usize {
        let has_none = |name: &&RepositoryName| {
            self.existing(name).is_none_or(|handle| handle.repository.known().version.is_none())
        };
        self.without_record.iter().filter(has_none).count()
    }

    /// Waits until a repository was read again.
    pub(crate) async fn read_again(&self) {
        self.shared.read_again.notified().await;
    }

    /// The repositories that were read again and not [taken over](Publisher::taken_over).
    pub(crate) fn to_take_over(&self) -> Vec<ReadAgain> {
        let handles = self.handles().into_values().map(|Handle { repository, .. }| repository);
        let due = handles.filter_map(|repository| {
            let number = repository.read_again.load(Ordering::SeqCst);
            let is_due = number != repository.taken_over.load(Ordering::SeqCst) && !repository.is_unread();
            is_due.then_some(ReadAgain { repository, number })
        });
        due.collect()
    }

    /// What operators defined in a repository that was read again, and what is published of it.
    ///
    /// # Errors
    /// It cannot be read just now.
    pub(crate) async fn definitions_read_again(
        &self,
        ReadAgain { repository, .. }: &ReadAgain,
    ) -> Result<(StoredDefinitions, Started), PublishError> {
        let Loaded { known, definitions: of_services, .. } =
            load(&self.shared.objects, &self.shared.records, &repository.name).await;
        if let Some(unread) = known.suspension.filter(|suspension| suspension.until == Until::Read) {
            return Err(PublishError::Object(unread.reason));
        }
        let (mut definitions, mut published) = (Definitions::default(), Started::default());
        definitions.add(&repository.name, known.record.definition, of_services);
        published.add(repository, |_| true);
        Ok((definitions.stored, published))
    }

    /// The catalogue has it.
    pub(crate) fn taken_over(&self, ReadAgain { repository, number }: &ReadAgain) {
        repository.taken_over.store(*number, Ordering::SeqCst);
    }

    /// Why nothing new is published of one repository until an operator confirms.
    pub(crate) fn suspension(&self, repository: &RepositoryName) -> Option<Suspension> {
        self.existing(repository)?.repository.suspension()
    }

    /// An operator takes over what was read of a repository as its state: publishing goes on from there. False: it was not
    /// suspended.
    ///
    /// # Errors
    /// What is stored is not what is served, or cannot be read or written.
    pub(crate) async fn confirm(&self, repository: &RepositoryName) -> Result<bool, PublishError> {
        let Some(handle) = self.handles().remove(repository) else { return Ok(false) };
        let (done, answer) = oneshot::channel();
        handle.requests.send(Request::Confirm(done)).await.map_err(|_| PublishError::ShuttingDown)?;
        answer.await.map_err(|_| PublishError::ShuttingDown)?
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

    /// Publishes the contents that are known: what the service has already, one of its retained versions, or the current
    /// version of another service of the repository. For each candidate whether it needs a build.
    pub(crate) async fn publish_cached(
        &self,
        repository: &RepositoryName,
        candidates: &[Candidate],
        now: SystemTime,
    ) -> Result<Vec<Cached>, PublishError> {
        let handle = self.handle(repository);
        let refused = self.lift_suspension(&handle).await.err();
        let (mut cached, mut known, mut sources) = (Vec::with_capacity(candidates.len()), Vec::new(), HashMap::new());
        {
            let state = handle.repository.known();
            for (service, row) in &state.services {
                sources.extend(row.current.as_ref().map(|current| (current.key, service.clone())));
            }
            for (number, candidate) in candidates.iter().enumerate() {
                let own = state.services.get(&candidate.service.name);
                let (settled, source) = settled_or_source(candidate, own, &sources);
                if let Some(error) = refused.as_ref().filter(|_| !settled) {
                    cached.push(Cached::Refused(error.clone()));
                    continue;
                }
                cached.push(if settled { Cached::Settled } else { Cached::ToBuild });
                known.extend(source.map(|source| (number, candidate.clone(), source)));
            }
        }
        if known.is_empty() {
            return Ok(cached);
        }
        let services = known.iter().flat_map(|(_, candidate, source)| [candidate.service.name.clone(), source.clone()]);
        let published = self.change(&handle, services.collect(), move |draft| {
            let (mut published, mut shown) = (Vec::new(), Vec::new());
            for (number, Candidate { service, commit, key }, source) in known {
                // What fails is built: its build says why, and it holds up no other.
                if let Ok(Some((_, changes))) = draft.publish_known(&service, &commit, &key, &source, now) {
                    shown.extend(changes);
                    published.push(number);
                }
            }
            Ok::<_, PublishError>((published, shown))
        });
        for number in published.await? {
            cached[number] = Cached::Settled;
        }
        Ok(cached)
    }

    /// Reads again what could not be read, when a repository is suspended for that. The error: it is suspended still.
    async fn lift_suspension(&self, handle: &Handle) -> Result<(), PublishError> {
        if handle.repository.suspension().is_none() {
            return Ok(());
        }
        self.change(handle, Vec::new(), |_| Ok(((), Vec::new()))).await
    }

    /// Publishes what was built; its frames were put through the attempt.
    pub(crate) async fn publish_built(
        &self,
        candidate: &Candidate,
        built: Built,
        attempt: Attempt,
        now: SystemTime,
    ) -> Result<Outcome, PublishError> {
        let Candidate { service, commit, key } = candidate.clone();
        let (protection, time) = attempt.finish().await?;
        let (content, recipe) = self.store_built(&service.repository, built, &protection).await?;
        let name = service.name.clone();
        let found = Found { service, commit, key, content, recipe: Some(recipe) };
        let (mut order, answer) = Order::new(vec![name], move |draft| draft.publish(found, now));
        order.attempt = Some((protection, time));
        self.send(&self.handle(&candidate.service.repository), order, answer).await
    }

    /// Stores a version that was built again from its own commit, current or retained. Its representations are replaced
    /// where the bytes are others by now. False: there is no such version any more, or what was built is another content.
    pub(crate) async fn publish_rebuilt(
        &self,
        service: &Arc<Service>,
        version: &Descriptor,
        built: Built,
        attempt: Attempt,
    ) -> Result<bool, PublishError> {
        if built.digest != version.publication().digest {
            return Ok(false);
        }
        let (protection, time) = attempt.finish().await?;
        let (content, recipe) = self.store_built(&service.repository, built, &protection).await?;
        let owned = service.clone();
        let (mut order, answer) = Order::new(vec![service.name.clone()], move |draft| {
            draft.replace_representations(&owned, &content, recipe)
        });
        order.attempt = Some((protection, time));
        self.send(&self.handle(&service.repository), order, answer).await
    }

    /// Stores the manifests and the recipe of a build.
    async fn store_built(
        &self,
        repository: &RepositoryName,
        built: Built,
        protection: &Protection,
    ) -> Result<(Content, ObjectDigest), PublishError> {
        let mut representations = Vec::new();
        for (encoding, frames) in [(Encoding::Zstd, Some(built.zstd)), (Encoding::Gzip, built.gzip)] {
            let Some(frames) = frames else { continue };
            representations.push(self.store_representation(repository, encoding, frames, protection).await?);
        }
        let recipe = Bytes::from(built.recipe.to_bytes());
        let recipe = self.store(repository, (Area::Private, "recipe"), recipe, protection).await?;
        let Built { digest, sha256, size, omitted, .. } = built;
        Ok((Content { digest, sha256, size, omitted, representations }, recipe))
    }

    async fn store_representation(
        &self,
        repository: &RepositoryName,
        encoding: Encoding,
        frames: Vec<Frame>,
        protection: &Protection,
    ) -> Result<Representation, PublishError> {
        let count = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let (digest, size) = match frames[..] {
            [Frame { digest, size, .. }] => (digest, size),
            _ => {
                let manifest = Manifest::new(frames)?;
                let bytes = manifest.to_bytes()?;
                (self.store(repository, (Area::Public, "manifest"), bytes, protection).await?, manifest.size())
            }
        };
        Ok(Representation { encoding, dictionary: None, digest, size, frames: count })
    }

    async fn store(
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

    /// The repositories in which a version of the service is current: where it was moved away from, that ends with a restart.
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

    async fn change<T, E>(
        &self,
        handle: &Handle,
        services: Vec<ServiceName>,
        apply: impl FnOnce(&mut Draft<'_>) -> Result<(T, Vec<super::draft::Shown>), E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<PublishError> + Send + 'static,
    {
        let (order, answer) = Order::new(services, apply);
        self.send(handle, order, answer).await
    }

    async fn send<T, E: From<PublishError>>(
        &self,
        handle: &Handle,
        order: Order,
        answer: oneshot::Receiver<Result<T, E>>,
    ) -> Result<T, E> {
        let sent = handle.requests.send(Request::Change(order)).await;
        sent.map_err(|_| PublishError::ShuttingDown)?;
        answer.await.map_err(|_| PublishError::ShuttingDown)?
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

    fn existing(&self, name: &RepositoryName) -> Option<Handle> {
        self.repositories.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn handles(&self) -> BTreeMap<RepositoryName, Handle> {
        self.repositories.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn handle(&self, name: &RepositoryName) -> Handle {
        self.existing(name).unwrap_or_else(|| {
            let known = super::known::Known::new(super::record::RepositoryRecord::new(name.clone()), None);
            self.add(Repository::new(name.clone(), known))
        })
    }

    fn add(&self, repository: Repository) -> Handle {
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

/// Whether a candidate is published, or otherwise the service whose version has its content.
fn settled_or_source(
    candidate: &Candidate,
    own: Option<&KnownService>,
    sources: &HashMap<crate::tarball::ContentKey, ServiceName>,
) -> (bool, Option<ServiceName>) {
    let Candidate { service, key, .. } = candidate;
    // A pin holds what is there; where that was lost, something is better than nothing.
    if service.is_withdrawn() || (service.is_pinned() && service.current().is_some()) {
        return (true, None);
    }
    let Some(own) = own else { return (false, sources.get(key).cloned()) };
    if own.is_at(key)
        && let Some(current) = &own.current
    {
        let shown = service.current().is_some_and(|shown| {
            // Another repository's is newer where the service was in between.
            shown.publication().repository == service.repository && shown.version() >= current.descriptor.version()
        });
        let same = current.descriptor.publication().repository == service.repository
            && current.descriptor.followed_ref() == service.revision.to_string();
        // Found by another key, the digest is that of the row; the row has the representations.
        return if shown && same { (true, None) } else { (false, Some(service.name.clone())) };
    }
    let is_retained = own.retained.iter().any(|retained| retained.key == *key);
    let source = is_retained.then(|| service.name.clone());
    (false, source.or_else(|| sources.get(key).cloned()))
}

/// What a start changes in a repository: how many services were raised to the floor, how many versions signed again, and what
/// was retired.
#[expect(clippy::type_complexity, reason = "the counts are for one line of the log")]
fn apply_start(
    draft: &mut Draft<'_>,
    services: &[ServiceName],
    gone: &HashSet<ServiceName>,
    keys: String,
    now: SystemTime,
) -> Result<((usize, usize, Vec<(ServiceName, Generation)>), Vec<super::draft::Shown>), PublishError> {
    let (mut raised, mut signed, mut retired) = (0, 0, Vec::new());
    let signs = draft.record.signed_with != keys;
    for service in services {
        if gone.contains(service) {
            retired.extend(draft.retire(service, now)?.map(|generation| (service.clone(), generation)));
        }
        raised += usize::from(draft.raise_to_floor(service, now)?);
        if signs {
            signed += draft.sign_again(service)?;
        }
    }
    if signs {
        draft.record.signed_with = keys;
        draft.set_changed();
    }
    Ok(((raised, signed, retired), Vec::new()))
}

//! Opens a publisher at start: loads the published state, then brings it in line with the configuration.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, stream};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use weir_model::ServerClocks;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_source::DataDir;
use weir_store::{Objects, Records};

use super::delta_queue::DeltaQueue;
use super::draft::{Draft, Rules, VisibleChange};
use super::error::PublishError;
use super::generation;
use super::homes::Homes;
use super::known::KnownService;
use super::load::{Loaded, load, without_record};
use super::metrics::PublishMetrics;
use super::publisher::{Handle, Publisher};
use super::row::unix_milliseconds;
use super::store_identity::StoreIdentity;
use super::stored_definitions::{Definitions, StoredDefinitions};
use super::writer::{Repository, Shared};
use crate::config::RetentionConfig;
use crate::event_log::EventLog;
use crate::signing::Signer;
use crate::validity::Validity;

const CONCURRENT_LOADS: usize = 64;

/// A start waits at most this long for the list of repositories with objects and without a record.
const LISTING_DEADLINE: Duration = Duration::from_secs(10);

pub(crate) struct Options {
    pub(crate) generation_floor: Generation,
    /// Publishes versions with a generation of the far future again, at the clock.
    pub(crate) lower_generations: bool,
    /// The clocks that bound the time of publications.
    pub(crate) clocks: ServerClocks,
    pub(crate) retention: RetentionConfig,
    pub(crate) signer: Arc<Signer>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) metrics: PublishMetrics,
    /// Until when this origin may act for what it owns.
    pub(crate) validity: Validity,
    /// In a cluster: receives the repositories whose record another origin wrote, each at most once for each time that it
    /// is taken. `None`: this is the only origin, and owns everything.
    pub(crate) superseded: Option<mpsc::UnboundedSender<RepositoryName>>,
}

/// A deleted service, with its last generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Retired {
    /// The repository whose record remembers it.
    pub(crate) repository: RepositoryName,
    pub(crate) service: ServiceName,
    pub(crate) generation: Generation,
}

/// The published state after the start.
#[derive(Debug, Default)]
pub(crate) struct Started {
    /// The current descriptors of the configured services.
    pub(crate) current: HashMap<ServiceName, Descriptor>,
    /// Since when each pinned service is pinned.
    pub(crate) pins: HashMap<ServiceName, SystemTime>,
    /// Services that were retired.
    pub(crate) retired: Vec<Retired>,
}

impl Started {
    pub(super) fn add(&mut self, repository: &Repository, is_configured: impl Fn(&ServiceName) -> bool) {
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

impl Publisher {
    /// Reads every record and page. The publisher holds the lock of `data_dir` as long as it may write. It creates
    /// the record `cluster/store` if there is none.
    ///
    /// # Errors
    /// The store cannot be read, or its objects belong to another store. Damage is no error: it suspends the
    /// repository.
    pub(crate) async fn open(
        objects: Objects,
        records: Records,
        data_dir: DataDir,
        options: Options,
    ) -> Result<(Arc<Self>, StoredDefinitions), PublishError> {
        let Options { generation_floor, lower_generations, clocks, retention, signer, .. } = options;
        let Options { events, metrics, validity, superseded, .. } = options;
        let keys = records.list("repositories/").await?;
        let identity = StoreIdentity::read_or_create(&records, SystemTime::now(), keys.is_empty()).await?;
        match timeout(LISTING_DEADLINE, identity.check(&objects)).await {
            Ok(Err(error @ PublishError::ForeignObjects { .. })) => return Err(error),
            Ok(Ok(())) => {}
            // Garbage collection checks again before it deletes anything.
            Ok(Err(_)) | Err(_) => tracing::warn!(
                "the identity of the object store could not be checked; the check is repeated before anything is deleted"
            ),
        }
        let listed = timeout(LISTING_DEADLINE, without_record(&objects, &keys)).await;
        let without_record = listed.ok().and_then(Result::ok).unwrap_or_else(|| {
            tracing::warn!(
                "the objects cannot be listed: the origin cannot tell whether a repository has lost its record"
            );
            BTreeSet::new()
        });
        for repository in &without_record {
            tracing::error!(
                %repository,
                "the repository has objects but no record: restore its record from a backup, or it starts empty"
            );
        }
        if lower_generations {
            generation::check_lowering(generation_floor, SystemTime::now()).map_err(PublishError::NotLowered)?;
        }
        metrics.store_created.set(i64::try_from(unix_milliseconds(identity.created_at) / 1000).unwrap_or(i64::MAX));
        let shared = Arc::new(Shared {
            objects,
            records,
            rules: Rules { generation_floor, lower_generations, clocks, versions: retention.versions, signer },
            grace_period: retention.gc_grace_period,
            events,
            metrics,
            written: Notify::new(),
            delta_queue: DeltaQueue::default(),
            reloaded: Notify::new(),
            homes: Homes::default(),
            unapplied: std::sync::Mutex::default(),
            validity,
            superseded,
            _data_dir: data_dir,
        });
        let names = keys.into_iter().filter_map(|key| key.name().parse::<RepositoryName>().ok());
        let mut loads = stream::iter(names.map(|name| {
            let shared = shared.clone();
            let loaded = tokio::spawn(async move { (load(&shared.objects, &shared.records, &name, &[]).await, name) });
            async move { loaded.await.map_err(|_| PublishError::ShuttingDown) }
        }))
        .buffer_unordered(CONCURRENT_LOADS);
        let (shared_too, repositories) = (shared.clone(), RwLock::default());
        let publisher = Arc::new(Self { shared: shared_too, retention, repositories, identity, without_record });
        let mut definitions = Definitions::default();
        while let Some(loaded) = loads.next().await {
            let (mut loaded, name) = loaded?;
            let of_services = loaded.definitions();
            let Loaded { known, .. } = loaded;
            if let Some(suspension) = &known.suspension {
                let reason = &suspension.reason;
                tracing::error!(repository = %name, reason, "publishing is suspended for the repository");
                shared.metrics.suspended_repositories.inc();
            }
            definitions.add(&name, known.record.definition.clone(), of_services);
            shared.metrics.retained_versions.add(i64::try_from(known.retained()).unwrap_or(i64::MAX));
            publisher.add(Repository::new(name, known, !publisher.is_in_cluster()));
        }
        Ok((publisher, definitions.stored))
    }

    /// Retires services that are not `configured`, signs versions again if the keys have changed, and republishes
    /// services below the floor of generations. Call it once, after [`Publisher::open`]. In a cluster nothing is owned
    /// then, so nothing is written.
    ///
    /// # Errors
    /// A record cannot be written.
    pub(crate) async fn start(
        &self,
        configured: &HashSet<ServiceName>,
        now: SystemTime,
    ) -> Result<Started, PublishError> {
        let mut started = Started::default();
        // Before the floor is applied: a superseded version must not be republished.
        self.retire_moved_services(now).await;
        let handles: Vec<Handle> = self.handles().into_values().collect();
        for handle in handles.iter().filter(|handle| handle.repository.is_taken()) {
            let is_configured = |service: &ServiceName| configured.contains(service);
            started.retired.extend(self.align_one(handle, &is_configured, now).await?);
        }
        for Handle { repository, .. } in &handles {
            started.add(repository, |service| configured.contains(service));
        }
        Ok(started)
    }

    /// Brings a repository in line with the configured services and with the keys of now. Returns what it has retired.
    pub(super) async fn align_one(
        &self,
        handle: &Handle,
        is_configured: &(impl Fn(&ServiceName) -> bool + Sync),
        now: SystemTime,
    ) -> Result<Vec<Retired>, PublishError> {
        // A service that no readable document defines may be defined in an unreadable one.
        let gone = if self.may_have_unknown_definitions() {
            HashSet::new()
        } else {
            let known = handle.repository.known();
            let current = known.services.iter().filter(|(_, row)| row.current.is_some());
            current.filter(|(service, _)| !is_configured(service)).map(|(service, _)| service.clone()).collect()
        };
        self.update(handle, gone, self.shared.rules.signer.public_keys(), now).await
    }

    /// Retires the services that are `gone`, signs versions again if other `keys` signed them, and republishes services
    /// below the floor of generations. Returns what it has retired.
    pub(super) async fn update(
        &self,
        handle: &Handle,
        gone: HashSet<ServiceName>,
        keys: String,
        now: SystemTime,
    ) -> Result<Vec<Retired>, PublishError> {
        // A suspended repository is served, and not written.
        if handle.repository.suspension().is_some() {
            return Ok(Vec::new());
        }
        let (services, is_signed) = self.due_for_update(&handle.repository, &gone, &keys, now);
        if services.is_empty() && is_signed {
            return Ok(Vec::new());
        }
        let changed = services.clone();
        let apply = move |draft: &mut Draft<'_>| apply_update(draft, &services, &gone, keys, now);
        let (raised, signed, retired) = self.change(handle, changed, apply).await?;
        let repository = &handle.repository.name;
        if raised > 0 || signed > 0 || !retired.is_empty() {
            let retired = retired.len();
            tracing::info!(%repository, raised, signed, retired, "the published state was updated");
        }
        let retired = retired.into_iter();
        Ok(retired
            .map(|(service, generation)| Retired { repository: repository.clone(), service, generation })
            .collect())
    }

    /// The services that an update changes, and whether the keys are those that have signed.
    fn due_for_update(
        &self,
        repository: &Repository,
        gone: &HashSet<ServiceName>,
        keys: &str,
        now: SystemTime,
    ) -> (Vec<ServiceName>, bool) {
        let known = repository.known();
        let bounds = self.shared.rules.bounds(now);
        let is_signed = known.record.signed_with == keys;
        let is_due = |service: &ServiceName, row: &KnownService| {
            let has_versions = row.current.is_some() || !row.retained.is_empty();
            gone.contains(service)
                || (row.holds() && row.generation < *bounds.start())
                || row.generation > *bounds.end()
                || (!is_signed && has_versions)
        };
        let due = known.services.iter().filter(|(service, row)| is_due(service, row));
        (due.map(|(service, _)| service.clone()).collect(), is_signed)
    }
}

/// Applies an update to a repository. Returns how many services were raised to the floor, how many versions were signed
/// again, and the retired services.
#[expect(clippy::type_complexity, reason = "the counts are for one line of the log")]
fn apply_update(
    draft: &mut Draft<'_>,
    services: &[ServiceName],
    gone: &HashSet<ServiceName>,
    keys: String,
    now: SystemTime,
) -> Result<((usize, usize, Vec<(ServiceName, Generation)>), Vec<VisibleChange>), PublishError> {
    let (mut raised, mut signed, mut retired) = (0, 0, Vec::new());
    let signs = draft.record.signed_with != keys;
    let bounds = draft.rules.bounds(now);
    for service in services {
        if gone.contains(service) {
            retired.extend(draft.retire(service, true, now)?.map(|generation| (service.clone(), generation)));
        }
        raised += usize::from(draft.republish_in_bounds(service, &bounds, now)?);
        if signs {
            signed += draft.renew_signatures(service)?;
        }
    }
    if signs {
        draft.record.signed_with = keys;
        draft.set_changed();
    }
    Ok(((raised, signed, retired), Vec::new()))
}

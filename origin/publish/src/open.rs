//! Opens a publisher at start: loads the published state.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, stream};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use weir_model::ServerClocks;
use weir_protocol::descriptor::Generation;
use weir_protocol::name::RepositoryName;
use weir_store::{Objects, RecordKey, Records};
use weir_upstream::DataDir;

use super::config::RetentionConfig;
use super::decide::draft::Rules;
use super::decide::generation;
use super::decide::signer::Signer;
use super::error::PublishError;
use super::freezes::Freezes;
use super::metrics::PublishMetrics;
use super::plans::Plans;
use super::publisher::Publisher;
use super::read::queries::Queries;
use super::read::reloads::Reloads;
use super::stored::load::{Loaded, load, without_record};
use super::stored::row::unix_milliseconds;
use super::stored::store_identity::StoreIdentity;
use super::stored::stored_definitions::{Definitions, StoredDefinitions};
use super::write::delta_queue::DeltaQueue;
use super::write::deltas::Deltas;
use super::write::homes::Homes;
use super::write::mirror::Mirrors;
use super::write::ownership::Ownership;
use super::write::repositories::Repositories;
use super::write::repository::{Announce, MayStoreBlobs, Repository, Shared};
use super::write::validity::Validity;

const CONCURRENT_LOADS: usize = 64;

/// A start waits at most this long for the list of repositories with objects and without a record.
const LISTING_DEADLINE: Duration = Duration::from_secs(10);

/// What a publisher is opened with, besides its store.
#[derive(Clone)]
pub struct Options {
    /// No generation is below it.
    pub generation_floor: Generation,
    /// Publishes versions with a generation of the far future again, at the clock.
    pub lower_generations: bool,
    /// The clocks that bound the time of publications.
    pub clocks: ServerClocks,
    /// How long versions are stored.
    pub retention: RetentionConfig,
    /// Signs descriptors.
    pub signer: Arc<Signer>,
    /// Called for each publication and revision that became visible, in their order.
    pub announce: Announce,
    /// Families that the caller has registered.
    pub metrics: PublishMetrics,
    /// Until when this origin may act for what it owns.
    pub validity: Validity,
    /// In a cluster: receives the repositories whose record another origin wrote, each at most once for each time that it
    /// is taken. `None`: this is the only origin, and owns everything.
    pub superseded: Option<mpsc::UnboundedSender<RepositoryName>>,
    /// In a cluster: whether all origins that may own a repository know that descriptors reference blobs. `None`: this is the
    /// only origin.
    pub may_store_blobs: Option<MayStoreBlobs>,
}

/// Reads every record and page. The publisher holds the lock of `data_dir` as long as it may write. It creates
/// the record `cluster/store` if there is none.
///
/// # Errors
/// The records cannot be read ([`PublishError::Record`]), or the objects belong to another store. Damage is no error: it
/// suspends the repository.
pub async fn open(
    objects: Objects,
    records: Records,
    data_dir: DataDir,
    options: Options,
) -> Result<(Arc<Publisher>, StoredDefinitions), PublishError> {
    let Options { generation_floor, lower_generations, clocks, retention, signer, .. } = options;
    let Options { announce, metrics, validity, superseded, may_store_blobs, .. } = options;
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
    let without_record = report_without_record(&objects, &keys).await;
    if lower_generations {
        generation::check_lowering(generation_floor, SystemTime::now()).map_err(PublishError::NotLowered)?;
    }
    metrics.store_created.set(i64::try_from(unix_milliseconds(identity.created_at) / 1000).unwrap_or(i64::MAX));
    let (plans, freezes, versions) = (Plans::default(), Freezes::default(), retention.versions);
    let shared = Arc::new(Shared {
        objects,
        records,
        rules: Rules { generation_floor, lower_generations, clocks, versions, signer, plans, freezes },
        grace_period: retention.gc_grace_period,
        announce,
        metrics,
        delta_queue: DeltaQueue::default(),
        reloaded: Notify::new(),
        homes: Homes::default(),
        unapplied: Mutex::default(),
        validity,
        superseded,
        may_store_blobs,
        _data_dir: data_dir,
    });
    let names = keys.into_iter().filter_map(|key| key.name().parse::<RepositoryName>().ok());
    let mut loads = stream::iter(names.map(|name| {
        let shared = shared.clone();
        let loaded = tokio::spawn(async move { (load(&shared.objects, &shared.records, &name, &[]).await, name) });
        async move { loaded.await.map_err(|_| PublishError::ShuttingDown) }
    }))
    .buffer_unordered(CONCURRENT_LOADS);
    let repositories = Arc::new(Repositories::new(shared.clone(), without_record));
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
        repositories.add(Repository::new(name, known, !repositories.is_in_cluster()));
    }
    let publisher = Publisher {
        queries: Queries { repositories: repositories.clone(), retention, read_positions: Default::default() },
        ownership: Ownership { repositories: repositories.clone() },
        reloads: Reloads { repositories: repositories.clone() },
        deltas: Deltas { repositories: repositories.clone() },
        mirrors: Mirrors { repositories: repositories.clone() },
        plans: repositories.shared.rules.plans.clone(),
        freezes: repositories.shared.rules.freezes.clone(),
        repositories,
        identity,
    };
    Ok((Arc::new(publisher), definitions.stored))
}

/// The repositories that have objects but no record, as far as this can be told in time.
async fn report_without_record(objects: &Objects, keys: &[RecordKey]) -> BTreeSet<RepositoryName> {
    let Ok(Ok(without_record)) = timeout(LISTING_DEADLINE, without_record(objects, keys)).await else {
        tracing::warn!("the objects cannot be listed: the origin cannot tell whether a repository has lost its record");
        return BTreeSet::new();
    };
    for repository in &without_record {
        tracing::error!(
            %repository,
            "the repository has objects but no record: restore its record from a backup, or it starts empty"
        );
    }
    without_record
}

//! Composition: every part from its configuration, joined.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use bytes::Bytes;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::task::TaskTracker;
use weir_shared::descriptor::Descriptor;
use weir_shared::name::{RepositoryName, ServiceName};
use weir_shared::process::admin::Admin;
use weir_shared::process::serve::{self, HttpMetrics};
use weir_shared::process::shutdown::Drain;
use weir_shared::process::tls::{self, ClientAuth};

use crate::catalog::Catalog;
use crate::census::Census;
use crate::config::Config;
use crate::data_dir::DataDir;
use crate::edge_api::{EdgeApi, Events};
use crate::event_log::EventLog;
use crate::metrics::Metrics;
use crate::publisher::{Published, Publisher};
use crate::repository_agent::{self, Crew, RepositoryState};
use crate::service::{Condition, Service};
use crate::signing::Signer;
use crate::versions::Versions;
use crate::{access, housekeeping, status};

/// How long the threads of jobs that were told to stop are waited for when the origin stops.
const THREADS_DEADLINE: Duration = Duration::from_secs(5);

/// A running origin.
pub struct Running {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    catalog: Arc<Catalog>,
    access: watch::Receiver<Option<Bytes>>,
    versions: Versions,
    threads: TaskTracker,
    drain: Drain,
}

/// Starts an origin. Returns when it listens and what was published before is served; no upstream is waited for.
///
/// # Errors
/// The configuration makes no sense, the data directory is in use or cannot be used, a certificate cannot be read, or
/// an address cannot be bound.
pub async fn start(config: Config) -> anyhow::Result<Running> {
    config.validate()?;
    let started = SystemTime::now();
    if config.operator_listen.is_some() {
        tracing::info!("operator_listen is set; this version has no operators' API and does not listen there");
    }
    let registry = Registry::new();
    let metrics = Metrics::register(&registry)?;
    metrics.start_time.set(started.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()));
    let http = HttpMetrics::register(&registry)?;
    let signer = Arc::new(Signer::new(config.signing.read()?));
    metrics.signing_keys.set(i64::try_from(config.signing.keys.len()).unwrap_or(i64::MAX));
    let client_auth = ClientAuth::Required { ca: &config.tls.client_ca };
    let server_tls = tls::server_config(&config.tls.certificate, &config.tls.key, client_auth)?;
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| anyhow::anyhow!("cannot listen on listen = \"{}\": {error}", config.listen))?;
    let address = listener.local_addr()?;

    let log = Arc::new(EventLog::new(&config.limits, metrics.clone()));
    let (data_dir, publisher, published) = load(&config, signer.clone(), log.clone(), metrics.clone(), started).await?;
    let mut current: HashMap<ServiceName, Descriptor> = published.current.into_iter().collect();
    let mut services = BTreeMap::new();
    for service in &config.services {
        let current = current.remove(&service.name);
        services.insert(service.name.clone(), Arc::new(Service::new(service, current)?));
    }
    for (service, since) in published.pins {
        services.get(&service).inspect(|service| service.pinned(since));
    }
    let census = Arc::new(Census::new(services.values().cloned().collect(), metrics.clone()));
    let drain = Drain::new();
    let access = access::start(&config.access, &metrics, &drain).await?;
    let crew =
        Crew::new(publisher.clone(), data_dir, census, metrics.clone(), &config.limits, config.repositories.len());
    let agents = config.repositories.iter().map(|repository| {
        let own = services.values().filter(|service| service.repository == repository.name).cloned().collect();
        (repository.name.clone(), repository_agent::start(repository.clone(), own, &crew, &drain))
    });
    let catalog = Arc::new(Catalog::new(agents.collect(), services, published.retired));
    drain.spawn(housekeeping::run(publisher.clone(), crew.published.clone(), drain.clone()));

    let verifications = config.limits.concurrent_verifications;
    for (work, limit) in [
        ("fetches", config.limits.concurrent_fetches),
        ("fetches_of_a_host", config.limits.concurrent_fetches_per_host),
        ("requests_of_a_host_per_minute", config.limits.requests_per_minute_per_host as usize),
        ("builds", config.limits.concurrent_builds),
        ("verifications", verifications),
        ("gzips", config.limits.concurrent_gzips),
    ] {
        metrics.permits_limit.with_label_values(&[work]).set(i64::try_from(limit).unwrap_or(i64::MAX));
    }
    let published = catalog.clone();
    let current = move || published.services().filter_map(|service| service.generation()).collect();
    let heartbeats = signer.beat(&config.name, current, log.clone(), &drain);
    let events =
        Events::new(log, catalog.clone(), access.clone(), config.limits.event_streams, metrics.clone(), &drain);
    let versions = Versions::new(catalog.clone(), publisher.clone());
    let api = EdgeApi::new(catalog.clone(), publisher, metrics, &config.limits, events, heartbeats);
    serve::tcp(listener, Some(server_tls), api, http.listener("edge"), &drain);
    let admin_address = match config.admin_listen {
        None => None,
        Some(listen) => {
            let (ready, shown, name) = (catalog.clone(), catalog.clone(), config.name.clone());
            let admin = Admin {
                registry,
                ready: Arc::new(move || ready.ready().into()),
                status: Arc::new(move |_| Ok(status::status(&name, started, &shown))),
                drain: drain.clone(),
            };
            match admin.start(listen, &http).await {
                Ok(address) => Some(address),
                Err(error) => {
                    drain.cut().await;
                    return Err(error);
                }
            }
        }
    };
    Ok(Running { address, admin_address, catalog, access, versions, threads: crew.threads, drain })
}

/// Opens the data directory and reads what was published.
async fn load(
    config: &Config,
    signer: Arc<Signer>,
    log: Arc<EventLog>,
    metrics: Metrics,
    now: SystemTime,
) -> anyhow::Result<(DataDir, Arc<Publisher>, Published)> {
    let (root, floor) = (config.data_dir.clone(), config.generation_floor);
    let names: Vec<ServiceName> = config.services.iter().map(|service| service.name.clone()).collect();
    let repositories: Vec<RepositoryName> = config.repositories.iter().map(|each| each.name.clone()).collect();
    spawn_blocking(move || {
        let data_dir = DataDir::open(&root)?;
        for unused in data_dir.unused_mirrors(&repositories.iter().map(RepositoryName::as_str).collect()) {
            tracing::info!(path = %unused.display(), "the mirror of a repository that is not configured: it may be deleted");
        }
        let cannot = || format!("what {} holds cannot be opened", root.display());
        let mut publisher = Publisher::open(data_dir.clone(), floor, log, metrics).with_context(cannot)?;
        publisher.sign_with(signer).with_context(cannot)?;
        let configured: HashSet<&str> = names.iter().map(ServiceName::as_str).collect();
        let published = publisher.load(&configured, now).with_context(cannot)?;
        Ok((data_dir, Arc::new(publisher), published))
    })
    .await?
}

impl Running {
    /// Where edges connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where `/livez`, `/readyz`, `/metrics` and `/status` are.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// What a service is at, as it changes.
    pub fn service(&self, name: &ServiceName) -> Option<watch::Receiver<Option<Arc<Descriptor>>>> {
        self.catalog.service(name).map(|service| service.follow())
    }

    /// Whether a service follows its ref, as it changes.
    pub fn condition(&self, name: &ServiceName) -> Option<watch::Receiver<Condition>> {
        self.catalog.service(name).map(|service| service.follow_condition())
    }

    /// What edges are told of tokens, as JSON (an `AccessList`), as it changes.
    pub fn access(&self) -> watch::Receiver<Option<Bytes>> {
        self.access.clone()
    }

    /// How a repository is, as it changes.
    pub fn repository(&self, name: &RepositoryName) -> Option<watch::Receiver<RepositoryState>> {
        self.catalog.repository(name).map(|agent| agent.follow())
    }

    /// What operators do with versions.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Has a repository polled soon, as a webhook does. False when there is no such repository.
    pub fn kick(&self, name: &RepositoryName) -> bool {
        self.catalog.repository(name).inspect(|agent| agent.kick()).is_some()
    }

    /// Takes no new work and finishes what is in flight; after the deadline that is cut. True when nothing was cut.
    pub async fn drain(self, deadline: Duration) -> bool {
        let clean = self.drain.finish(deadline).await;
        self.stop_threads().await;
        clean
    }

    /// Stops at once, as a crash would.
    pub async fn cut(self) {
        self.drain.cut().await;
        self.stop_threads().await;
    }

    /// The jobs were told to stop when their agents went; until their threads have ended the data directory is taken.
    async fn stop_threads(&self) {
        self.threads.close();
        if tokio::time::timeout(THREADS_DEADLINE, self.threads.wait()).await.is_err() {
            tracing::warn!(
                threads = self.threads.len(),
                "threads do not end; the data directory stays taken till then"
            );
        }
    }
}

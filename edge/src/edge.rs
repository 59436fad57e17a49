//! Composition: builds the parts of an edge from its configuration and shuts them down.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use prometheus::Registry;
use tokio::net::TcpListener;
use weir_cache::Cache;
use weir_cache::clock::Clock;
use weir_runtime::admin::{Admin, STATUS_SOCKET, metrics_token};
use weir_runtime::bounds;
use weir_runtime::directory_lock::{DirectoryLock, Released};
use weir_runtime::file_watch::{Reload, WatchedFiles, fingerprint};
use weir_runtime::process_metrics;
use weir_runtime::serve::{self, AccessLog, HttpMetrics, ListenerMetrics, QuicOptions, ServerTls};
use weir_runtime::shutdown::Drain;

use crate::access::{Access, OriginListsFile};
use crate::agent_api::{AgentApi, ApiMetrics, Sources};
use crate::catalog::{Catalog, CatalogBounds, CatalogMetrics, FreshnessPolicies, ListFiles, Lookup};
use crate::config::Config;
use crate::heartbeats::Heartbeats;
use crate::history::History;
use crate::listener::{self, EdgeListener};
use crate::observed::{self, Observed};
use crate::oci_api::OciApi;
use crate::operator_api::{self, OperatorApi};
use crate::origin_client::{ObjectFetcher, Origin, OriginMetrics, Origins, Shields};
use crate::origin_follower::{self, FollowerContext, FollowerMetrics, MembersFile};
use crate::peer_api::{Events, PeerApi, PeerMetrics, Reports};
use crate::reload::{self, Reloader, TlsMaterial};
use crate::reset_key;
use crate::self_api::{SelfApi, SelfSources};
use crate::staged_offers;
use crate::status::Status;

/// How often validations are written to disk.
const FLUSH_INTERVAL: Duration = Duration::from_secs(30);

/// How often the catalog is written while writes fail: longer than the writer's back-off, which would skip the write.
const FAILED_FLUSH_INTERVAL: Duration = Duration::from_secs(6);

/// How long a stopping edge waits for the last write.
const LAST_FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// How many free ports are tried with port 0: TCP and UDP must get the same number.
const PORT_ATTEMPTS: u32 = 16;

/// How long a stopping edge waits for threads that still use its directory.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running edge. Dropping it does not stop it; [`Running::drain`] and [`Running::cut`] do.
pub struct Running {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    registry: Registry,
    drain: Drain,
    catalog: Arc<Catalog>,
    status: Arc<Status>,
    cache: Cache,
    released: Released,
    reloader: Arc<WatchedFiles<Reloader>>,
    access: Access,
}

impl Running {
    /// The address agents connect to: TCP and UDP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the admin listener, when one is configured.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// All metrics of this edge, as `/metrics` shows them.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Applies a configuration that was read again, as far as that needs no restart: its files of keys and denials. Reads
    /// certificates and keys again, also those for origins. Open connections are kept; new handshakes use the new files. The
    /// log names the keys that need a restart.
    ///
    /// # Errors
    /// The configuration is invalid, or a file cannot be used. Nothing changes.
    pub async fn reload(&self, config: anyhow::Result<Config>) -> anyhow::Result<()> {
        let outcome = self.apply(config).await;
        self.reloader.user().report(&outcome);
        self.reloader.user().last_reload.by_signal(&outcome);
        outcome
    }

    /// The same for a file that has changed, which nobody has confirmed by a signal.
    ///
    /// # Errors
    /// Those of [`Running::reload`], or the file may be cut off, so that it checks less than the one that applies.
    pub async fn reload_changed(&self, config: anyhow::Result<Config>) -> anyhow::Result<()> {
        self.reload(config.and_then(|config| self.reloader.user().check_auth(&config.auth).map(|()| config))).await
    }

    async fn apply(&self, config: anyhow::Result<Config>) -> anyhow::Result<()> {
        let config = config?;
        config.validate()?;
        let own = self.access.read_own(&config.auth).await?;
        let reloader = self.reloader.clone();
        tokio::task::spawn_blocking(move || reloader.apply(Reloader::apply)).await??;
        // Nothing can fail from here on.
        self.access.use_own(own, &config.auth);
        self.reloader.user().name_unapplied(&config);
        self.reloader.user().applied(config.auth);
        Ok(())
    }

    /// Refuses new requests, finishes those in flight and writes the catalog. Returns true when nothing was cut off at
    /// the deadline. The cache directory is unlocked when this returns.
    pub async fn drain(self, deadline: Duration) -> bool {
        let clean = self.drain.finish(deadline).await;
        self.catalog.flush();
        if !matches!(tokio::time::timeout(LAST_FLUSH_TIMEOUT, self.catalog.durable()).await, Ok(Ok(()))) {
            tracing::warn!("the last validations could not be written; services will look older after a restart");
        }
        self.release().await;
        clean
    }

    /// Stops immediately, as a crash would, but closes all files. The cache directory is unlocked when this returns.
    pub async fn cut(self) {
        self.drain.cut().await;
        self.release().await;
    }

    /// Waits until no thread uses the cache directory.
    async fn release(self) {
        drop((self.catalog, self.status, self.cache, self.access));
        if tokio::time::timeout(RELEASE_TIMEOUT, self.released.wait()).await.is_err() {
            tracing::warn!("a thread of this process still uses the cache directory");
        }
    }
}

/// Starts an edge. Returns once its listeners are bound and its catalog is loaded, without waiting for origins.
///
/// # Errors
/// The configuration is invalid, a file cannot be used, another process uses the cache directory, or an address cannot
/// be bound.
pub async fn start(config: Config) -> anyhow::Result<Running> {
    config.validate()?;
    let drain = Drain::new();
    let started = compose(config, &drain).await;
    if started.is_err() {
        drain.cut().await;
    }
    started
}

#[expect(clippy::too_many_lines, reason = "composition: a list of steps")]
async fn compose(config: Config, drain: &Drain) -> anyhow::Result<Running> {
    let started = SystemTime::now();
    let registry = Registry::new();
    process_metrics::register(&registry)?;
    let http_metrics = HttpMetrics::register(&registry)?;
    let access_log = AccessLog::new(&config.log, &registry)?.naming(listener::facts_of);
    let clock = Clock::start();
    let read = fingerprint(&reload::files(&config));
    let tls_material = TlsMaterial::of(&config)?;

    let origin_metrics = OriginMetrics::register(&registry)?;
    let origins = config.origins.iter().enumerate();
    let origins = origins.map(|(number, origin)| Origin::new(origin, number, clock, origin_metrics.clone()));
    let origins = Arc::new(Origins::new(origins.collect::<anyhow::Result<_>>()?));
    let shields = config.shields.iter().enumerate();
    let shields = shields.map(|(number, shield)| Origin::new(shield, number, clock, origin_metrics.clone()));
    let name = config.name();
    let shields = Shields::new(name.clone(), shields.collect::<anyhow::Result<_>>()?);
    let (catalog, version_lists, lock, origin_lists, released) = {
        let (config, origins, metrics) = (config.clone(), origins.clone(), CatalogMetrics::register(&registry)?);
        tokio::task::spawn_blocking(move || load(&config, origins, clock, metrics)).await??
    };
    let members = MembersFile::new(&config.cache.dir, lock.clone());
    let fetcher = Arc::new(ObjectFetcher::new(origins.clone(), shields.clone(), config.cache.fills));
    let cache = Cache::open(&config.cache, lock, fetcher, clock, &registry, drain)?;
    let lookup = Lookup::new(catalog.clone(), version_lists, drain);
    let api_metrics = ApiMetrics::register(&registry)?;
    let known: Vec<_> = origins.all().map(|(_, origin)| origin).collect();
    let names: Vec<_> = known.iter().map(|origin| origin.name()).collect();
    let access = Access::start(&config.auth, &names, origin_lists, &registry, drain).await?;
    let context = FollowerContext {
        catalog: catalog.clone(),
        lookup: lookup.clone(),
        origins: origins.clone(),
        access: access.clone(),
        members_changed: Arc::default(),
        clock,
        metrics: FollowerMetrics::register(&registry)?,
        drain: drain.clone(),
    };
    let reloader = Reloader::new(config.clone(), tls_material, origins.clone(), shields.clone(), &registry)?;
    let reloader = Arc::new(WatchedFiles::new(reloader, read));
    let heartbeats = Heartbeats::new(catalog.clone(), origins.clone(), &registry, clock, drain)?;
    drain.spawn(staged_offers::follow(catalog.clone(), heartbeats.clone(), drain.clone()));
    let observed_bytes = config.agents.observed_bytes.as_u64();
    let observed = Observed::start(observed_bytes, access.fleet(), clock, &registry, drain)?;
    let own = SelfSources {
        lookup: lookup.clone(),
        catalog: catalog.clone(),
        access: access.clone(),
        heartbeats: heartbeats.clone(),
        observed: observed.clone(),
    };
    let own = SelfApi::new(&config.agents, own, &registry, drain)?;
    let sources = Sources { lookup: lookup.clone(), cache: cache.clone(), own: own.clone() };
    let peers = peer_api(&config, (&catalog, &origins), &sources, &access, &heartbeats, &registry, drain)?;
    let listener = |port| {
        let counted = (api_metrics.clone(), access_log.clone());
        let agents = AgentApi::new(&name, port, sources.clone(), access.clone(), counted, drain);
        EdgeListener { name: name.clone(), oci: OciApi::new(&agents), agents, peers: peers.clone() }
    };
    let status = Arc::new(Status {
        name: name.to_string(),
        catalog: catalog.clone(),
        lookup: lookup.clone(),
        cache: cache.clone(),
        origins: origins.clone(),
        shields: shields.clone(),
        access: access.clone(),
        peers: peers.clone(),
        agents: own,
        observed: observed.clone(),
        heartbeats,
        history: History::start(registry.clone(), clock, drain),
        summed: Mutex::default(),
        reloader: reloader.clone(),
        clock,
        started,
        drain: drain.clone(),
    });
    let weak_status = Arc::downgrade(&status);
    bounds::register(&registry, move || weak_status.upgrade().map(|status| status.bounds()).unwrap_or_default())?;
    let agents = http_metrics.listener("agents").with_access_log(&access_log);
    let quic = QuicOptions { reset_key: reset_key::of(&config.cache.dir), ..QuicOptions::default() };
    let address = listen(config.listen, &reloader.user().tls(), &quic, listener, &agents, drain).await?;
    // Started last: a ready edge accepts agents.
    let admin = admin(&config, &status, &registry, drain)?;
    admin.listen_at(&config.cache.dir.join(STATUS_SOCKET));
    let admin_address = match config.admin_listen {
        Some(listen) => {
            let operators = OperatorApi::new(listen, &config.admin, admin, status.clone())?;
            Some(operators.start(listen, config.admin.tls.then(|| reloader.user().tls()), &http_metrics, drain).await?)
        }
        None => None,
    };
    reloader.follow(drain);
    shields.start_probes(drain);
    origin_follower::start(&context, cache.clone(), &config.push, config.cache.fills, members);
    observed::start_senders(&observed, access.refused_names(), &origins, config.name.clone(), drain);
    flush_periodically(&catalog, drain);
    let drain = drain.clone();
    Ok(Running { address, admin_address, registry, drain, catalog, status, cache, released, reloader, access })
}

/// Loads the catalog, the lists of versions and the access lists from disk. Blocks.
fn load(
    config: &Config,
    origins: Arc<Origins>,
    clock: Clock,
    metrics: CatalogMetrics,
) -> anyhow::Result<(Arc<Catalog>, ListFiles, DirectoryLock, OriginListsFile, Released)> {
    let dir = &config.cache.dir;
    let (lock, released) =
        DirectoryLock::take(dir).with_context(|| format!("cannot use [cache] dir {}", dir.display()))?;
    let origin_lists = OriginListsFile::new(dir, lock.clone());
    // Before the catalog, whose entries name them.
    MembersFile::new(dir, lock.clone()).restore(&origins);
    let (path, policies) = (dir.join("catalog.log"), Arc::new(FreshnessPolicies::configured(config)));
    let bounds = CatalogBounds { services: config.cache.services, bytes: config.cache.service_bytes.as_u64() };
    let catalog = Catalog::load(&path, lock.clone(), bounds, origins, policies, clock, metrics);
    let version_lists = ListFiles::open(dir, lock.clone(), |service| catalog.get(service).is_some());
    Ok((catalog, version_lists, lock, origin_lists, released))
}

/// The API for other edges, if their authority is configured.
fn peer_api(
    config: &Config,
    (catalog, origins): (&Arc<Catalog>, &Arc<Origins>),
    sources: &Sources,
    access: &Access,
    heartbeats: &Heartbeats,
    registry: &Registry,
    drain: &Drain,
) -> anyhow::Result<Option<PeerApi>> {
    if config.peers.ca.is_none() {
        return Ok(None);
    }
    let metrics = PeerMetrics::register(registry)?;
    let events = Events::new(catalog.clone(), access.clone(), config.peers.streams, metrics.clone(), drain);
    let Sources { lookup, cache, .. } = sources.clone();
    let reports = Reports::new(origins.clone(), config.name.clone());
    Ok(Some(PeerApi::new(config.name(), lookup, cache, events, heartbeats.clone(), reports, metrics)))
}

fn admin(config: &Config, status: &Arc<Status>, registry: &Registry, drain: &Drain) -> anyhow::Result<Admin> {
    let (ready, shown, summed) = (status.clone(), status.clone(), status.clone());
    let gathered = registry.clone();
    Ok(Admin {
        registry: registry.clone(),
        ready: Arc::new(move || ready.readiness()),
        page: Some((operator_api::page(), Arc::new(move || summed.summary(&gathered)))),
        status: Arc::new(move |query| shown.document(query).map_err(|error| error.to_string())),
        metrics_token: metrics_token(config.admin.metrics_token_file.as_deref())?,
        drain: drain.clone(),
    })
}

/// Binds TCP and UDP on the same port and serves both.
async fn listen(
    listen: SocketAddr,
    tls: &ServerTls,
    quic: &QuicOptions,
    api: impl Fn(u16) -> EdgeListener,
    metrics: &ListenerMetrics,
    drain: &Drain,
) -> anyhow::Result<SocketAddr> {
    let mut attempt = 1;
    loop {
        let listener =
            TcpListener::bind(listen).await.with_context(|| format!("cannot listen on listen = \"{listen}\" (TCP)"))?;
        let address = listener.local_addr()?;
        let api = api(address.port());
        match serve::quic(address, tls.clone(), quic, api.clone(), metrics.clone(), drain) {
            Ok(_) => {
                serve::tcp(listener, Some(tls.clone()), api, metrics.clone(), drain);
                return Ok(address);
            }
            // Another process uses that UDP port.
            Err(_) if listen.port() == 0 && attempt < PORT_ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

fn flush_periodically(catalog: &Arc<Catalog>, drain: &Drain) {
    let (catalog, drain) = (catalog.clone(), drain.clone());
    drain.clone().spawn(async move {
        loop {
            let flushed = catalog.clone();
            if let Err(error) = tokio::task::spawn_blocking(move || flushed.flush()).await {
                tracing::error!(%error, "writing the last validations failed");
            }
            let retry = async {
                catalog.write_failed().await;
                tokio::time::sleep(FAILED_FLUSH_INTERVAL).await;
            };
            tokio::select! {
                () = tokio::time::sleep(FLUSH_INTERVAL) => {}
                () = retry => {}
                // The drain writes the rest at its end.
                () = drain.begun() => return,
            }
        }
    });
}

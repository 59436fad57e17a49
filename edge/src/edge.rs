//! Composition: makes the parts from the configuration, joins them, and takes them apart again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use prometheus::Registry;
use tokio::net::TcpListener;
use weir_runtime::admin::Admin;
use weir_runtime::bounds;
use weir_runtime::directory_lock::{DirectoryLock, Released};
use weir_runtime::process_metrics;
use weir_runtime::serve::{self, HttpMetrics, QuicOptions, ServerTls};
use weir_runtime::shutdown::Drain;

use crate::access::{Access, HeardFile};
use crate::agent_api::{AgentApi, ApiMetrics, Sources};
use crate::cache::Cache;
use crate::catalog::{Catalog, CatalogBounds, CatalogMetrics, FreshnessPolicies, Lookup};
use crate::clock::Clock;
use crate::config::Config;
use crate::operator_api::OperatorApi;
use crate::origin_client::{Origin, OriginMetrics, Origins, probe};
use crate::origin_follower::{self, FollowerMetrics, Following};
use crate::reload::{Handshakes, Reloading};
use crate::status::Status;

/// How often validations are written to disk.
const FLUSH_INTERVAL: Duration = Duration::from_secs(30);

/// The same while the disk does not take the catalog: the file is written once it does.
const FAILED_FLUSH_INTERVAL: Duration = Duration::from_secs(5);

/// How long a stopping edge waits for the disk to take the last validations.
const LAST_FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a free port is looked for when any will do: TCP and UDP must have the same.
const PORT_ATTEMPTS: u32 = 16;

/// How long a stopped edge waits for threads that still hold its directory.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// An edge that runs. Dropping it does not stop it; [`Running::drain`] and [`Running::cut`] do.
pub struct Running {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    registry: Registry,
    drain: Drain,
    catalog: Arc<Catalog>,
    status: Arc<Status>,
    cache: Cache,
    released: Released,
    reloading: Arc<Reloading>,
}

impl Running {
    /// Where agents connect: TCP and UDP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where `/metrics` and its neighbours are, when configured.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// All metrics of this edge, as `/metrics` shows them.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Reads certificates and keys again, those for origins too. Connections live on; handshakes that begin from now on go
    /// by them.
    ///
    /// # Errors
    /// A file cannot be used. Everything is as it was.
    pub async fn reload(&self) -> anyhow::Result<()> {
        let reloading = self.reloading.clone();
        tokio::task::spawn_blocking(move || reloading.read_again()).await?
    }

    /// Takes no new work, finishes what is in flight, writes what is not on disk yet. True when nothing had to be cut
    /// at the deadline. The cache's directory is free when this returns.
    pub async fn drain(self, deadline: Duration) -> bool {
        let clean = self.drain.finish(deadline).await;
        self.catalog.flush();
        if !matches!(tokio::time::timeout(LAST_FLUSH_TIMEOUT, self.catalog.durable()).await, Ok(Ok(()))) {
            tracing::warn!("the last validations could not be written; answers will look older after a restart");
        }
        self.release().await;
        clean
    }

    /// Stops at once, as a crash would but for open files. The cache's directory is free when this returns.
    pub async fn cut(self) {
        self.drain.cut().await;
        self.release().await;
    }

    /// Waits until no thread that was in the middle of something uses the cache's directory.
    async fn release(self) {
        drop((self.catalog, self.status, self.cache));
        if tokio::time::timeout(RELEASE_TIMEOUT, self.released.wait()).await.is_err() {
            tracing::warn!("the cache's directory is still in use by a thread of this process");
        }
    }
}

/// Starts an edge. Returns once its listeners are bound and its catalog is loaded; origins are not waited for.
///
/// # Errors
/// The configuration makes no sense, a file cannot be used, the cache's directory is another process's, or an address
/// cannot be bound.
pub async fn start(config: Config) -> anyhow::Result<Running> {
    config.validate()?;
    let drain = Drain::new();
    let started = compose(config, &drain).await;
    if started.is_err() {
        drain.cut().await;
    }
    started
}

async fn compose(config: Config, drain: &Drain) -> anyhow::Result<Running> {
    let started = SystemTime::now();
    let registry = Registry::new();
    process_metrics::register(&registry)?;
    let http_metrics = HttpMetrics::register(&registry)?;
    let clock = Clock::begin();
    let handshakes = Handshakes::of(&config)?;

    let origin_metrics = OriginMetrics::register(&registry)?;
    let origins = config.origins.iter().map(|origin| Origin::new(origin, clock, origin_metrics.clone()));
    let origins = Arc::new(Origins::new(origins.collect::<anyhow::Result<_>>()?));
    let (catalog, lock, heard, released) = {
        let (config, origins, metrics) = (config.clone(), origins.clone(), CatalogMetrics::register(&registry)?);
        tokio::task::spawn_blocking(move || load(&config, origins, clock, metrics)).await??
    };
    let cache = Cache::open(&config.cache, lock, origins.clone(), clock, &registry, drain)?;
    let lookup = Lookup::new(catalog.clone(), drain);
    let api_metrics = ApiMetrics::register(&registry)?;
    let names = origins.all().iter().map(|origin| origin.name().to_owned()).collect();
    let access = Access::start(&config.auth, names, heard, &registry, drain).await?;
    let following = Following {
        catalog: catalog.clone(),
        lookup: lookup.clone(),
        origins: origins.clone(),
        access: access.clone(),
        clock,
        metrics: FollowerMetrics::register(&registry)?,
        drain: drain.clone(),
    };
    let reloading = Arc::new(Reloading::new(config.clone(), handshakes, origins.clone(), &registry)?);
    let sources = Sources { lookup: lookup.clone(), cache: cache.clone() };
    let api = |port| AgentApi::new(&config.name, port, sources.clone(), access.clone(), api_metrics.clone(), drain);
    let status = Arc::new(Status {
        name: config.name.to_string(),
        catalog: catalog.clone(),
        lookup: lookup.clone(),
        cache: cache.clone(),
        origins: origins.clone(),
        access: access.clone(),
        reloading: reloading.clone(),
        clock,
        started,
        drain: drain.clone(),
    });
    let looked_at = Arc::downgrade(&status);
    bounds::register(&registry, move || looked_at.upgrade().map(|status| status.bounds()).unwrap_or_default())?;
    let address = listen(config.listen, &reloading.tls(), api, &http_metrics, drain).await?;
    // Last of all, so that nobody reads "ready" before agents can connect.
    let admin_address = match config.admin_listen {
        Some(admin) => {
            let operators = operator_api(admin, &config, &status, &registry, drain)?;
            Some(operators.start(admin, config.admin.tls.then(|| reloading.tls()), &http_metrics, drain).await?)
        }
        None => None,
    };
    probe::start(&origins, drain);
    origin_follower::start(&following, cache.clone(), &config.push, config.cache.fetches);
    flush_now_and_then(&catalog, drain);
    Ok(Running { address, admin_address, registry, drain: drain.clone(), catalog, status, cache, released, reloading })
}

/// Opens what is on disk. Blocks.
fn load(
    config: &Config,
    origins: Arc<Origins>,
    clock: Clock,
    metrics: CatalogMetrics,
) -> anyhow::Result<(Arc<Catalog>, DirectoryLock, HeardFile, Released)> {
    let dir = &config.cache.dir;
    let (lock, released) =
        DirectoryLock::take(dir).with_context(|| format!("cannot use [cache] dir {}", dir.display()))?;
    let heard = HeardFile::new(dir, lock.clone());
    let (path, policies) = (dir.join("catalog.log"), Arc::new(FreshnessPolicies::configured(config)));
    let bounds = CatalogBounds { services: config.cache.services, bytes: config.cache.service_bytes.as_u64() };
    let catalog = Catalog::load(&path, lock.clone(), bounds, origins, policies, clock, metrics);
    Ok((catalog, lock, heard, released))
}

/// What answers on the admin listener.
fn operator_api(
    listen: SocketAddr,
    config: &Config,
    status: &Arc<Status>,
    registry: &Registry,
    drain: &Drain,
) -> anyhow::Result<OperatorApi> {
    let (ready, shown) = (status.clone(), status.clone());
    let admin = Admin {
        registry: registry.clone(),
        ready: Arc::new(move || ready.readiness()),
        status: Arc::new(move |query| shown.document(query).map_err(|error| error.to_string())),
        drain: drain.clone(),
    };
    OperatorApi::new(listen, &config.admin, admin, status.clone())
}

/// Binds TCP, then UDP with the same port, and serves on both.
async fn listen(
    listen: SocketAddr,
    tls: &ServerTls,
    api: impl Fn(u16) -> AgentApi,
    metrics: &HttpMetrics,
    drain: &Drain,
) -> anyhow::Result<SocketAddr> {
    let mut attempt = 1;
    loop {
        let listener =
            TcpListener::bind(listen).await.with_context(|| format!("cannot listen on listen = \"{listen}\" (TCP)"))?;
        let address = listener.local_addr()?;
        let api = api(address.port());
        let agents = metrics.listener("agents");
        match serve::quic(address, tls.clone(), &QuicOptions::default(), api.clone(), agents.clone(), drain) {
            Ok(_) => {
                serve::tcp(listener, Some(tls.clone()), api, agents, drain);
                return Ok(address);
            }
            // Somebody else has that port of UDP.
            Err(_) if listen.port() == 0 && attempt < PORT_ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

fn flush_now_and_then(catalog: &Arc<Catalog>, drain: &Drain) {
    let (catalog, drain) = (catalog.clone(), drain.clone());
    drain.clone().spawn(async move {
        loop {
            let flushed = catalog.clone();
            if let Err(error) = tokio::task::spawn_blocking(move || flushed.flush()).await {
                tracing::error!(%error, "writing the last validations failed");
            }
            let has_failed = catalog.write_failure().is_some();
            tokio::select! {
                () = tokio::time::sleep(if has_failed { FAILED_FLUSH_INTERVAL } else { FLUSH_INTERVAL }) => {}
                // What is left is written at the end of the drain.
                () = drain.begun() => return,
            }
        }
    });
}

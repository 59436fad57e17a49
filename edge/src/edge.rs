//! Composition: makes the parts from the configuration, joins them, and takes them apart again.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use prometheus::Registry;
use tokio::net::TcpListener;
use weir_shared::process::admin::Admin;
use weir_shared::process::bounds;
use weir_shared::process::directory_lock::{DirectoryLock, Released};
use weir_shared::process::process_metrics;
use weir_shared::process::serve::{self, HttpMetrics, QuicOptions, ServerTls};
use weir_shared::process::shutdown::Drain;

use crate::access::{Access, HeardFile};
use crate::agent_api::{AgentApi, Sources};
use crate::blob_cache::{BlobCache, Directory};
use crate::clock::Clock;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::operator_api::OperatorApi;
use crate::origin_client::{Origin, Origins, probe};
use crate::origin_follower::{self, Following};
use crate::reload::{Handshakes, Reloading};
use crate::service_table::{Gzips, Lookup, Rules, Standings, Store, Table};
use crate::status::Status;

/// How often last words are written to disk.
const FLUSH_INTERVAL: Duration = Duration::from_secs(30);

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
    table: Arc<Table>,
    status: Arc<Status>,
    blobs: BlobCache,
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

    /// Takes over what can change at run time: certificates and keys, those for origins too, read again from their files,
    /// and what agents' certificates open. Connections live on; handshakes that begin from now on go by it. What needs a
    /// restart is named in the log and left as it is.
    ///
    /// # Errors
    /// The configuration makes no sense, or a file cannot be used. Everything is as it was.
    pub async fn reload(&self, config: Config) -> anyhow::Result<()> {
        let reloading = self.reloading.clone();
        tokio::task::spawn_blocking(move || reloading.take_config(&config)).await?
    }

    /// [`Running::reload`] from a configuration file.
    ///
    /// # Errors
    /// As there, or the file is wrong.
    pub async fn reload_file(&self, path: &Path) -> anyhow::Result<()> {
        let (reloading, path) = (self.reloading.clone(), path.to_owned());
        tokio::task::spawn_blocking(move || reloading.take_file(&path)).await?
    }

    /// Takes no new work, finishes what is in flight, writes what is not on disk yet. True when nothing had to be cut
    /// at the deadline. The cache's directory is free when this returns.
    pub async fn drain(self, deadline: Duration) -> bool {
        let clean = self.drain.finish(deadline).await;
        let table = self.table.clone();
        let flushed = tokio::task::spawn_blocking(move || table.flush()).await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::warn!("the last words of origins could not be written; answers will look older after a restart");
        }
        self.blobs.close().await;
        self.release().await;
        clean
    }

    /// Stops at once, as a crash would but for open files. The cache's directory is free when this returns.
    pub async fn cut(self) {
        self.drain.cut().await;
        self.blobs.stop().await;
        self.release().await;
    }

    /// Waits until no thread that was in the middle of something uses the cache's directory.
    async fn release(self) {
        drop((self.table, self.status, self.blobs));
        if tokio::time::timeout(RELEASE_TIMEOUT, self.released.wait()).await.is_err() {
            tracing::warn!("the cache's directory is still in use by a thread of this process");
        }
    }
}

/// Starts an edge. Returns once its listeners are bound and its table is loaded; origins are not waited for.
///
/// # Errors
/// The configuration makes no sense, a file cannot be used, the cache's directory is another process's, or an address
/// cannot be bound.
pub async fn start(config: Config) -> anyhow::Result<Running> {
    config.validate()?;
    let started = SystemTime::now();
    let drain = Drain::new();
    let registry = Registry::new();
    let metrics = Metrics::register(&registry)?;
    process_metrics::register(&registry)?;
    let http_metrics = HttpMetrics::register(&registry)?;
    let clock = Clock::begin();
    let rules = Arc::new(config.rules());
    let handshakes = Handshakes::of(&config)?;

    let origins = config.origins.iter().map(|origin| Origin::new(origin, clock, metrics.origin.clone()));
    let origins = Arc::new(Origins::new(origins.collect::<anyhow::Result<_>>()?));
    let (table, blobs, heard, released) = {
        let (config, origins, metrics, drain) = (config.clone(), origins.clone(), metrics.clone(), drain.clone());
        let rules = rules.clone();
        tokio::task::spawn_blocking(move || load(&config, &origins, rules, clock, &metrics, &drain)).await??
    };
    let lookup = Lookup::new(table.clone(), origins.clone(), rules, clock, metrics.table.clone(), &drain);
    let following = Following {
        table: table.clone(),
        lookup: lookup.clone(),
        origins: origins.clone(),
        clock,
        metrics: metrics.follower.clone(),
        drain: drain.clone(),
    };
    metrics.cache.observe_use(&registry, blobs.gauge_setter())?;
    let names = origins.all().iter().map(|origin| origin.name().to_owned()).collect();
    let access = Access::start(&config.auth, names, heard, &registry, &drain).await;
    let access = match access {
        Ok(access) => access,
        Err(error) => {
            drain.cut().await;
            return Err(error);
        }
    };

    let reloading = Reloading::new(config.clone(), handshakes, access.clone(), origins.clone(), &registry)?;
    let reloading = Arc::new(reloading);
    let gzips = Gzips::new(lookup.clone(), origins.clone(), metrics.table.clone(), &drain);
    let standings = Standings::new(lookup.clone(), origins.clone(), clock, &drain);
    let sources =
        Sources { lookup: lookup.clone(), gzips: gzips.clone(), standings: standings.clone(), blobs: blobs.clone() };
    let api = |port| AgentApi::new(&config.name, port, sources.clone(), access.clone(), metrics.api.clone(), &drain);
    let status = Arc::new(Status {
        name: config.name.to_string(),
        table: table.clone(),
        lookup: lookup.clone(),
        gzips: gzips.clone(),
        standings,
        blobs: blobs.clone(),
        origins: origins.clone(),
        access: access.clone(),
        reloading: reloading.clone(),
        clock,
        started,
        drain: drain.clone(),
    });
    let looked_at = Arc::downgrade(&status);
    bounds::register(&registry, "edge", move || looked_at.upgrade().map(|status| status.bounds()).unwrap_or_default())?;
    let listening = async {
        let address = listen(config.listen, &reloading.tls(), api, &http_metrics, &drain).await?;
        // Last of all, so that nobody reads "ready" before agents can connect.
        let admin_address = match config.admin_listen {
            Some(admin) => {
                let operators = operator_api(admin, &config, &status, &registry, &metrics, &drain)?;
                Some(operators.start(admin, config.admin.tls.then(|| reloading.tls()), &http_metrics, &drain).await?)
            }
            None => None,
        };
        anyhow::Ok((address, admin_address))
    };
    let (address, admin_address) = match listening.await {
        Ok(addresses) => addresses,
        Err(error) => {
            drain.cut().await;
            return Err(error);
        }
    };
    probe::start(&origins, &drain);
    access.follow(origin_follower::start(&following, blobs.clone(), &config), &drain);
    flush_now_and_then(&table, &drain);
    Ok(Running { address, admin_address, registry, drain, table, status, blobs, released, reloading })
}

/// Opens what is on disk. Blocks.
fn load(
    config: &Config,
    origins: &Arc<Origins>,
    rules: Arc<Rules>,
    clock: Clock,
    metrics: &Metrics,
    drain: &Drain,
) -> anyhow::Result<(Arc<Table>, BlobCache, HeardFile, Released)> {
    let dir = &config.cache.dir;
    let cannot = || format!("cannot use [cache] dir {}", dir.display());
    let (lock, released) = DirectoryLock::take(dir).with_context(cannot)?;
    let directory = Directory::open(dir, lock.clone()).with_context(cannot)?;
    let heard = HeardFile::new(dir, lock.clone());
    let store = Store::open(&dir.join("table.redb"), lock).with_context(cannot)?;
    let services = config.cache.services;
    let table =
        Table::load(store, services, origins.clone(), rules, clock, metrics.table.clone()).with_context(cannot)?;
    let blobs = BlobCache::open(directory, &config.cache, origins.clone(), clock, metrics.clone(), drain)
        .with_context(cannot)?;
    Ok((Arc::new(table), blobs, heard, released))
}

/// What answers on the admin listener.
fn operator_api(
    listen: SocketAddr,
    config: &Config,
    status: &Arc<Status>,
    registry: &Registry,
    metrics: &Metrics,
    drain: &Drain,
) -> anyhow::Result<OperatorApi> {
    let (ready, shown) = (status.clone(), status.clone());
    let admin = Admin {
        registry: registry.clone(),
        ready: Arc::new(move || ready.readiness()),
        status: Arc::new(move |query| shown.document(query).map_err(|error| error.to_string())),
        drain: drain.clone(),
    };
    OperatorApi::new(listen, &config.admin, admin, status.clone(), metrics.operators.clone())
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

fn flush_now_and_then(table: &Arc<Table>, drain: &Drain) {
    let (table, drain) = (table.clone(), drain.clone());
    drain.clone().spawn(async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(FLUSH_INTERVAL) => {}
                // What is left is written at the end of the drain.
                () = drain.begun() => return,
            }
            let table = table.clone();
            match tokio::task::spawn_blocking(move || table.flush()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "the last words of origins could not be written"),
                Err(error) => tracing::error!(%error, "writing the last words of origins failed"),
            }
        }
    });
}

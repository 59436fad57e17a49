//! Composition: every part from its configuration, joined.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use bytes::Bytes;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_runtime::admin::Admin;
use weir_runtime::config::changed_keys;
use weir_runtime::directory_lock::Released;
use weir_runtime::process_metrics;
use weir_runtime::serve::{self, HttpMetrics};
use weir_runtime::shutdown::Drain;

use crate::catalog::{self, Catalog, CatalogCollector, Definitions, Dependencies, Documents, Editor};
use crate::certificates::{Certificates, ReadAll};
use crate::config::{Config, RELOADABLE};
use crate::data_dir::DataDir;
use crate::edge_api::{EdgeApi, Events};
use crate::event_log::EventLog;
use crate::lost_definitions::LostDefinitions;
use crate::metrics::Metrics;
use crate::operator_api::OperatorApi;
use crate::publish::{Options, PublishMetrics, Publisher, Started, StoredDefinitions};
use crate::readiness::{NodeHealth, readiness};
use crate::reconcile::{Context, Handle, RepositoryState};
use crate::service::Condition;
use crate::signing::Signer;
use crate::store::{Objects, Records, StoreMetrics};
use crate::versions::Versions;
use crate::{access, disk_watch, mirror, status};

/// How long work that was told to stop is waited for when the origin stops.
const RELEASE_DEADLINE: Duration = Duration::from_secs(5);

/// A running origin.
pub struct Running {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    operator_address: Option<SocketAddr>,
    catalog: Arc<Catalog>,
    editor: Editor,
    /// What was published before it started.
    before: HashMap<ServiceName, Generation>,
    /// What it started with.
    config: Config,
    access: watch::Receiver<Option<Bytes>>,
    versions: Versions,
    certificates: Arc<Certificates>,
    metrics: Metrics,
    released: Released,
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
    let registry = Registry::new();
    let metrics = Metrics::register(&registry)?;
    metrics.start_time.set(started.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()));
    process_metrics::register(&registry)?;
    let http = HttpMetrics::register(&registry)?;
    let signer = Arc::new(Signer::new(config.signing.read()?));
    metrics.signing_keys.set(i64::try_from(config.signing.keys.len()).unwrap_or(i64::MAX));
    let certificates = Arc::new(Certificates::new(ReadAll::of(&config)?, &registry)?);
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| anyhow::anyhow!("cannot listen on listen = \"{}\": {error}", config.listen))?;
    let address = listener.local_addr()?;

    let log = Arc::new(EventLog::new(&config.limits, metrics.clone()));
    let (publish_metrics, store_metrics) = (PublishMetrics::register(&registry)?, StoreMetrics::register(&registry)?);
    let root = config.data_dir.clone();
    let (data_dir, released) = spawn_blocking(move || DataDir::open(&root)).await??;
    let options = Options {
        generation_floor: config.generation_floor,
        retention: config.retention.clone(),
        signer,
        events: log.clone(),
        metrics: publish_metrics,
    };
    let Loaded { publisher, started: published, stored } =
        load(&config, data_dir.clone(), options, store_metrics, &metrics, started).await?;
    if let Err(reason) = spawn_blocking(mirror::check_git_program).await? {
        tracing::warn!(
            reason,
            "git cannot be used: mirrors are not repacked, and repositories on this machine cannot be mirrored; install \
             git 2.34 or later"
        );
    }
    let drain = Drain::new();
    let access = access::start(&config.access, &metrics, &drain).await?;
    let disk = disk_watch::start(data_dir.clone(), config.limits.min_free, metrics.clone(), &drain).await;
    let context =
        Context::new(publisher.clone(), data_dir, log.clone(), metrics.clone(), &config.limits, &config.upstreams);
    let dependencies = Dependencies {
        file: Documents::new(&config.repositories, &config.services),
        stored,
        secrets_dir: config.operator.secrets_dir.clone(),
        limits: config.limits.clone(),
        context,
    };
    let generation = |descriptor: &Descriptor| descriptor.publication().generation;
    let before = published.current.iter().map(|(name, current)| (name.clone(), generation(current))).collect();
    let (catalog, editor) = catalog::begin(dependencies, published, &drain).await;
    drain.spawn(publisher.clone().collect_garbage(drain.clone()));
    let lost_definitions = LostDefinitions::new(publisher.clone(), config.operator_listen.is_some());
    CatalogCollector::register(&registry, catalog.clone(), lost_definitions.clone())?;
    if lost_definitions.is_store_new(&catalog.snapshot(), SystemTime::now()) {
        tracing::warn!(
            data_dir = %config.data_dir.display(),
            "the store is new, and holds nothing that operators defined: if it was lost, put it back; until operators \
             define something, for a day at the most, requests for unknown services are answered with 503"
        );
    }

    metrics.show_retention(&config.retention);
    let events =
        Events::new(log, catalog.clone(), access.clone(), config.limits.event_streams, metrics.clone(), &drain);
    let versions = Versions::new(catalog.clone(), publisher.clone(), &metrics.bounds);
    let lost = lost_definitions.clone();
    let api = EdgeApi::new(catalog.clone(), publisher.clone(), metrics.clone(), &config.limits, events, lost);
    serve::tcp(listener, Some(certificates.of_edges()), api, http.listener("edge"), &drain);
    let operators =
        OperatorApi::new(catalog.clone(), editor.clone(), versions.clone(), &config, (&registry, &metrics.bounds))?;
    let operator_address = match config.operator_listen.zip(certificates.of_operators()) {
        None => None,
        Some((listen, tls)) => match operators.start(listen, tls, &http, &drain).await {
            Ok(address) => Some(address),
            Err(error) => {
                drain.cut().await;
                return Err(error);
            }
        },
    };
    let admin_address = match config.admin_listen {
        None => None,
        Some(listen) => {
            let (shown, name) = (catalog.clone(), config.name.clone());
            let (seen, access_files) = (certificates.clone(), metrics.access_files_readable.clone());
            let ready = Arc::new(move || {
                let now = SystemTime::now();
                let node = NodeHealth {
                    disk: disk.borrow().clone(),
                    access_files_unreadable: access_files.get() == 0,
                    certificates_have_ended: seen.have_ended(now),
                    store_is_new: lost_definitions.is_store_new(&shown.snapshot(), now),
                    without_record: lost_definitions.without_record(),
                    suspended: publisher.suspended().len(),
                };
                readiness(&shown, node)
            });
            let (shown, how) = (catalog.clone(), ready.clone());
            let admin = Admin {
                registry,
                ready,
                status: Arc::new(move |_| Ok(status::status(&name, started, &shown, how()))),
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
    Ok(Running {
        address,
        admin_address,
        operator_address,
        catalog,
        editor,
        before,
        config,
        access,
        versions,
        certificates,
        metrics,
        released,
        drain,
    })
}

/// What a store holds.
struct Loaded {
    publisher: Arc<Publisher>,
    started: Started,
    /// What operators defined.
    stored: StoredDefinitions,
}

/// Opens the store, and reads what operators defined and what was published.
async fn load(
    config: &Config,
    data_dir: DataDir,
    options: Options,
    store_metrics: StoreMetrics,
    metrics: &Metrics,
    now: SystemTime,
) -> anyhow::Result<Loaded> {
    let objects = Objects::open(&config.store, data_dir.root(), store_metrics.clone(), &metrics.bounds).await?;
    let records = Records::open_local(data_dir.root(), store_metrics)
        .with_context(|| format!("the folder of records in {} cannot be used", data_dir.root().display()))?;
    let (publisher, stored) = Publisher::open(objects, records, data_dir.clone(), options).await?;
    let file = Documents::new(&config.repositories, &config.services);
    let defined = Definitions::of(&file, &Documents::stored(&stored));
    let repositories = defined.repositories.keys().map(RepositoryName::as_str).collect();
    for unused in data_dir.unused_mirrors(&repositories) {
        tracing::info!(path = %unused.display(), "the mirror of a repository that is not configured: it may be deleted");
    }
    // What a document is stored for is not taken for deleted, whatever the document is like.
    let started = publisher.start(&defined.services.keys().cloned().collect(), now).await?;
    Ok(Loaded { publisher, started, stored })
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

    /// Where operators connect.
    pub fn operator_address(&self) -> Option<SocketAddr> {
        self.operator_address
    }

    /// What a service is at, as it changes.
    pub fn service(&self, name: &ServiceName) -> Option<watch::Receiver<Option<Arc<Descriptor>>>> {
        self.catalog.service(name).map(|service| service.follow())
    }

    /// The generation that a service was at when the origin started: every one above it was published since.
    pub fn generation_before(&self, name: &ServiceName) -> Option<Generation> {
        self.before.get(name).copied()
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
        self.catalog.repository(name).inspect(Handle::kick).is_some()
    }

    /// Takes over the repositories and services of a configuration file that has changed, and reads the certificates and
    /// keys of its listeners again. All else in it waits for a restart, and is named in the log.
    ///
    /// # Errors
    /// The file or a certificate cannot be read or is wrong, or the origin ends. Everything is as it was.
    pub async fn reload_file(&self, file: &Path) -> anyhow::Result<()> {
        let outcome = self.take_file(file).await;
        let result = if outcome.is_ok() { "applied" } else { "refused" };
        self.metrics.reloads.with_label_values(&[result]).inc();
        match &outcome {
            Ok(()) => tracing::info!(
                "the repositories and services of the configuration file were taken over; new connections go by the \
                 certificates of now"
            ),
            Err(error) => tracing::error!(error = format!("{error:#}"), "nothing was taken over: all is as it was"),
        }
        outcome
    }

    async fn take_file(&self, file: &Path) -> anyhow::Result<()> {
        let (file, operator_listen) = (file.to_owned(), self.config.operator_listen);
        let read = move || -> anyhow::Result<_> {
            let now = Config::load(&file)?;
            // Whether operators connect waits for a restart.
            let certificates = ReadAll::of(&Config { operator_listen, ..now.clone() })?;
            Ok((now, certificates))
        };
        let (now, certificates) = spawn_blocking(read).await??;
        certificates.check_ends(SystemTime::now())?;
        let (repositories, services) = (&now.repositories, &now.services);
        anyhow::ensure!(self.editor.reload(Documents::new(repositories, services)).await, "the origin ends");
        self.certificates.replace(certificates);
        for key in changed_keys(&self.config, &now, RELOADABLE) {
            tracing::warn!(%key, "this key has changed, and takes effect at a restart alone");
        }
        Ok(())
    }

    /// Takes no new work and finishes what is in flight; after the deadline that is cut. True when nothing was cut.
    pub async fn drain(self, deadline: Duration) -> bool {
        let clean = self.drain.finish(deadline).await;
        self.release().await;
        clean
    }

    /// Stops at once, as a crash would.
    pub async fn cut(self) {
        self.drain.cut().await;
        self.release().await;
    }

    /// Threads were told to stop when their agents went; until the last of them has ended the data directory is taken.
    async fn release(self) {
        let released = self.into_released();
        if tokio::time::timeout(RELEASE_DEADLINE, released.wait()).await.is_err() {
            tracing::warn!("threads do not end; the data directory stays taken till then");
        }
    }

    fn into_released(self) -> Released {
        self.released
    }
}

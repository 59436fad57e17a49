//! Composition: creates every part of an origin from its configuration and joins them. Begin at [`start`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use bytes::Bytes;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use weir_git::mirror;
use weir_ownership::Event;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::{
    Collector, Options, PublishError, PublishMetrics, Publisher, Signer, Started, StoredDefinitions, Validity,
};
use weir_runtime::admin;
use weir_runtime::config::changed_keys;
use weir_runtime::directory_lock::Released;
use weir_runtime::file_watch::{WatchedFiles, fingerprint};
use weir_runtime::last_reload::LastReload;
use weir_runtime::process_metrics;
use weir_runtime::serve::{self, AccessLog, HttpMetrics};
use weir_runtime::shutdown::Drain;
use weir_source::Condition;
use weir_store::{Objects, Records, StoreMetrics};
use weir_upstream::DataDir;

use crate::catalog::{self, Catalog, CatalogCollector, Definitions, Dependencies, Documents, Editor};
use crate::certificates::{self, CertificateUsers, Certificates, LoadedCertificates};
use crate::cluster::{
    self, Cluster, ClusterMetrics, Membership, MirrorSource, Parts, Replicas, digests, ensure_proved,
};
use crate::config::{Config, RELOADABLE};
use crate::edge_api::{EdgeApi, Events, InCluster};
use crate::event_log::EventLog;
use crate::fleet::{FleetMetrics, FleetStore};
use crate::lost_definitions::LostDefinitions;
use crate::member_api::MemberApi;
use crate::member_client::MemberClient;
use crate::metrics::Metrics;
use crate::names::{NameRecords, ServiceNames};
use crate::observed::Observed;
use crate::operator_api::{Members, OperatorApi};
use crate::readiness::{NodeHealth, readiness};
use crate::reconcile::{Context, Handle, RepositoryState};
use crate::record_engine::open_records;
use crate::starting::{Shown, Starting};
use crate::versions::Versions;
use crate::{access, deltas, disk_watch, last_seen, status};

/// The longest wait at shutdown for threads that were signalled to stop.
const RELEASE_DEADLINE: Duration = Duration::from_secs(5);

/// A running origin.
pub struct Running {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    operator_address: Option<SocketAddr>,
    catalog: Arc<Catalog>,
    editor: Editor,
    fleet: FleetStore,
    /// The generations before the start.
    before: HashMap<ServiceName, Generation>,
    /// The configuration at the start.
    config: Config,
    access: watch::Receiver<Option<Bytes>>,
    versions: Versions,
    certificates: Arc<WatchedFiles<CertificateUsers>>,
    metrics: Metrics,
    /// `None`: this origin is the only one.
    cluster: Option<(Cluster, Arc<MemberClient>)>,
    signer: Arc<Signer>,
    released: Released,
    last_reload: LastReload,
    drain: Drain,
}

/// Starts an origin. It returns once the origin listens and serves the state published before; it waits for no
/// upstream.
///
/// # Errors
/// The configuration is invalid, the data directory cannot be used or is in use, a certificate cannot be read, or an
/// address cannot be bound.
pub async fn start(config: Config) -> anyhow::Result<Running> {
    config.validate()?;
    let drain = Drain::new();
    let started = Box::pin(compose(config, &drain)).await;
    if started.is_err() {
        drain.cut().await;
    }
    started
}

#[expect(clippy::too_many_lines, reason = "composition: a list of steps")]
async fn compose(config: Config, drain: &Drain) -> anyhow::Result<Running> {
    let started = SystemTime::now();
    let registry = Registry::new();
    let metrics = Metrics::register(&registry)?;
    metrics.start_time.set(started.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()));
    process_metrics::register(&registry)?;
    let http = HttpMetrics::register(&registry)?;
    let access_log = AccessLog::new(&config.log, &registry)?;
    let signer = Arc::new(Signer::new(config.signing.read()?));
    metrics.signing_keys.set(i64::try_from(config.signing.keys.len()).unwrap_or(i64::MAX));
    let files = fingerprint(&certificates::files(&config));
    let certificates = Arc::new(Certificates::new(LoadedCertificates::of(&config)?, &registry)?);
    let starting = Starting::new(config.name.clone(), started);
    let metrics_token = admin::metrics_token(config.admin.metrics_token_file.as_deref()).context("[admin]")?;
    let admin_address = match config.admin_listen {
        None => None,
        Some(listen) => Some(starting.admin(registry.clone(), metrics_token, drain).start(listen, &http).await?),
    };
    let log = Arc::new(EventLog::new(&config.limits, metrics.clone()));
    let publish_metrics = PublishMetrics::register(&registry)?;
    let store_metrics = StoreMetrics::register(&registry)?;
    let root = config.data_dir.clone();
    let (data_dir, released) = spawn_blocking(move || DataDir::open(&root)).await??;
    let joining = match &config.cluster {
        None => None,
        Some(section) => {
            ensure_proved(&config, section, data_dir.root(), &starting).await?;
            let digests = digests(&config.repositories, &config.services, &signer);
            let begun = Membership::new(&config, section, digests, data_dir.root(), &metrics.bounds);
            Some(begun.context("data_dir cannot be written")?)
        }
    };
    let validity = joining.as_ref().map_or_else(Validity::always, |(cluster, _)| cluster.validity().clone());
    let options = Options {
        generation_floor: config.generation_floor,
        lower_generations: config.lower_generations,
        clocks: metrics.clocks.clone(),
        retention: config.retention.clone(),
        signer: signer.clone(),
        announce: log.announce(),
        metrics: publish_metrics,
        validity: validity.clone(),
        superseded: joining.as_ref().map(|(_, membership)| membership.superseded()),
    };
    let Loaded { publisher, records, started: published, stored } =
        load(&config, data_dir.clone(), options, store_metrics, &metrics, &starting).await?;
    if let Err(reason) = spawn_blocking(mirror::check_git_program).await? {
        tracing::warn!(
            reason,
            "git cannot be used: mirrors are not repacked, and repositories on this machine cannot be mirrored; install \
             git 2.34 or later"
        );
    }
    let fleet = FleetStore::start(
        records.clone(),
        config.fleet().map_err(anyhow::Error::msg)?,
        config.cluster.is_some(),
        (FleetMetrics::register(&registry)?, &metrics.bounds),
        drain,
    )
    .await;
    let (observed, deletions) = Observed::new(config.limits.observed(), &metrics.bounds);
    last_seen::start(records.clone(), observed.clone(), deletions, metrics.clone(), drain);
    let access = access::start(&config.access, fleet.follow(), publisher.identity.cluster(), &metrics, drain).await?;
    let disk = disk_watch::start(data_dir.clone(), config.limits.min_free, metrics.clone(), drain).await;
    let mut context =
        Context::new(publisher.clone(), data_dir, log.clone(), metrics.clone(), &config.limits, &config.upstreams)
            .storing_mirrors(config.max_stored_mirror());
    let mut of_members = None;
    if let Some((joined, _)) = &joining {
        let client =
            Arc::new(MemberClient::new(&config.tls, publisher.identity.cluster().as_ref(), &registry, &metrics)?);
        let records = NameRecords::new(records.clone(), validity.clone(), &registry, &metrics.bounds)?;
        let names = ServiceNames::new(joined.agreement(), publisher.clone(), records);
        context = context.in_cluster(validity.clone(), names.clone());
        of_members = Some((client, names));
    }
    let dependencies = Dependencies {
        file: Documents::new(&config.repositories, &config.services),
        stored,
        secrets_dir: config.operator.secrets_dir.clone(),
        limits: config.limits.clone(),
        context: context.clone(),
    };
    let generation = |descriptor: &Descriptor| descriptor.publication().generation;
    let before = published.current.iter().map(|(name, current)| (name.clone(), generation(current))).collect();
    let (catalog, editor) = Box::pin(catalog::begin(dependencies, published, drain)).await;
    drain.spawn(Collector::new(&publisher, config.retention.clone()).run(drain.clone()));
    drain.spawn(deltas::make_deltas(
        publisher.clone(),
        config.limits.max_delta_tarball,
        metrics.clone(),
        drain.clone(),
    ));
    let lost_definitions = LostDefinitions::new(&publisher, config.operator_listen.is_some());
    CatalogCollector::register(&registry, catalog.clone(), lost_definitions.clone())?;
    metrics.show_retention(&config.retention);
    let streams = config.limits.event_streams;
    let events = Events::new(log, catalog.clone(), access.clone(), streams, validity, metrics.clone(), drain);
    let versions = Versions::new(catalog.clone(), publisher.clone(), &metrics.bounds);
    let lost = lost_definitions.clone();
    let (served, signs) = (catalog.clone(), signer.clone());
    let mut api = EdgeApi::new(
        served,
        publisher.clone(),
        signs,
        metrics.clone(),
        &config.limits,
        (events, observed.clone()),
        lost,
    );
    let mut operators = OperatorApi::new(
        catalog.clone(),
        editor.clone(),
        versions.clone(),
        (fleet.clone(), observed.clone(), access.clone()),
        &config,
        (&registry, &metrics.bounds),
    )?;
    let mut cluster = None;
    if let Some(((joined, membership), (client, names))) = joining.zip(of_members) {
        let replicas = Replicas::new(joined.clone(), publisher.clone(), editor.clone());
        let (replicas_too, names_too) = (replicas.clone(), names.clone());
        let members =
            Members { cluster: joined.clone(), client: client.clone(), replicas: replicas_too, names: names_too };
        operators = operators.in_cluster(members);
        let members = MemberApi::new(joined.clone(), replicas.clone(), publisher.identity.cluster(), operators.clone());
        api = api.in_cluster(InCluster { cluster: joined.clone(), members, replicas });
        let parts = Parts {
            records,
            publisher: publisher.clone(),
            editor: editor.clone(),
            names,
            members: client.clone(),
            mirrors: MirrorSource { catalog: catalog.clone(), publisher: publisher.clone(), context },
            metrics: ClusterMetrics::register(&registry)?,
        };
        membership.start(parts, drain);
        joined.send(Event::Defined(catalog.snapshot().definitions.repositories.keys().cloned().collect())).await;
        cluster = Some((joined, client));
    }
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| anyhow::anyhow!("cannot listen on listen = \"{}\": {error}", config.listen))?;
    let address = listener.local_addr()?;
    let of_edges = http.listener("edge").with_access_log(&access_log);
    serve::tcp(listener, Some(certificates.of_edges()), api, of_edges, drain);
    let operator_address = match config.operator_listen.zip(certificates.of_operators()) {
        None => None,
        Some((listen, tls)) => {
            let of_operators = http.listener("operators").with_access_log(&access_log);
            Some(operators.start(listen, tls, of_operators, drain).await?)
        }
    };
    let last_reload = LastReload::new(metrics.reload_refused.clone());
    let of_cluster = cluster.as_ref().map(|(cluster, _)| cluster.clone());
    let (shown, seen, reloads) = (catalog.clone(), certificates.clone(), last_reload.clone());
    let (clocks, access_files) = (metrics.clocks.clone(), metrics.access_files_readable.clone());
    let ready = move || {
        let now = SystemTime::now();
        let view = of_cluster.as_ref().map(Cluster::view);
        let node = NodeHealth {
            disk: disk.borrow().clone(),
            clock: clocks.problem(now, Instant::now()),
            access_files_unreadable: access_files.get() == 0,
            certificates_have_expired: seen.have_expired(now),
            definitions_lost: lost_definitions.evidence().is_some(),
            without_record: lost_definitions.without_record(),
            suspended: publisher.repositories.suspended().len(),
            outside_cluster: view.as_ref().and_then(|view| view.outside()),
            differing_members: view.as_ref().map_or(0, |view| view.differing().count()),
        };
        readiness(&shown, node).but(reloads.refused())
    };
    let (shown, name) = (catalog.clone(), config.name.clone());
    let of_cluster = cluster.as_ref().map(|(cluster, _)| cluster.clone());
    let status = move |readiness| {
        let mut status = status::status(&name, started, &shown, readiness);
        if let Some(cluster) = &of_cluster {
            status["cluster"] = cluster::status(&cluster.view());
        }
        status
    };
    starting.ends(Shown { ready: Box::new(ready), status: Box::new(status) });
    let members = cluster.as_ref().map(|(_, client)| client.clone());
    let certificates =
        CertificateUsers::new(config.clone(), certificates, members, (metrics.clone(), last_reload.clone()));
    let certificates = Arc::new(WatchedFiles::new(certificates, files));
    certificates.follow(drain);
    Ok(Running {
        address,
        admin_address,
        operator_address,
        catalog,
        editor,
        fleet,
        before,
        config,
        access,
        versions,
        certificates,
        metrics,
        cluster,
        signer,
        released,
        last_reload,
        drain: drain.clone(),
    })
}

/// The contents of a store.
struct Loaded {
    publisher: Arc<Publisher>,
    records: Records,
    started: Started,
    /// The documents of operators.
    stored: StoredDefinitions,
}

/// Opens the store, and reads definitions and publications.
async fn load(
    config: &Config,
    data_dir: DataDir,
    options: Options,
    store_metrics: StoreMetrics,
    metrics: &Metrics,
    starting: &Starting,
) -> anyhow::Result<Loaded> {
    let objects =
        Objects::open(&config.store, data_dir.root(), store_metrics.clone(), (&metrics.bounds, &metrics.clocks))
            .await?;
    let records = open_records(config, data_dir.root(), store_metrics)?;
    // What is wrong with a folder of this machine would be wrong again.
    let is_unavailable = |error: &PublishError| config.cluster.is_some() && matches!(error, PublishError::Record(_));
    let open = async || weir_publish::open(objects.clone(), records.clone(), data_dir.clone(), options.clone()).await;
    let (publisher, stored) = starting.until_answered(is_unavailable, open).await?;
    let file = Documents::new(&config.repositories, &config.services);
    let defined = Definitions::of(&file, &Documents::stored(&stored, config.cluster.is_some()));
    let repositories = defined.repositories.keys().map(RepositoryName::as_str).collect();
    for unused in data_dir.unused_mirrors(&repositories) {
        tracing::info!(path = %unused.display(), "the mirror belongs to no configured repository: it may be deleted");
    }
    // A service with a stored document counts as configured, even if the document is invalid.
    let started = publisher.ownership.start(&defined.services.keys().cloned().collect(), SystemTime::now()).await?;
    Ok(Loaded { publisher, records, started, stored })
}

impl Running {
    /// The address for edges.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of `/livez`, `/readyz`, `/metrics` and `/status`.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// The address for operators.
    pub fn operator_address(&self) -> Option<SocketAddr> {
        self.operator_address
    }

    /// The current descriptor of a service, as it changes.
    pub fn service(&self, name: &ServiceName) -> Option<watch::Receiver<Option<Arc<Descriptor>>>> {
        self.catalog.service(name).map(|service| service.follow())
    }

    /// The generation of a service when the origin started.
    pub fn generation_before(&self, name: &ServiceName) -> Option<Generation> {
        self.before.get(name).copied()
    }

    /// Whether a service follows its ref, as it changes.
    pub fn condition(&self, name: &ServiceName) -> Option<watch::Receiver<Condition>> {
        self.catalog.service(name).map(|service| service.follow_condition())
    }

    /// The access list for edges as JSON, as it changes.
    pub fn access(&self) -> watch::Receiver<Option<Bytes>> {
        self.access.clone()
    }

    /// The state of a repository, as it changes.
    pub fn repository(&self, name: &RepositoryName) -> Option<watch::Receiver<RepositoryState>> {
        self.catalog.repository(name).map(|worker| worker.follow())
    }

    /// The versions of services.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Triggers a poll of a repository, like a webhook. Returns false if there is no such repository.
    pub fn trigger_poll(&self, name: &RepositoryName) -> bool {
        self.catalog.repository(name).inspect(Handle::trigger_poll).is_some()
    }

    /// Applies the repositories and services of a changed configuration file, and reloads certificates and keys.
    /// Other changes need a restart, and are logged.
    ///
    /// # Errors
    /// The file or a certificate cannot be read or is invalid, or the origin is stopping. Nothing is changed then.
    pub async fn reload_file(&self, file: &Path) -> anyhow::Result<()> {
        let outcome = self.take_file(file).await;
        let result = if outcome.is_ok() { "applied" } else { "refused" };
        self.metrics.reloads.with_label_values(&[result]).inc();
        self.last_reload.by_signal(&outcome);
        match &outcome {
            Ok(()) => tracing::info!(
                "the repositories and services of the configuration file were applied; new connections use the \
                 certificates of now"
            ),
            Err(error) => tracing::error!(
                error = format!("{error:#}"),
                "the configuration file was not applied: nothing has changed"
            ),
        }
        outcome
    }

    async fn take_file(&self, file: &Path) -> anyhow::Result<()> {
        let (file, operator_listen) = (file.to_owned(), self.config.operator_listen);
        let read = move || -> anyhow::Result<_> {
            let now = Config::load(&file)?;
            // A change of `operator_listen` needs a restart.
            let certificates = LoadedCertificates::of(&Config { operator_listen, ..now.clone() })?;
            certificates.check_validity(SystemTime::now())?;
            Ok(now)
        };
        let now = spawn_blocking(read).await??;
        let (repositories, services) = (&now.repositories, &now.services);
        anyhow::ensure!(self.editor.reload(Documents::new(repositories, services)).await, "the origin is stopping");
        self.fleet.set_file(&now.fleet().map_err(anyhow::Error::msg)?);
        if let Some((cluster, _)) = &self.cluster {
            cluster.send(Event::Described(digests(repositories, services, &self.signer))).await;
            let names = repositories.iter().map(|repository| repository.name.clone());
            cluster.send(Event::Defined(names.collect())).await;
        }
        let (certificates, config) = (self.certificates.clone(), now.clone());
        spawn_blocking(move || certificates.apply(|users| users.apply(config))).await??;
        for key in changed_keys(&self.config, &now, RELOADABLE) {
            tracing::warn!(%key, "the key has changed; it takes effect after a restart");
        }
        Ok(())
    }

    /// Stops taking requests and finishes those in progress until the deadline. Returns true if all were finished.
    ///
    /// In a cluster it first hands over what it owns, in at most two thirds of that time.
    pub async fn drain(self, deadline: Duration) -> bool {
        let begun = Instant::now();
        if let Some((cluster, _)) = &self.cluster
            && !cluster.leave(deadline * 2 / 3).await
        {
            tracing::warn!(
                "not all repositories were handed over: the other members claim them when the session expires"
            );
        }
        let clean = self.drain.finish(deadline.saturating_sub(begun.elapsed())).await;
        self.release().await;
        clean
    }

    /// Stops at once, like a crash.
    pub async fn cut(self) {
        self.drain.cut().await;
        self.release().await;
    }

    /// The data directory stays locked until the last thread of the stopped workers has ended.
    async fn release(self) {
        let released = self.into_released();
        if tokio::time::timeout(RELEASE_DEADLINE, released.wait()).await.is_err() {
            tracing::warn!("threads are still running; the data directory stays locked until they end");
        }
    }

    fn into_released(self) -> Released {
        self.released
    }
}

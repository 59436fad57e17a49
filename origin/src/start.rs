//! Composition: creates every part of an origin from its configuration and joins them. Begin at [`start`], and read
//! `compose`: a list of steps.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anyhow::Context as _;
use prometheus::Registry;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use weir_git::mirror;
use weir_ownership::Event;
use weir_protocol::descriptor::Generation;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::{
    Collector, Options, PublishError, PublishMetrics, Publisher, Signer, Started, StoredDefinitions, Validity,
};
use weir_runtime::admin::{self, STATUS_SOCKET};
use weir_runtime::file_watch::{WatchedFiles, fingerprint};
use weir_runtime::last_reload::LastReload;
use weir_runtime::process_metrics;
use weir_runtime::serve::{self, AccessLog, Handler, HttpMetrics, ListenerMetrics, ServerTls};
use weir_runtime::shutdown::Drain;
use weir_store::{Objects, Records, StoreMetrics};
use weir_upstream::DataDir;

use crate::catalog::{self, Catalog, CatalogCollector, Definitions, Dependencies, Documents, Editor};
use crate::certificates::{self, CertificateUsers, Certificates, LoadedCertificates};
use crate::cluster::{Cluster, ClusterMetrics, Membership, MirrorSource, Parts, Replicas, digests, ensure_proved};
use crate::config::Config;
use crate::edge_api::{EdgeApi, Events, InCluster, PartStatements};
use crate::event_log::EventLog;
use crate::fleet::{FleetBounds, FleetMetrics, FleetStore, MayShard};
use crate::freezes::FreezeStore;
use crate::lost_definitions::LostDefinitions;
use crate::member_api::MemberApi;
use crate::member_client::MemberClient;
use crate::metrics::Metrics;
use crate::names::{NameRecords, ServiceNames};
use crate::observed::Observed;
use crate::operator_api::{Members, OperatorApi, WebhookApi};
use crate::plans::PlanStore;
use crate::readiness::{NodeHealth, readiness};
use crate::reconcile::Context;
use crate::record_engine::open_records;
use crate::rollouts::Rollouts;
use crate::running::Running;
use crate::starting::Starting;
use crate::versions::Versions;
use crate::{access, deltas, disk_watch, fleet_gauges, last_seen, part_news, shown};

/// This origin in its cluster, and the task that drives it.
type Joining = (Cluster, Membership);

/// The client of the other members, and the names of services that all share.
type OfMembers = (Arc<MemberClient>, ServiceNames);

/// Connections that wait to be accepted, as the standard library has it.
const BACKLOG: u32 = 128;

/// Starts an origin. Returns once it serves the state published before. It waits for no upstream; in a cluster for the store.
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

#[expect(clippy::too_many_lines, reason = "a list of steps")]
async fn compose(config: Config, drain: &Drain) -> anyhow::Result<Running> {
    let begun = SystemTime::now();
    let registry = Registry::new();
    let metrics = register(&registry, &config, begun)?;
    let http = HttpMetrics::register(&registry)?;
    let signer = Arc::new(Signer::new(config.signing.read()?).with_cosign(config.signing.cosign));
    let files = fingerprint(&certificates::files(&config));
    let certificates = Arc::new(Certificates::new(LoadedCertificates::of(&config)?, &registry)?);
    let starting = Starting::new(config.name.clone(), begun);
    let admin_address = listen_for_admins(&config, &starting, &registry, &http, drain).await?;
    let of_edges = reserve(config.listen)?;
    let root = config.data_dir.clone();
    let (data_dir, released) = spawn_blocking(move || DataDir::open(&root)).await??;
    starting.admin(registry.clone(), None, drain).listen_at(&config.data_dir.join(STATUS_SOCKET));
    let joining = join(&config, &data_dir, &signer, &metrics, &starting).await?;
    let log = Arc::new(EventLog::new(&config.limits, metrics.clone()));
    let options = options(&config, &signer, &log, joining.as_ref(), (&registry, &metrics))?;
    let validity = options.validity.clone();
    let Loaded { publisher, records, started, stored } =
        load(&config, &data_dir, options, (&registry, &metrics), &starting).await?;
    warn_without_git().await?;
    // Before anything is published.
    let (plans, is_shared) = (publisher.plans.clone(), joining.is_some());
    let plans = PlanStore::start(&records, &config.rollouts, plans, is_shared, &registry).await?;
    let freezes = FreezeStore::start(&records, publisher.freezes.clone(), is_shared, &registry).await?;

    let disk = disk_watch::start(data_dir.clone(), config.limits.min_free, metrics.clone(), drain).await;
    let may_shard = joining.as_ref().map(|(cluster, _)| cluster.knows_shards());
    let fleet = follow_fleet(&config, &records, may_shard, (&registry, &metrics), drain).await?;
    let observed = observe(&config, &records, &metrics, drain);
    let (followed, of_fleet) = (fleet.follow(), (&metrics, fleet.metrics()));
    let access = access::start(&config.access, followed, publisher.identity.cluster(), of_fleet, drain).await?;
    let of_members = match &joining {
        None => None,
        Some((cluster, _)) => Some(reach_members(&config, cluster, &publisher, &records, (&registry, &metrics))?),
    };
    let context =
        Context::new(publisher.clone(), data_dir, log.clone(), metrics.clone(), &config.limits, &config.upstreams)
            .storing_mirrors(config.max_stored_mirror());
    let context = match &of_members {
        None => context,
        Some((_, names)) => context.in_cluster(validity.clone(), names.clone()),
    };
    let before = generations(&started);
    let (catalog, editor) = follow_definitions(&config, stored, started, context.clone(), drain).await;
    let members = joining.as_ref().zip(of_members.as_ref()).map(|((cluster, _), (client, _))| part_news::Members {
        cluster: cluster.clone(),
        client: client.clone(),
        publisher: publisher.clone(),
    });
    part_news::start(log.clone(), context.part_sources.clone(), members, metrics.clone(), drain);
    maintain(&config, &publisher, &metrics, drain);
    let lost_definitions = LostDefinitions::new(&publisher, config.operator_listen.is_some());
    CatalogCollector::register(&registry, catalog.clone(), lost_definitions.clone())?;
    fleet_gauges::start(observed.clone(), catalog.clone(), metrics.clone(), drain);
    let versions = Versions::new(catalog.clone(), publisher.clone(), &metrics.bounds);
    let joined = joining.as_ref().map(|(cluster, _)| cluster.clone());
    let rollouts = Rollouts::new(versions.clone(), observed.clone(), joined, &registry)?;
    rollouts.start(drain);
    freezes.follow(versions.clone(), drain);
    plans.follow(versions.clone(), drain);

    let streams = config.limits.event_streams;
    let events = Events::new(log, catalog.clone(), access.clone(), streams, validity, metrics.clone(), drain);
    let api = EdgeApi::new(
        catalog.clone(),
        publisher.clone(),
        signer.clone(),
        metrics.clone(),
        &config.limits,
        (events, observed.clone()),
        lost_definitions.clone(),
    );
    let operators = OperatorApi::new(
        catalog.clone(),
        editor.clone(),
        versions.clone(),
        (fleet.clone(), observed, access.clone()),
        (rollouts, freezes, plans.clone()),
        &config,
        (&registry, &metrics.bounds),
    )?;
    let of_operators = operators.access();
    let (api, operators, cluster) = match joining.zip(of_members) {
        None => (api, operators, None),
        Some((joining, (client, names))) => {
            let cluster = joining.0.clone();
            let parts = Parts {
                records,
                publisher: publisher.clone(),
                editor: editor.clone(),
                names,
                members: client.clone(),
                mirrors: MirrorSource { catalog: catalog.clone(), publisher: publisher.clone(), context },
                metrics: ClusterMetrics::register(&registry)?,
            };
            let (api, operators) = join_in(joining, parts, &catalog, (api, operators), drain).await;
            (api, operators, Some((cluster, client)))
        }
    };
    let access_log = AccessLog::new(&config.log, &registry)?;
    let address = listen_for_edges(of_edges, &certificates, api, (&http, &access_log), drain)?;
    let (operator_address, webhook_address) =
        listen_for_operators(&config, &certificates, operators, (&http, &access_log), drain).await?;
    let last_reload = LastReload::new(metrics.reload_refused.clone());
    let joined = cluster.as_ref().map(|(cluster, _)| cluster.clone());
    let node = node_health((&publisher, lost_definitions), joined.clone(), certificates.clone(), &metrics, disk);
    let (shown, reloads) = (catalog.clone(), last_reload.clone());
    let ready = Box::new(move || readiness(&shown, node()).degraded_by(reloads.refused()));
    starting.ends(shown::shown(config.name.clone(), begun, catalog.clone(), joined, ready));

    let members = cluster.as_ref().map(|(_, client)| client.clone());
    let reported = (metrics.clone(), last_reload.clone());
    let certificates = CertificateUsers::new(config.clone(), certificates, members, reported);
    let certificates = Arc::new(WatchedFiles::new(certificates, files));
    certificates.follow(drain);
    Ok(Running {
        address,
        admin_address,
        operator_address,
        webhook_address,
        catalog,
        editor,
        fleet,
        plans,
        operators: of_operators,
        before,
        config: Box::new(config),
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

fn register(registry: &Registry, config: &Config, begun: SystemTime) -> anyhow::Result<Metrics> {
    let metrics = Metrics::register(registry)?;
    metrics.start_time.set(begun.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()));
    metrics.signing_keys.set(i64::try_from(config.signing.keys.len()).unwrap_or(i64::MAX));
    metrics.show_retention(&config.retention);
    process_metrics::register(registry)?;
    Ok(metrics)
}

/// First, because the store may not answer for long.
async fn listen_for_admins(
    config: &Config,
    starting: &Starting,
    registry: &Registry,
    http: &HttpMetrics,
    drain: &Drain,
) -> anyhow::Result<Option<SocketAddr>> {
    let token = admin::metrics_token(config.admin.metrics_token_file.as_deref()).context("[admin]")?;
    let Some(listen) = config.admin_listen else { return Ok(None) };
    starting.admin(registry.clone(), token, drain).start(listen, http).await.map(Some)
}

/// Prepares the membership of a cluster. `None`: this origin is the only one.
async fn join(
    config: &Config,
    data_dir: &DataDir,
    signer: &Signer,
    metrics: &Metrics,
    starting: &Starting,
) -> anyhow::Result<Option<Joining>> {
    let Some(section) = &config.cluster else { return Ok(None) };
    ensure_proved(config, section, data_dir.root(), starting).await?;
    let digests = digests((&config.repositories, &config.services, &config.rollouts), config.oci, signer);
    let joining = Membership::new(config, section, digests, data_dir.root(), &metrics.bounds);
    joining.context("data_dir cannot be written").map(Some)
}

/// What the publisher is opened with.
fn options(
    config: &Config,
    signer: &Arc<Signer>,
    log: &Arc<EventLog>,
    joining: Option<&Joining>,
    (registry, metrics): (&Registry, &Metrics),
) -> anyhow::Result<Options> {
    Ok(Options {
        generation_floor: config.generation_floor,
        lower_generations: config.lower_generations,
        clocks: metrics.clocks.clone(),
        retention: config.retention.clone(),
        signer: signer.clone(),
        announce: log.announce(),
        metrics: PublishMetrics::register(registry)?,
        validity: joining.map_or_else(Validity::always, |(cluster, _)| cluster.validity().clone()),
        superseded: joining.map(|(_, membership)| membership.superseded()),
        may_store_blobs: joining.map(|(cluster, _)| cluster.knows_blobs()),
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
    data_dir: &DataDir,
    options: Options,
    (registry, metrics): (&Registry, &Metrics),
    starting: &Starting,
) -> anyhow::Result<Loaded> {
    let of_store = StoreMetrics::register(registry)?;
    let objects =
        Objects::open(&config.store, data_dir.root(), of_store.clone(), (&metrics.bounds, &metrics.clocks)).await?;
    let records = open_records(config, data_dir.root(), of_store)?;
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

async fn warn_without_git() -> anyhow::Result<()> {
    if let Err(reason) = spawn_blocking(mirror::check_git_program).await? {
        tracing::warn!(
            reason,
            "git cannot be used: mirrors are not repacked, and repositories on this machine cannot be mirrored; install \
             git 2.34 or later"
        );
    }
    Ok(())
}

/// Agents, assignments and issuers.
async fn follow_fleet(
    config: &Config,
    records: &Records,
    may_shard: Option<MayShard>,
    (registry, metrics): (&Registry, &Metrics),
    drain: &Drain,
) -> anyhow::Result<FleetStore> {
    let file = config.fleet().map_err(anyhow::Error::msg)?;
    let shown = (FleetMetrics::register(registry)?, &metrics.bounds);
    Ok(FleetStore::start(records.clone(), &file, may_shard, FleetBounds::of(&config.limits), shown, drain).await)
}

/// What agents run.
fn observe(config: &Config, records: &Records, metrics: &Metrics, drain: &Drain) -> Observed {
    let (observed, deletions) = Observed::new(config.limits.observed(), &metrics.bounds);
    last_seen::start(records.clone(), observed.clone(), deletions, drain);
    observed
}

fn reach_members(
    config: &Config,
    cluster: &Cluster,
    publisher: &Arc<Publisher>,
    records: &Records,
    (registry, metrics): (&Registry, &Metrics),
) -> anyhow::Result<OfMembers> {
    let client = MemberClient::new(&config.tls, publisher.identity.cluster().as_ref(), registry, metrics)?;
    let records = NameRecords::new(records.clone(), cluster.validity().clone(), registry, &metrics.bounds)?;
    Ok((Arc::new(client), ServiceNames::new(cluster.agreement(), publisher.clone(), records)))
}

/// The last generation of each service that is published.
fn generations(started: &Started) -> HashMap<ServiceName, Generation> {
    let published = started.current.iter();
    published.map(|(name, current)| (name.clone(), current.publication().generation)).collect()
}

/// Starts the workers of all repositories.
async fn follow_definitions(
    config: &Config,
    stored: StoredDefinitions,
    started: Started,
    context: Context,
    drain: &Drain,
) -> (Arc<Catalog>, Editor) {
    let dependencies = Dependencies {
        file: Documents::new(&config.repositories, &config.services),
        stored,
        secrets_dir: config.operator_api.secrets_dir.clone(),
        limits: config.limits.clone(),
        oci: config.oci,
        context,
    };
    Box::pin(catalog::begin(dependencies, started, drain)).await
}

/// Deletes what is not referenced, and makes deltas.
fn maintain(config: &Config, publisher: &Arc<Publisher>, metrics: &Metrics, drain: &Drain) {
    drain.spawn(Collector::new(publisher, config.retention.clone()).run(drain.clone()));
    let largest = config.limits.max_delta_tarball;
    drain.spawn(deltas::make_deltas(publisher.clone(), largest, metrics.clone(), drain.clone()));
}

/// Starts as a member of the cluster. Returns the APIs, which then answer for the other members too.
async fn join_in(
    (cluster, membership): Joining,
    parts: Parts,
    catalog: &Catalog,
    (api, operators): (EdgeApi, OperatorApi),
    drain: &Drain,
) -> (EdgeApi, OperatorApi) {
    let (publisher, client, names) = (parts.publisher.clone(), parts.members.clone(), parts.names.clone());
    let statements = PartStatements::new(client.clone());
    let replicas = Replicas::new(cluster.clone(), publisher.clone(), parts.editor.clone());
    let members = Members { cluster: cluster.clone(), client, replicas: replicas.clone(), names };
    let operators = operators.in_cluster(members);
    let members = MemberApi::new(cluster.clone(), replicas.clone(), publisher.identity.cluster(), operators.clone());
    let api = api.in_cluster(InCluster { cluster: cluster.clone(), members, replicas, statements });
    membership.start(parts, drain);
    cluster.send(Event::Defined(catalog.snapshot().definitions.repositories.keys().cloned().collect())).await;
    (api, operators)
}

/// Takes the address for edges before others learn of this origin. Connections are refused until all is read.
fn reserve(listen: SocketAddr) -> anyhow::Result<TcpSocket> {
    let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let reserved = socket.and_then(|socket| {
        socket.set_reuseaddr(true)?;
        socket.bind(listen)?;
        Ok(socket)
    });
    reserved.map_err(|error| anyhow::anyhow!("cannot listen on listen = \"{listen}\": {error}"))
}

fn listen_for_edges(
    socket: TcpSocket,
    certificates: &Certificates,
    api: EdgeApi,
    (http, access_log): (&HttpMetrics, &AccessLog),
    drain: &Drain,
) -> anyhow::Result<SocketAddr> {
    let listener = socket.listen(BACKLOG)?;
    let address = listener.local_addr()?;
    let of_edges = http.listener("edge").with_access_log(access_log);
    serve::tcp(listener, Some(certificates.of_edges()), api, of_edges, drain);
    Ok(address)
}

/// The addresses for operators, and for webhooks alone.
async fn listen_for_operators(
    config: &Config,
    certificates: &Certificates,
    operators: OperatorApi,
    (http, access_log): (&HttpMetrics, &AccessLog),
    drain: &Drain,
) -> anyhow::Result<(Option<SocketAddr>, Option<SocketAddr>)> {
    let Some((listen, tls)) = config.operator_listen.zip(certificates.of_operators()) else { return Ok((None, None)) };
    let of_webhooks = match config.webhook_listen {
        None => None,
        Some(listen) => {
            let metrics = http.listener("webhooks").with_access_log(access_log);
            let handler = WebhookApi(operators.clone());
            Some(serve_at(("webhook_listen", listen), tls.clone(), handler, metrics, drain).await?)
        }
    };
    let metrics = http.listener("operators").with_access_log(access_log);
    let of_operators = serve_at(("operator_listen", listen), tls, operators, metrics, drain).await?;
    Ok((Some(of_operators), of_webhooks))
}

/// Serves on `listen` until the drain.
async fn serve_at(
    (key, listen): (&str, SocketAddr),
    tls: ServerTls,
    handler: impl Handler,
    metrics: ListenerMetrics,
    drain: &Drain,
) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {key} = \"{listen}\""))?;
    let address = listener.local_addr()?;
    serve::tcp(listener, Some(tls), handler, metrics, drain);
    Ok(address)
}

/// Reads what `/readyz` says beside the catalog.
fn node_health(
    (publisher, lost_definitions): (&Arc<Publisher>, LostDefinitions),
    cluster: Option<Cluster>,
    certificates: Arc<Certificates>,
    metrics: &Metrics,
    disk: watch::Receiver<Option<String>>,
) -> impl Fn() -> NodeHealth + Send + Sync + 'static {
    let publisher = publisher.clone();
    let (clocks, access_files) = (metrics.clocks.clone(), metrics.access_files_readable.clone());
    move || {
        let now = SystemTime::now();
        let view = cluster.as_ref().map(Cluster::view);
        NodeHealth {
            disk: disk.borrow().clone(),
            clock: clocks.problem(now, Instant::now()),
            access_files_unreadable: access_files.get() == 0,
            certificates_have_expired: certificates.have_expired(now),
            definitions_lost: lost_definitions.is_suspected(),
            without_record: lost_definitions.without_record(),
            suspended: publisher.repositories.suspended().len(),
            outside_cluster: view.as_ref().and_then(|view| view.outside()),
            differing_members: view.as_ref().map_or(0, |view| view.differing().count()),
        }
    }
}

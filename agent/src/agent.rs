//! A running agent: built from its configuration, reloaded, and stopped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use prometheus::Registry;
use tokio::sync::watch;
use weir_protocol::name::ServiceName;
use weir_release::{Modes, Pins, RootLock, read_pins};
use weir_runtime::admin::{Admin, Readiness, metrics_token};
use weir_runtime::file_watch::{Reload, WatchedFiles, fingerprint};
use weir_runtime::last_reload::LastReload;
use weir_runtime::process_metrics;
use weir_runtime::serve::HttpMetrics;
use weir_runtime::shutdown::Drain;

use crate::composition::Composition;
use crate::config::Config;
use crate::edge_client::{EdgeClient, Edges, register_edges};
use crate::freshness_monitor::Monitor;
use crate::hook_labels::HookLabels;
use crate::metrics::Metrics;
use crate::poll::DownloadLimits;
use crate::readiness::readiness;
use crate::reload::{self, Reloader};
use crate::roster::{Roster, followed_before};
use crate::services::{Command, ListError, Services};
use crate::status::ServiceStatus;
use crate::supervise::supervise;
use crate::verify::Trust;

/// The time between two looks at the pins, which the command line writes.
const PIN_INTERVAL: Duration = Duration::from_secs(1);

/// A running agent.
pub struct Running {
    services: Arc<Services>,
    admin_address: Option<SocketAddr>,
    registry: Registry,
    reloader: Arc<WatchedFiles<Reloader>>,
    monitor: Option<Monitor>,
    drain: Drain,
}

/// Starts an agent: locks the root, reads the state on disk, and starts polling. Does not wait for edges.
///
/// # Errors
/// The configuration is invalid, a certificate cannot be read, another agent uses the root, the root is not writable, or the
/// admin address cannot be bound.
pub async fn start(config: Config) -> anyhow::Result<Running> {
    compose(config, false).await
}

/// As [`start`], for `--once`: `exec` runs only for a release that an edge has confirmed since the start.
///
/// # Errors
/// As [`start`].
pub async fn start_once(config: Config) -> anyhow::Result<Running> {
    compose(config, true).await
}

async fn compose(mut config: Config, once: bool) -> anyhow::Result<Running> {
    let started = SystemTime::now();
    config.validate()?;
    config.root = std::path::absolute(&config.root).context("`root` is not a path")?;
    let registry = Registry::new();
    let metrics = Metrics::register(&registry, config.metrics_by_service)?;
    let read = fingerprint(&reload::files(&config));
    let edges = Arc::new(EdgeClient::new(Edges::new(&config, &metrics)?));
    register_edges(&registry, edges.clone())?;
    let (root, modes) = (config.root.clone(), Modes { group_write: config.group_write });
    let lock = tokio::task::spawn_blocking(move || RootLock::acquire(&root, modes)).await??;
    let configured = config.clone();
    let labels = Arc::new(tokio::task::spawn_blocking(move || HookLabels::open(&configured)).await?);
    let pins = read_pins(&config.root).context("cannot read the pins")?;
    let (pins_read, pins) = watch::channel(Arc::new(pins));
    let drain = Drain::new();
    let trust = Trust::follow(&config.trust, &metrics.trust_file_readable, &drain).await?;
    let monitored = trust.clone().filter(|_| !config.max_proof_age.is_zero());
    let monitor = monitored
        .map(|trust| Monitor::new(trust, edges.clone(), config.request_timeout, config.max_proof_age, drain.clone()));
    let composition = Arc::new(Composition {
        lock: Arc::new(lock),
        downloads: DownloadLimits::new(config.max_downloads),
        drain,
        trust,
        monitor,
        edges,
        labels,
        metrics,
        pins,
        config,
        once,
        started,
    });
    let root = composition.config.root.clone();
    let before = tokio::task::spawn_blocking(move || followed_before(&root)).await?.context("cannot read `root`")?;
    let services = Arc::new(Services::new());
    let mut roster = Roster::new(composition.clone(), services.clone(), before);
    // An agent that cannot start has no effects.
    roster.configure(composition.config.clone(), None).await;
    let reloader = Reloader::new(composition.config.clone(), roster.handle(), composition.metrics.clone());
    let reloader = Arc::new(WatchedFiles::new(reloader, read));
    composition.drain.spawn(watch_pins(composition.config.root.clone(), pins_read, composition.drain.clone()));
    composition.follow_lists(&services, roster.handle());
    composition.drain.spawn(supervise(roster, composition.drain.clone()));
    if let Some(monitor) = composition.monitor.clone() {
        composition.drain.spawn(supervise(monitor, composition.drain.clone()));
    }
    let admin = admin(&composition, registry.clone(), services.clone(), reloader.user().last_reload.clone())?;
    // With `--once` it may be beside an agent of the same name, which has another part of the root.
    if !once {
        admin.listen_at(&composition.config.status_socket());
    }
    let admin_address = match composition.config.admin_listen {
        None => None,
        Some(listen) => {
            process_metrics::register(&registry)?;
            let http_metrics = HttpMetrics::register(&registry)?;
            match admin.start(listen, &http_metrics).await {
                Ok(address) => Some(address),
                Err(error) => {
                    composition.drain.cut().await;
                    return Err(error);
                }
            }
        }
    };
    let (monitor, drain) = (composition.monitor.clone(), composition.drain.clone());
    reloader.follow(&drain);
    Ok(Running { services, admin_address, registry, reloader, monitor, drain })
}

/// Reads the pins again and again: they are written by another process, perhaps on a file system that tells nobody.
async fn watch_pins(root: PathBuf, pins: watch::Sender<Arc<Pins>>, drain: Drain) {
    let mut failed = false;
    loop {
        tokio::select! {
            () = drain.begun() => return,
            () = tokio::time::sleep(PIN_INTERVAL) => {}
        }
        let root = root.clone();
        match tokio::task::spawn_blocking(move || read_pins(&root)).await.map_err(std::io::Error::other).flatten() {
            Ok(read) => {
                failed = false;
                pins.send_if_modified(|known| {
                    let changed = **known != read;
                    if changed {
                        *known = Arc::new(read);
                    }
                    changed
                });
            }
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!(%error, "the pins cannot be read; the last ones stay");
                }
            }
        }
    }
}

fn admin(
    composition: &Composition,
    registry: Registry,
    services: Arc<Services>,
    last_reload: LastReload,
) -> anyhow::Result<Admin> {
    let (name, edges, started) = (composition.config.name.clone(), composition.edges.clone(), composition.started);
    let (drain, all) = (composition.drain.clone(), services.clone());
    let ready = move || {
        if drain.has_begun() {
            return Readiness::NotReady(vec!["draining".to_owned()]);
        }
        let are_known = *all.are_known.borrow();
        let read = readiness(&all.statuses(), are_known, all.age(Instant::now()), SystemTime::now());
        read.degraded_by(last_reload.refused())
    };
    let status_readiness = ready.clone();
    let metrics_token = metrics_token(composition.config.admin.metrics_token_file.as_deref()).context("[admin]")?;
    Ok(Admin {
        registry,
        page: None,
        ready: Arc::new(ready),
        status: Arc::new(move |_| {
            let edges = edges.current();
            let now = SystemTime::now();
            let all = services.statuses().into_iter();
            let followed: serde_json::Map<_, _> =
                all.map(|(name, status)| (name.to_string(), status.to_json(now))).collect();
            let (ready, reasons) = status_readiness().into_parts();
            Ok(serde_json::json!({
                "role": "agent",
                "name": name,
                "version": env!("CARGO_PKG_VERSION"),
                "started": humantime::format_rfc3339_seconds(started).to_string(),
                "ready": ready,
                "reasons": reasons,
                "services": followed,
                "not_allowed": services.not_allowed().keys().collect::<Vec<_>>(),
                "edges": edges.overview().collect::<Vec<_>>(),
            }))
        }),
        metrics_token,
        drain: composition.drain.clone(),
    })
}

impl Running {
    /// The address of the admin listener, when one is configured.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// All metrics of this agent, as `/metrics` shows them.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Watches the status of a service; `None` when it is not followed.
    pub fn service(&self, service: &ServiceName) -> Option<watch::Receiver<ServiceStatus>> {
        self.services.status(service)
    }

    /// The names of the services that are followed now.
    pub fn services(&self) -> Vec<ServiceName> {
        self.services.names()
    }

    /// Waits until an edge has said which services there are, if the configuration does not.
    pub(crate) async fn services_are_known(&self) {
        // The sender lives as long as the agent.
        let _ = self.services.are_known.subscribe().wait_for(|known| *known).await;
    }

    /// Why no edge answered the last request for the services that there are.
    pub(crate) fn list_error(&self) -> watch::Receiver<Option<ListError>> {
        self.services.list_error.subscribe()
    }

    /// Polls a service as soon as its task is free; the status shows when that is done. Ignores services that are not
    /// followed.
    pub fn poll_now(&self, service: &ServiceName) {
        self.command(service, Command::Poll);
    }

    /// Refreshes a service as soon as its task is free: fetches the tarball and compares it with the files on disk.
    pub fn refresh_now(&self, service: &ServiceName) {
        self.command(service, Command::Refresh);
    }

    /// With `trust`: requests freshness statements as soon as the monitor is free; the status shows what they prove.
    pub fn prove_now(&self) {
        self.monitor.iter().for_each(Monitor::request_now);
    }

    fn command(&self, service: &ServiceName, command: Command) {
        self.services.command(service, command);
    }

    /// Applies a new configuration: edges, certificates, keys, CA and services. Requests in flight are not affected. Keys that
    /// need a restart are logged and ignored. `read`: the result of reading the configuration again.
    ///
    /// # Errors
    /// The configuration is invalid, or a file cannot be used. The old configuration stays in use.
    pub async fn reload(&self, read: anyhow::Result<Config>) -> anyhow::Result<()> {
        self.take(read).await
    }

    /// The same for a file that has changed, which nobody has confirmed by a signal.
    ///
    /// # Errors
    /// Those of [`Running::reload`], or the file names too few of the services.
    pub async fn reload_changed(&self, read: anyhow::Result<Config>) -> anyhow::Result<()> {
        let reloader = self.reloader.clone();
        self.take(read.and_then(|config| reloader.user().check_removed(&config).map(|()| config))).await
    }

    async fn take(&self, read: anyhow::Result<Config>) -> anyhow::Result<()> {
        let reloader = self.reloader.clone();
        let reload = move || {
            let outcome = reloader.apply(|reloader| reloader.apply(read?));
            reloader.user().report(&outcome);
            reloader.user().last_reload.by_signal(&outcome);
            outcome.context("the configuration was not reloaded")
        };
        tokio::task::spawn_blocking(reload).await??;
        // A back-off was for the old edges.
        self.services.names().iter().for_each(|service| self.poll_now(service));
        Ok(())
    }

    /// Stops: abandons downloads, and finishes a switch and a run of `exec`. Returns true when nothing was cut off at
    /// the deadline.
    pub async fn drain(self, deadline: Duration) -> bool {
        self.drain.finish(deadline).await
    }

    /// Stops immediately, as a crash would.
    pub async fn cut(self) {
        self.drain.cut().await;
    }
}

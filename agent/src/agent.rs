//! Puts an agent together.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use prometheus::Registry;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use weir_protocol::name::ServiceName;
use weir_runtime::admin::{Admin, Readiness};
use weir_runtime::process_metrics;
use weir_runtime::serve::HttpMetrics;
use weir_runtime::shutdown::Drain;

use crate::config::{Config, ServiceConfig};
use crate::edge_client::{EdgeClient, Edges};
use crate::hook::Hook;
use crate::metrics::{Metrics, unix_seconds};
use crate::poll::{Command, Exchange, Follower, Schedule, release_of};
use crate::readiness::readiness;
use crate::release::{Limits, RootLock, ServiceDirectory};
use crate::reload::Reloading;
use crate::status::{HookState, ServiceStatus};
use crate::supervise::supervise;

/// Orders that wait for a service at the most; more say nothing new.
const MAX_COMMANDS: usize = 8;

/// An agent that runs.
pub struct Running {
    services: Arc<BTreeMap<ServiceName, Service>>,
    admin_address: Option<SocketAddr>,
    registry: Registry,
    reloading: Arc<Reloading>,
    drain: Drain,
}

struct Service {
    status: watch::Receiver<ServiceStatus>,
    commands: mpsc::Sender<Command>,
}

/// Starts an agent: locks the root, reads what is there, and begins to poll. Waits for no edge.
///
/// # Errors
/// The configuration makes no sense, a certificate cannot be read, the root is in use or cannot be written, something
/// foreign stands where a `current` should, or the admin address cannot be bound.
pub async fn start(mut config: Config) -> anyhow::Result<Running> {
    let started = SystemTime::now();
    config.validate()?;
    config.root = std::path::absolute(&config.root).context("`root` is not a path")?;
    let registry = Registry::new();
    let metrics = Metrics::register(&registry, config.metrics_by_service)?;
    let edges = Arc::new(EdgeClient::new(Edges::new(&config, &metrics)?));
    let reloading = Reloading::new(config.clone(), edges.clone(), metrics.clone());
    let root = config.root.clone();
    let lock = tokio::task::spawn_blocking(move || RootLock::acquire(&root)).await??;
    let start = Start {
        lock: Arc::new(lock),
        downloads: Arc::new(Semaphore::new(config.max_downloads)),
        drain: Drain::new(),
        edges: edges.clone(),
        metrics,
        config,
        started,
    };
    let mut opened = Vec::new();
    // All folders before the first task: what cannot start does nothing.
    for service in &start.config.services {
        opened.push((service.clone(), start.open(service).await?));
    }
    let mut services = BTreeMap::new();
    for (service, directory) in opened {
        let name = service.name.clone();
        services.insert(name, start.follow(service, directory));
    }
    let services = Arc::new(services);
    let admin_address = match start.config.admin_listen {
        None => None,
        Some(listen) => {
            process_metrics::register(&registry)?;
            let http_metrics = HttpMetrics::register(&registry)?;
            let admin = admin(&start, registry.clone(), services.clone());
            match admin.start(listen, &http_metrics).await {
                Ok(address) => Some(address),
                Err(error) => {
                    start.drain.cut().await;
                    return Err(error);
                }
            }
        }
    };
    Ok(Running { services, admin_address, registry, reloading: reloading.into(), drain: start.drain })
}

/// What all services share.
struct Start {
    config: Config,
    lock: Arc<RootLock>,
    edges: Arc<EdgeClient>,
    downloads: Arc<Semaphore>,
    metrics: Metrics,
    drain: Drain,
    started: SystemTime,
}

impl Start {
    async fn open(&self, service: &ServiceConfig) -> anyhow::Result<Arc<ServiceDirectory>> {
        let limits = Limits { max_files: self.config.max_files, max_bytes: self.config.max_tarball_bytes.as_u64() };
        let (root, name, keep) = (self.config.root.clone(), service.name.clone(), self.config.keep_releases);
        let lock = self.lock.clone();
        let opened = tokio::task::spawn_blocking(move || ServiceDirectory::open(&root, &name, keep, limits, lock));
        Ok(Arc::new(opened.await??))
    }

    fn follow(&self, service: ServiceConfig, directory: Arc<ServiceDirectory>) -> Service {
        let ServiceConfig { name, exec } = service;
        let metrics = self.metrics.service(&name);
        let state = directory.state();
        let pending = directory.hook_job().is_some();
        let (status, watched) = watch::channel(ServiceStatus {
            release: release_of(&directory, &state),
            last_success: state.last_success(),
            hook: match (&exec, &state.release) {
                (None, _) | (_, None) => HookState::None,
                (Some(_), Some(_)) if pending => HookState::Pending,
                (Some(_), Some(_)) => HookState::Done,
            },
            ..ServiceStatus::default()
        });
        if let Some(last) = state.last_success() {
            metrics.last_success.set(unix_seconds(last));
        }
        if let Some(release) = &state.release {
            metrics.generation.set(i64::try_from(release.generation).unwrap_or(i64::MAX));
        }
        let hook = exec.map(|command| {
            let switched = Arc::new(Notify::new());
            let hook_metrics = self.metrics.hook(&name);
            if let Some(last) = state.hook_last_success() {
                hook_metrics.last_success.set(unix_seconds(last));
            }
            let hook = Hook {
                service: name.clone(),
                command,
                timeout: self.config.exec_timeout,
                directory: directory.clone(),
                switched: switched.clone(),
                status: status.clone(),
                metrics: hook_metrics,
                drain: self.drain.clone(),
            };
            self.drain.spawn(supervise(hook, self.drain.clone()));
            switched
        });
        let (commands, received) = mpsc::channel(MAX_COMMANDS);
        let config = &self.config;
        let follower = Follower {
            schedule: Schedule::new(&config.name, &name, config.poll_interval, config.refresh_interval, Instant::now()),
            exchange: Exchange::new(
                name,
                directory.incoming(),
                config,
                self.edges.clone(),
                self.downloads.clone(),
                self.metrics.clone(),
            ),
            directory,
            status,
            commands: received,
            metrics,
            hook,
            refused: None,
            drain: self.drain.clone(),
        };
        self.drain.spawn(supervise(follower, self.drain.clone()));
        Service { status: watched, commands }
    }
}

fn admin(start: &Start, registry: Registry, services: Arc<BTreeMap<ServiceName, Service>>) -> Admin {
    let (name, edges, started) = (start.config.name.clone(), start.edges.clone(), start.started);
    let (drain, all) = (start.drain.clone(), services.clone());
    let ready = move || {
        if drain.has_begun() {
            return Readiness::NotReady(vec!["draining".to_owned()]);
        }
        readiness(all.iter().map(|(name, service)| (name, service.status.borrow().clone())))
    };
    let told = ready.clone();
    Admin {
        registry,
        ready: Arc::new(ready),
        status: Arc::new(move |_| {
            let edges = edges.now();
            let edges = edges.overview().map(|(url, preferred, http3_usable)| {
                serde_json::json!({ "url": url, "preferred": preferred, "http3_usable": http3_usable })
            });
            let services: serde_json::Map<_, _> =
                services.iter().map(|(name, service)| (name.to_string(), service.status.borrow().to_json())).collect();
            let (ready, reasons) = told().told();
            // What matters first stands first.
            Ok(serde_json::json!({
                "role": "agent",
                "name": name,
                "version": env!("CARGO_PKG_VERSION"),
                "started": humantime::format_rfc3339_seconds(started).to_string(),
                "ready": ready,
                "reasons": reasons,
                "services": services,
                "edges": edges.collect::<Vec<_>>(),
            }))
        }),
        drain: start.drain.clone(),
    }
}

impl Running {
    /// Where `/livez`, `/readyz`, `/metrics` and `/status` are served.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// The metrics, for a process that shows those of several roles.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Watches a service; `None` when it is not followed.
    pub fn service(&self, service: &ServiceName) -> Option<watch::Receiver<ServiceStatus>> {
        self.services.get(service).map(|service| service.status.clone())
    }

    /// The services that are followed.
    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.keys()
    }

    /// Polls a service as soon as its task is free; its status says when that is done. Nothing for a service that is
    /// not followed.
    pub fn poll_now(&self, service: &ServiceName) {
        self.command(service, Command::Poll);
    }

    /// Refreshes a service as soon as its task is free: fetches in full, compares with the files on disk.
    pub fn refresh_now(&self, service: &ServiceName) {
        self.command(service, Command::Refresh);
    }

    fn command(&self, service: &ServiceName, command: Command) {
        if let Some(service) = self.services.get(service) {
            // When it is full, what waits does the same.
            let _ = service.commands.try_send(command);
        }
    }

    /// Takes over what can change at run time: which edges are asked, and the certificates, keys and authorities, read again
    /// from their files. Talks that are under way end as they began. What needs a restart is named in the log and left as it
    /// is. `read`: what came of reading the configuration again.
    ///
    /// # Errors
    /// The configuration makes no sense, or a file cannot be used. Everything is as it was.
    pub async fn reload(&self, read: anyhow::Result<Config>) -> anyhow::Result<()> {
        let reloading = self.reloading.clone();
        tokio::task::spawn_blocking(move || reloading.take(read)).await??;
        // What was put off was put off for the edges that were: the new ones are asked at once.
        self.services.keys().for_each(|service| self.poll_now(service));
        Ok(())
    }

    /// Stops: a download is abandoned, a switch and a run of `exec` are finished. True when nothing had to be cut at
    /// the deadline.
    pub async fn drain(self, deadline: Duration) -> bool {
        self.drain.finish(deadline).await
    }

    /// Stops at once, as a crash would.
    pub async fn cut(self) {
        self.drain.cut().await;
    }
}

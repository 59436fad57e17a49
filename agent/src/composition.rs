//! Composition: builds the tasks of an agent, those of all services and those of each.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, Semaphore, mpsc, watch};
use weir_protocol::name::ServiceName;
use weir_protocol::observed::HookState;
use weir_release::{Pins, RootLock, ServiceDirectory};
use weir_runtime::shutdown::Drain;

use crate::config::{Config, ServiceConfig};
use crate::edge_client::EdgeClient;
use crate::freshness_monitor::Monitor;
use crate::hook::{Check, Hook};
use crate::hook_labels::{self, HookLabels};
use crate::metrics::{Metrics, unix_seconds};
use crate::observed::Observer;
use crate::poll::{Batch, BatchSchedule, DownloadLimits, EventStream, Follower, Poller, Schedule, UpdateParts};
use crate::roster_messages::RosterHandle;
use crate::services::{Service, Services};
use crate::status::{ServiceStatus, applied, release_of};
use crate::supervise::supervise;
use crate::verify::Trust;

/// The most queued commands per service; more would repeat the same.
const MAX_COMMANDS: usize = 8;

/// The parts that all services share.
pub(crate) struct Composition {
    pub(crate) config: Config,
    pub(crate) once: bool,
    pub(crate) lock: Arc<RootLock>,
    pub(crate) edges: Arc<EdgeClient>,
    pub(crate) labels: Arc<HookLabels>,
    pub(crate) downloads: DownloadLimits,
    pub(crate) metrics: Metrics,
    pub(crate) trust: Option<Arc<Trust>>,
    pub(crate) monitor: Option<Monitor>,
    pub(crate) pins: watch::Receiver<Arc<Pins>>,
    pub(crate) drain: Drain,
    pub(crate) started: SystemTime,
}

impl Composition {
    /// Starts what asks for all services at once. `--once` needs it only to know the services and labels.
    pub(crate) fn follow_lists(&self, services: &Arc<Services>, roster: RosterHandle) {
        if self.once && !self.config.is_dynamic() && !self.config.uses_labels_of_edges() {
            return;
        }
        let (want, wanted) = mpsc::channel(MAX_COMMANDS);
        let (cursor, cursor_read) = watch::channel(None);
        let config = &self.config;
        if !self.once {
            let stream = EventStream {
                services: services.clone(),
                asked: self.edges.asked(),
                timeout: config.request_timeout,
                spread: config.spread,
                last_spread: config.spread,
                agent: config.name.clone(),
                wanted: want,
                cursor: cursor_read,
                errors: 0,
                metrics: self.metrics.clone(),
                drain: self.drain.clone(),
            };
            self.drain.spawn(supervise(stream, self.drain.clone()));
            let (services, edges, metrics) = (services.clone(), self.edges.clone(), self.metrics.clone());
            let observer = Observer::new(config, services, edges, metrics, self.drain.clone());
            self.drain.spawn(supervise(observer, self.drain.clone()));
        }
        let batch = Batch {
            roster,
            services: services.clone(),
            labels: self.labels.clone(),
            asked: self.edges.asked(),
            timeout: config.request_timeout,
            has_trust: self.trust.is_some(),
            schedule: BatchSchedule::new(&config.name, config.poll_interval, Instant::now()),
            wanted,
            spread: None,
            cursor,
            known: None,
            metrics: self.metrics.clone(),
            drain: self.drain.clone(),
        };
        self.drain.spawn(supervise(batch, self.drain.clone()));
    }

    /// Opens or creates the directory of a service. A failure is left to its first poll, which tries again and reports it.
    pub(crate) async fn open(&self, service: &ServiceName) -> Arc<ServiceDirectory> {
        let config = &self.config;
        // The end of `--once` is that of the hooks of this run.
        let required = self.once.then(|| config.hooks_of(service)).filter(ServiceConfig::has_hook);
        let required = required.map(|hooks| hooks.hooks_hash());
        let (options, lock) = (config.release_options(service), self.lock.clone());
        let directory = Arc::new(ServiceDirectory::new(&config.root, service, options, lock, required));
        let opened = directory.clone();
        let _ = tokio::task::spawn_blocking(move || opened.restore()).await;
        directory
    }

    /// Starts the tasks of a service. `hooks`: what they run. `within`: the first poll is spread over this.
    #[expect(clippy::too_many_lines, reason = "composition: a list of steps")]
    pub(crate) fn follow(
        &self,
        name: &ServiceName,
        services: &Arc<Services>,
        directory: Arc<ServiceDirectory>,
        hooks: ServiceConfig,
        within: Duration,
    ) -> Service {
        let (name, service, drain) = (name.clone(), hooks.clone(), self.drain.part());
        let metrics = self.metrics.service(&name);
        let state = directory.state();
        let labels = service.labels.then(|| self.labels.reader());
        let has_other_labels = labels.as_ref().is_some_and(|labels| {
            labels.borrow().as_ref().is_none_or(|labels| state.requires_labels(&hook_labels::hash(labels)))
        });
        let pending = directory.hook_job().is_some() || has_other_labels;
        let status = watch::Sender::new(ServiceStatus {
            release: release_of(&directory, &state),
            applied: applied(service.has_hook(), &state),
            last_success: state.last_success(),
            hook: match (service.has_hook(), &state.release) {
                (false, _) | (_, None) => HookState::None,
                (true, Some(_)) if pending => HookState::Pending,
                (true, Some(_)) => HookState::Succeeded,
            },
            ..ServiceStatus::default()
        });
        if let Some(last) = state.last_success() {
            metrics.last_success.set(unix_seconds(last));
        }
        if let Some(release) = &state.release {
            metrics.generation.set(i64::try_from(release.generation).unwrap_or(i64::MAX));
        }
        let depends_on = service.depends_on.clone();
        let check = service.check.clone().map(|command| Check {
            agent: self.config.name.clone(),
            service: name.clone(),
            labels: labels.clone(),
            command,
            timeout: self.config.exec_timeout,
            report_output: service.report_output,
            metrics: self.metrics.check(&name),
        });
        let hook = service.has_hook().then(|| {
            let switched = Arc::new(Notify::new());
            let hook_metrics = self.metrics.hook(&name);
            hook_metrics.pending.set(pending.into());
            if let Some(last) = state.hook_last_success() {
                hook_metrics.last_success.set(unix_seconds(last));
            }
            let hook = Hook {
                agent: self.config.name.clone(),
                service: name.clone(),
                config: service,
                labels,
                ca: self.config.ca.clone(),
                timeout: self.config.exec_timeout,
                files: Arc::new(Semaphore::new(1)),
                directory: directory.clone(),
                switched: switched.clone(),
                needs_confirmation: self.once,
                status: status.clone(),
                metrics: hook_metrics,
                drain: drain.clone(),
            };
            drain.spawn(supervise(hook, drain.clone()));
            switched
        });
        let upstream_unreachable = self.monitor.is_none().then(|| self.metrics.upstream_unreachable(&name));
        if let Some(monitor) = &self.monitor {
            monitor.watch(name.clone(), status.clone(), self.metrics.proof(&name));
        }
        let (commands, received) = mpsc::channel(MAX_COMMANDS);
        let (config, now) = (&self.config, Instant::now());
        let mut schedule = Schedule::new(&config.name, &name, config.poll_interval, config.refresh_interval, now);
        schedule.begin_within(now, within);
        let follower = Follower {
            spread: config.spread,
            announced_at: None,
            parts: UpdateParts::default(),
            row: None,
            schedule,
            poller: Poller::new(
                name,
                config,
                self.edges.clone(),
                self.downloads.clone(),
                directory.clone(),
                self.metrics.clone(),
                self.trust.clone(),
            ),
            directory: directory.clone(),
            status: status.clone(),
            commands: received,
            metrics,
            hook,
            check,
            veto: None,
            services: services.clone(),
            depends_on,
            ready: None,
            pins: self.pins.clone(),
            rejected: None,
            drain: drain.clone(),
        };
        drain.spawn(supervise(follower, drain.clone()));
        Service { status, directory, upstream_unreachable, commands, part: drain, hooks }
    }
}

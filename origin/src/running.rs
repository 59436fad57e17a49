//! A running origin: what it answers about itself, its reload and its end.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use weir_ownership::Event;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::Signer;
use weir_runtime::config::changed_keys;
use weir_runtime::config_watch::{TooManyRemoved, check_removed as removed};
use weir_runtime::directory_lock::Released;
use weir_runtime::file_watch::WatchedFiles;
use weir_runtime::last_reload::LastReload;
use weir_runtime::shutdown::Drain;
use weir_source::Condition;

use crate::access::SentList;
use crate::catalog::{Catalog, Documents, Editor};
use crate::certificates::{CertificateUsers, LoadedCertificates};
use crate::cluster::{Cluster, digests};
use crate::config::{Config, RELOADABLE};
use crate::fleet::FleetStore;
use crate::member_client::MemberClient;
use crate::metrics::Metrics;
use crate::operator_api::Access;
use crate::plans::PlanStore;
use crate::reconcile::{Handle, RepositoryState};
use crate::versions::Versions;

/// The longest wait at shutdown for threads that were signalled to stop.
const RELEASE_DEADLINE: Duration = Duration::from_secs(5);

/// Whether a file may replace the one that applies.
type Check = fn(&Config, &Config) -> Result<(), TooManyRemoved>;

/// A running origin.
pub struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) admin_address: Option<SocketAddr>,
    pub(crate) operator_address: Option<SocketAddr>,
    pub(crate) webhook_address: Option<SocketAddr>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) editor: Editor,
    pub(crate) fleet: FleetStore,
    pub(crate) plans: PlanStore,
    pub(crate) operators: Access,
    /// The generations before the start.
    pub(crate) before: HashMap<ServiceName, Generation>,
    /// The configuration at the start.
    pub(crate) config: Box<Config>,
    pub(crate) access: watch::Receiver<Arc<SentList>>,
    pub(crate) versions: Versions,
    pub(crate) certificates: Arc<WatchedFiles<CertificateUsers>>,
    pub(crate) metrics: Metrics,
    /// `None`: this origin is the only one.
    pub(crate) cluster: Option<(Cluster, Arc<MemberClient>)>,
    pub(crate) signer: Arc<Signer>,
    pub(crate) released: Released,
    pub(crate) last_reload: LastReload,
    pub(crate) drain: Drain,
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

    /// The address for webhooks alone.
    pub fn webhook_address(&self) -> Option<SocketAddr> {
        self.webhook_address
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

    /// The access list for edges, as it changes.
    pub fn access(&self) -> watch::Receiver<Arc<SentList>> {
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

    /// Applies what a changed configuration file defines, operators included, and reloads certificates and keys.
    /// Other changes need a restart, and are logged.
    ///
    /// # Errors
    /// The file or a certificate cannot be read or is invalid, or the origin is stopping. Nothing is changed then.
    pub async fn reload_file(&self, file: &Path) -> anyhow::Result<()> {
        self.reload(file, |_, _| Ok(())).await
    }

    /// The same for a file that has changed, which nobody has confirmed by a signal.
    ///
    /// # Errors
    /// Those of [`Running::reload_file`], or the file defines too few of the repositories or services.
    pub async fn reload_changed_file(&self, file: &Path) -> anyhow::Result<()> {
        self.reload(file, check_removed).await
    }

    async fn reload(&self, file: &Path, check: Check) -> anyhow::Result<()> {
        let outcome = self.take_file(file, check).await;
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

    async fn take_file(&self, file: &Path, check: Check) -> anyhow::Result<()> {
        let (file, operator_listen) = (file.to_owned(), self.config.operator_listen);
        let read = move || -> anyhow::Result<_> {
            let now = Config::load(&file)?;
            // A change of `operator_listen` needs a restart.
            let certificates = LoadedCertificates::of(&Config { operator_listen, ..now.clone() })?;
            certificates.check_validity(SystemTime::now())?;
            Ok(now)
        };
        let now = spawn_blocking(read).await??;
        check(&self.certificates.user().config(), &now)?;
        let (repositories, services) = (&now.repositories, &now.services);
        // First, because services name them.
        self.plans.set_file(&now.rollouts);
        anyhow::ensure!(self.editor.reload(Documents::new(repositories, services)).await, "the origin is stopping");
        self.fleet.set_file(&now.fleet().map_err(anyhow::Error::msg)?);
        self.operators.replace(&now.operators);
        if let Some((cluster, _)) = &self.cluster {
            cluster
                .send(Event::Described(digests((repositories, services, &now.rollouts), self.config.oci, &self.signer)))
                .await;
            let names = repositories.iter().map(|repository| repository.name.clone());
            cluster.send(Event::Defined(names.collect())).await;
        }
        let (certificates, config) = (self.certificates.clone(), now.clone());
        spawn_blocking(move || certificates.apply(|users| users.apply(config))).await??;
        for key in changed_keys(&*self.config, &now, RELOADABLE) {
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

/// Refuses a file that may be cut off. Without operators every certificate of one is an admin.
fn check_removed(applied: &Config, now: &Config) -> Result<(), TooManyRemoved> {
    let operators = |config: &Config| config.operators.iter().map(|operator| operator.name.clone()).collect();
    removed("operators", &operators(applied), &operators(now))?;
    let agents = |config: &Config| config.agents.iter().map(|agent| agent.name.clone()).collect();
    removed("agents", &agents(applied), &agents(now))?;
    let assignments = |config: &Config| config.assignments.iter().map(|assignment| assignment.name.clone()).collect();
    removed("assignments", &assignments(applied), &assignments(now))?;
    let repositories = |config: &Config| config.repositories.iter().map(|repository| repository.name.clone()).collect();
    removed("repositories", &repositories(applied), &repositories(now))?;
    let services = |config: &Config| config.services.iter().map(|service| service.name.clone()).collect();
    removed("services", &services(applied), &services(now))
}

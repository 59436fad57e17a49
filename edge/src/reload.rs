//! Reloads certificates and keys without dropping a connection: when they change, and on SIGHUP. SIGHUP also applies the
//! [`RELOADABLE`] keys of the configuration. Other settings need a restart.
//!
//! Everything that can fail happens before anything changes: either all files are replaced, or none.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Registry};
use rustls::ServerConfig;
use weir_runtime::config::changed_keys;
use weir_runtime::file_watch::Reload;
use weir_runtime::identity::Role;
use weir_runtime::last_reload::LastReload;
use weir_runtime::metric_families;
use weir_runtime::metric_families::unix_seconds;
use weir_runtime::serve::ServerTls;
use weir_runtime::tls::{self, ClientAuth, TlsError};

use crate::config::{AuthConfig, Config, RELOADABLE};
use crate::origin_client::{Origins, Shields};

/// The TLS settings made from the files that the configuration names.
pub(crate) struct TlsMaterial {
    pub(crate) tls: ServerConfig,
    not_after: SystemTime,
    authorities: Vec<(&'static str, SystemTime)>,
}

impl TlsMaterial {
    /// # Errors
    /// A file cannot be read, or a key does not belong to its certificate.
    pub(crate) fn of(config: &Config) -> Result<Self, TlsError> {
        // A client certificate is requested and not required: browsers and clients with tokens have none.
        let agents = config.auth.client_ca.as_deref().map(|ca| (Role::Agent, ca));
        let edges = config.peers.ca.as_deref().map(|ca| (Role::Edge, ca));
        let authorities: Vec<_> = agents.into_iter().chain(edges).collect();
        let client_auth = match &authorities[..] {
            [] => ClientAuth::None,
            authorities => ClientAuth::OfferedByRole { authorities, trust_domain: &config.trust_domain },
        };
        let tls = tls::server_config(&config.tls.certificate, &config.tls.key, client_auth)?;
        Ok(Self { tls, not_after: tls::not_after(&config.tls.certificate)?, authorities: authorities_end(config)? })
    }

    fn has_expired(&self) -> bool {
        self.not_after < SystemTime::now()
    }
}

/// When the authorities end, by the label of the metric.
fn authorities_end(config: &Config) -> Result<Vec<(&'static str, SystemTime)>, TlsError> {
    let agents = config.auth.client_ca.as_deref().map(tls::authority_ends).transpose()?;
    let edges = config.peers.ca.as_deref().map(tls::authority_ends).transpose()?;
    let nodes = config.origins.iter().chain(&config.shields).map(|node| tls::authority_ends(&node.ca));
    let origins = nodes.collect::<Result<Vec<_>, _>>()?.into_iter().min();
    let all = [("agents", agents), ("edges", edges), ("origins", origins)];
    Ok(all.into_iter().filter_map(|(label, ends)| Some((label, ends?))).collect())
}

metric_families! {
    /// The families of reloading.
    pub(crate) struct ReloadMetrics {
        /// Reloads of certificates and keys, when they changed, and of the configuration, by SIGHUP or when its file changed.
        /// `refused`: nothing has changed; the log has the reason. Files that cannot be used are retried and counted once.
        reloads: IntCounterVec = "weir_edge_reloads_total" { result: ["applied", "refused"] };
        /// 1 from a reload that was refused until one works. `/readyz` has the reason.
        reload_refused: IntGauge = "weir_edge_reload_refused";
        /// When the edge's certificate expires, in Unix seconds. Alert two weeks before.
        not_after: IntGauge = "weir_edge_certificate_not_after_timestamp_seconds";
        /// When an authority expires, in Unix seconds: of several in one file the last, of several origins and shields the
        /// first. Alert two weeks before.
        authority_not_after: IntGaugeVec = "weir_edge_authority_not_after_timestamp_seconds"
            { authority: ["agents", "edges", "origins"] };
    }
}

impl ReloadMetrics {
    fn show(&self, tls_material: &TlsMaterial) {
        self.not_after.set(unix_seconds(tls_material.not_after));
        for (authority, ends) in &tls_material.authorities {
            self.authority_not_after.with_label_values(&[authority]).set(unix_seconds(*ends));
        }
    }
}

/// Replaces the TLS settings of a running edge.
pub(crate) struct Reloader {
    config: Config,
    /// Of the configuration that was applied last.
    auth: Mutex<AuthConfig>,
    /// The end of the listener's certificate.
    not_after: Mutex<SystemTime>,
    tls: ServerTls,
    origins: Arc<Origins>,
    shields: Shields,
    metrics: ReloadMetrics,
    pub(crate) last_reload: LastReload,
}

impl Reloader {
    /// # Errors
    /// The metrics were registered before.
    pub(crate) fn new(
        config: Config,
        tls_material: TlsMaterial,
        origins: Arc<Origins>,
        shields: Shields,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let metrics = ReloadMetrics::register(registry)?;
        metrics.show(&tls_material);
        if tls_material.has_expired() {
            tracing::warn!(file = %config.tls.certificate.display(), "the certificate has expired; agents will not connect");
        }
        let (not_after, auth) = (Mutex::new(tls_material.not_after), Mutex::new(config.auth.clone()));
        let tls = ServerTls::new(tls_material.tls, config.trust_domain.clone());
        let last_reload = LastReload::new(metrics.reload_refused.clone());
        Ok(Self { config, auth, not_after, tls, origins, shields, metrics, last_reload })
    }

    pub(crate) fn tls(&self) -> ServerTls {
        self.tls.clone()
    }

    /// Whether the listener's certificate has expired.
    pub(crate) fn certificate_has_expired(&self) -> bool {
        *self.not_after() < SystemTime::now()
    }

    /// Logs the keys of a configuration that differ from those at the start, and are not applied.
    pub(crate) fn name_unapplied(&self, config: &Config) {
        for key in changed_keys(&self.config, config, RELOADABLE) {
            tracing::warn!(%key, "a changed key takes effect after a restart only");
        }
    }

    /// Notes the configuration that applies.
    pub(crate) fn applied(&self, auth: AuthConfig) {
        *self.auth.lock().unwrap_or_else(PoisonError::into_inner) = auth;
    }

    /// # Errors
    /// A changed file admits or refuses others than the one that applies, because it may be cut off.
    pub(crate) fn check_auth(&self, changed: &AuthConfig) -> anyhow::Result<()> {
        let applied = self.auth.lock().unwrap_or_else(PoisonError::into_inner);
        let has_all = applied.keys.iter().all(|key| changed.keys.contains(key));
        let has_deny = applied.deny.is_none() || changed.deny.is_some();
        anyhow::ensure!(
            changed.mode == applied.mode && has_all && has_deny,
            "[auth] of the changed file has another `mode`, no `deny`, or not all `keys` of before: it may be cut off. If this is \
             meant, send SIGHUP or restart the process"
        );
        Ok(())
    }

    fn not_after(&self) -> MutexGuard<'_, SystemTime> {
        self.not_after.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The files that a reload reads.
pub(crate) fn files(config: &Config) -> Vec<PathBuf> {
    let own = [&config.tls.certificate, &config.tls.key].into_iter();
    let nodes = config.origins.iter().chain(&config.shields);
    let nodes = nodes.flat_map(|node| [&node.ca, &node.client_certificate, &node.client_key]);
    own.chain(&config.auth.client_ca).chain(&config.peers.ca).chain(nodes).cloned().collect()
}

impl Reload for Reloader {
    fn files(&self) -> Vec<PathBuf> {
        files(&self.config)
    }

    fn apply(&self) -> anyhow::Result<()> {
        let tls_material = TlsMaterial::of(&self.config)?;
        tls::check_validity(&self.config.tls.certificate, SystemTime::now())?;
        let clients = self.origins.reload_clients(&self.config.origins)?;
        let of_shields = self.origins.reload_clients(&self.config.shields)?;

        self.metrics.show(&tls_material);
        self.tls.replace(tls_material.tls);
        *self.not_after() = tls_material.not_after;
        self.origins.replace_clients(&clients);
        self.shields.replace(of_shields);
        Ok(())
    }

    fn report(&self, outcome: &anyhow::Result<()>) {
        let result = match outcome {
            Ok(()) => {
                tracing::info!("the files of the configuration were reloaded; certificates apply to new connections");
                "applied"
            }
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "the reload failed; nothing was changed");
                "refused"
            }
        };
        // Counted last: the reason is in the log once the counter has changed.
        self.metrics.reloads.with_label_values(&[result]).inc();
        self.last_reload.of_files(outcome);
    }
}

//! Reloads certificates and keys without dropping a connection. Other settings need a restart.
//!
//! Everything that can fail happens before anything changes: either all files are replaced, or none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use prometheus::{IntCounterVec, IntGauge, Registry};
use rustls::ServerConfig;
use weir_runtime::identity::Role;
use weir_runtime::metric_families;
use weir_runtime::serve::ServerTls;
use weir_runtime::tls::{self, ClientAuth, TlsError};

use crate::clock::unix_seconds;
use crate::config::Config;
use crate::origin_client::{Origins, Shields};

/// The TLS settings made from the files that the configuration names.
pub(crate) struct TlsMaterial {
    pub(crate) tls: ServerConfig,
    not_after: SystemTime,
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
            authorities => ClientAuth::OfferedByRole { authorities },
        };
        let tls = tls::server_config(&config.tls.certificate, &config.tls.key, client_auth)?;
        Ok(Self { tls, not_after: tls::not_after(&config.tls.certificate)? })
    }

    fn has_expired(&self) -> bool {
        self.not_after < SystemTime::now()
    }
}

metric_families! {
    /// The families of reloading.
    pub(crate) struct ReloadMetrics {
        /// Reloads of certificates and keys by SIGHUP. A refused one changes nothing; the log has the reason.
        reloads: IntCounterVec = "weir_edge_reloads_total" { result: ["applied", "refused"] };
        /// When the edge's certificate ends, in Unix seconds. Alert two weeks before.
        not_after: IntGauge = "weir_edge_certificate_not_after_timestamp_seconds";
    }
}

/// Replaces the TLS settings of a running edge.
pub(crate) struct Reloader {
    config: Config,
    /// Serialises reloads.
    reading: Mutex<()>,
    /// The end of the listener's certificate.
    not_after: Mutex<SystemTime>,
    tls: ServerTls,
    origins: Arc<Origins>,
    shields: Shields,
    metrics: ReloadMetrics,
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
        metrics.not_after.set(unix_seconds(tls_material.not_after));
        if tls_material.has_expired() {
            tracing::warn!(file = %config.tls.certificate.display(), "the certificate has expired; agents will not connect");
        }
        let not_after = Mutex::new(tls_material.not_after);
        let reading = Mutex::new(());
        Ok(Self { config, reading, not_after, tls: tls_material.tls.into(), origins, shields, metrics })
    }

    pub(crate) fn tls(&self) -> ServerTls {
        self.tls.clone()
    }

    /// Whether the listener's certificate has expired.
    pub(crate) fn certificate_has_expired(&self) -> bool {
        *self.not_after() < SystemTime::now()
    }

    /// Reads the files again and replaces the old ones. Blocks.
    ///
    /// # Errors
    /// A file cannot be used. The old ones stay in use.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        let outcome = self.apply();
        let result = match &outcome {
            Ok(()) => {
                tracing::info!("certificates and keys were reloaded for new connections");
                "applied"
            }
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "the reload failed; nothing was changed");
                "refused"
            }
        };
        // Counted last: the reason is in the log once the counter has changed.
        self.metrics.reloads.with_label_values(&[result]).inc();
        outcome
    }

    fn apply(&self) -> anyhow::Result<()> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let tls_material = TlsMaterial::of(&self.config)?;
        tls::check_validity(&self.config.tls.certificate, SystemTime::now())?;
        let clients = self.origins.reload_clients(&self.config.origins)?;
        let of_shields = self.origins.reload_clients(&self.config.shields)?;

        self.tls.replace(tls_material.tls);
        self.metrics.not_after.set(unix_seconds(tls_material.not_after));
        *self.not_after() = tls_material.not_after;
        self.origins.replace_clients(&clients);
        self.shields.replace(of_shields);
        Ok(())
    }

    fn not_after(&self) -> MutexGuard<'_, SystemTime> {
        self.not_after.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

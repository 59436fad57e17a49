//! What a running edge reads again without dropping a connection: the files that its configuration names for handshakes.
//! The configuration itself holds until a restart.
//!
//! All that can fail is done before anything changes: all files are taken over, or none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use anyhow::bail;
use prometheus::{IntCounterVec, IntGauge, Registry};
use rustls::ServerConfig;
use weir_runtime::metric_families;
use weir_runtime::serve::ServerTls;
use weir_runtime::tls::{self, ClientAuth, TlsError};

use crate::clock::unix_seconds;
use crate::config::Config;
use crate::origin_client::Origins;

/// What is made of the configuration for each handshake, at the start and at every reload.
pub(crate) struct Handshakes {
    /// What listeners show and ask for.
    pub(crate) tls: ServerConfig,
    not_after: SystemTime,
}

impl Handshakes {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be read, or they do not fit each other.
    pub(crate) fn of(config: &Config) -> Result<Self, TlsError> {
        // A certificate is asked of everybody and demanded of nobody: browsers and holders of tokens have none.
        let client_auth = config.auth.client_ca.as_deref().map_or(ClientAuth::None, |ca| ClientAuth::Offered { ca });
        let tls = tls::server_config(&config.tls.certificate, &config.tls.key, client_auth)?;
        Ok(Self { tls, not_after: tls::not_after(&config.tls.certificate)? })
    }

    fn has_ended(&self) -> bool {
        self.not_after < SystemTime::now()
    }
}

metric_families! {
    /// The families of reloading.
    pub(crate) struct ReloadMetrics {
        /// Reloads of certificates and keys by SIGHUP. A refused one changes nothing; the log has the reason.
        reloads: IntCounterVec = "weir_edge_reloads_total" { result: ["applied", "refused"] };
        /// When the edge's certificate, or the first of its chain, ends, in Unix seconds. Alert two weeks before.
        not_after: IntGauge = "weir_edge_certificate_not_after_timestamp_seconds";
    }
}

/// What of a running edge can be replaced.
pub(crate) struct Reloading {
    config: Config,
    /// Held while files are read and taken over.
    reading: Mutex<()>,
    /// When the certificate that agents see ends.
    not_after: Mutex<SystemTime>,
    tls: ServerTls,
    origins: Arc<Origins>,
    metrics: ReloadMetrics,
}

impl Reloading {
    /// Begins with what the edge started with.
    ///
    /// # Errors
    /// The metrics were registered before.
    pub(crate) fn new(
        config: Config,
        handshakes: Handshakes,
        origins: Arc<Origins>,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let metrics = ReloadMetrics::register(registry)?;
        metrics.not_after.set(unix_seconds(handshakes.not_after));
        if handshakes.has_ended() {
            tracing::warn!(file = %config.tls.certificate.display(), "the certificate has ended: no agent will connect");
        }
        let not_after = Mutex::new(handshakes.not_after);
        let reading = Mutex::new(());
        Ok(Self { config, reading, not_after, tls: handshakes.tls.into(), origins, metrics })
    }

    /// What listeners use.
    pub(crate) fn tls(&self) -> ServerTls {
        self.tls.clone()
    }

    /// Whether the certificate that agents see has ended.
    pub(crate) fn certificate_has_ended(&self) -> bool {
        *self.not_after() < SystemTime::now()
    }

    /// Reads the files again and takes them over. Blocks.
    ///
    /// # Errors
    /// One of them cannot be used. Everything is as it was.
    pub(crate) fn read_again(&self) -> anyhow::Result<()> {
        let outcome = self.apply();
        let result = match &outcome {
            Ok(()) => {
                tracing::info!("certificates and keys were read again; new connections go by them");
                "applied"
            }
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "nothing was taken over: all is as it was");
                "refused"
            }
        };
        // Last: whoever sees the count finds the reason in the log.
        self.metrics.reloads.with_label_values(&[result]).inc();
        outcome
    }

    fn apply(&self) -> anyhow::Result<()> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let handshakes = Handshakes::of(&self.config)?;
        if handshakes.has_ended() {
            bail!("the certificate {} has ended: agents would refuse it", self.config.tls.certificate.display());
        }
        let clients = self.origins.read_again(&self.config.origins)?;

        // Nothing below can fail.
        self.tls.replace(handshakes.tls);
        self.metrics.not_after.set(unix_seconds(handshakes.not_after));
        *self.not_after() = handshakes.not_after;
        for (origin, clients) in self.origins.all().iter().zip(clients) {
            origin.replace(clients);
        }
        Ok(())
    }

    fn not_after(&self) -> MutexGuard<'_, SystemTime> {
        self.not_after.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

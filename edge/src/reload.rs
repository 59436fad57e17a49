//! What a running edge takes over from a changed configuration, without dropping a connection.
//!
//! All that can fail is done before anything changes: a configuration is taken over whole, or not at all.

use std::path::Path;
use std::time::SystemTime;

use anyhow::Context;
use prometheus::{IntCounterVec, IntGauge, Registry};
use rustls::ServerConfig;
use weir_shared::process::config::changed_keys;
use weir_shared::process::metric_families::MetricFamilies;
use weir_shared::process::serve::ServerTls;
use weir_shared::process::tls::{self, ClientAuth, TlsError};

use crate::config::Config;

/// The sections and keys that are taken over; a file they name is read again whether its name changed or not. All
/// others wait for a restart.
const AT_RUN_TIME: [&str; 2] = ["tls", "auth.client_ca"];

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

/// What reloads count.
#[derive(Debug, Clone)]
struct ReloadMetrics {
    applied: IntCounterVec,
    not_after: IntGauge,
}

impl ReloadMetrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let families = MetricFamilies(registry);
        let applied = families.counters(
            "weir_edge_reloads_total",
            "Configurations and certificates read again at run time: applied, or refused as a whole.",
            &["result"],
        )?;
        for result in ["applied", "refused"] {
            applied.with_label_values(&[result]);
        }
        let not_after = families.gauge(
            "weir_edge_certificate_not_after_timestamp_seconds",
            "When the certificate that agents see ends, or the first of its chain.",
        )?;
        Ok(Self { applied, not_after })
    }

    fn certificate(&self, ends: SystemTime) {
        let since_1970 = ends.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.not_after.set(i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX));
    }
}

/// What of a running edge can be replaced.
pub(crate) struct Reloading {
    started_with: Config,
    tls: ServerTls,
    metrics: ReloadMetrics,
}

impl Reloading {
    /// Begins with what the edge started with.
    ///
    /// # Errors
    /// The metrics were registered before.
    pub(crate) fn new(config: Config, handshakes: Handshakes, registry: &Registry) -> prometheus::Result<Self> {
        let metrics = ReloadMetrics::register(registry)?;
        metrics.certificate(handshakes.not_after);
        if handshakes.has_ended() {
            tracing::warn!(file = %config.tls.certificate.display(), "the certificate has ended: no agent will connect");
        }
        Ok(Self { started_with: config, tls: handshakes.tls.into(), metrics })
    }

    /// What listeners use.
    pub(crate) fn tls(&self) -> ServerTls {
        self.tls.clone()
    }

    /// Reads a configuration file and takes over what can be taken over. Blocks.
    ///
    /// # Errors
    /// The file or one that it names cannot be used. Everything is as it was.
    pub(crate) fn take_file(&self, path: &Path) -> anyhow::Result<()> {
        self.counted(Config::load(path).map_err(Into::into).and_then(|config| self.apply(&config)))
    }

    /// Takes over what can be taken over. Blocks.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn take_config(&self, config: &Config) -> anyhow::Result<()> {
        self.counted(config.validate().map_err(Into::into).and_then(|()| self.apply(config)))
    }

    fn apply(&self, config: &Config) -> anyhow::Result<()> {
        let handshakes = Handshakes::of(config)?;
        if handshakes.has_ended() {
            let file = config.tls.certificate.display();
            anyhow::bail!("the certificate {file} has ended: agents would refuse it");
        }
        self.metrics.certificate(handshakes.not_after);
        self.tls.replace(handshakes.tls);
        for key in changed_keys(&self.started_with, config).iter().filter(|key| !is_at_run_time(key)) {
            tracing::warn!(%key, "this key has changed, and takes effect at a restart alone");
        }
        Ok(())
    }

    fn counted(&self, outcome: anyhow::Result<()>) -> anyhow::Result<()> {
        let result = if outcome.is_ok() { "applied" } else { "refused" };
        self.metrics.applied.with_label_values(&[result]).inc();
        match &outcome {
            Ok(()) => tracing::info!("the configuration was read again; new connections go by it"),
            Err(error) => tracing::error!(error = format!("{error:#}"), "nothing was taken over: all is as it was"),
        }
        outcome.context("the configuration was not taken over")
    }
}

fn is_at_run_time(key: &str) -> bool {
    AT_RUN_TIME.iter().any(|known| key.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

#[cfg(test)]
mod tests {
    use super::is_at_run_time;

    #[test]
    fn a_section_is_not_its_namesake() {
        for (key, expected) in
            [("tls", true), ("tls.key", true), ("tlsx", false), ("cache.tls", false), ("auth.keys", false)]
        {
            assert_eq!(is_at_run_time(key), expected, "{key}");
        }
    }
}

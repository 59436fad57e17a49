//! What a running edge takes over from a changed configuration, without dropping a connection.
//!
//! All that can fail is done before anything changes: a configuration is taken over whole, or not at all.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, bail};
use prometheus::{IntCounterVec, IntGauge, Registry};
use rustls::ServerConfig;
use weir_shared::process::config::changed_keys;
use weir_shared::process::metric_families::MetricFamilies;
use weir_shared::process::serve::ServerTls;
use weir_shared::process::tls::{self, ClientAuth, TlsError};

use crate::access::Access;
use crate::clock::unix_seconds;
use crate::config::Config;
use crate::origin_client::Origins;

/// What belongs together with all else that says who may read.
const OF_CERTIFICATES: [&str; 2] = ["auth.client_ca", "auth.certificate"];

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
        let applied = families.counters_of(
            "weir_edge_reloads_total",
            "Configurations and certificates read again at run time: applied, or refused as a whole.",
            "result",
            &["applied", "refused"],
        )?;
        let not_after = families.gauge(
            "weir_edge_certificate_not_after_timestamp_seconds",
            "When the certificate that agents see ends, or the first of its chain.",
        )?;
        Ok(Self { applied, not_after })
    }

    fn certificate(&self, ends: SystemTime) {
        self.not_after.set(unix_seconds(ends));
    }
}

/// What of a running edge can be replaced.
pub(crate) struct Reloading {
    started_with: Config,
    /// Held while that changes.
    taken: Mutex<Config>,
    /// When the certificate that agents see ends.
    not_after: Mutex<SystemTime>,
    tls: ServerTls,
    access: Access,
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
        access: Access,
        origins: Arc<Origins>,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let metrics = ReloadMetrics::register(registry)?;
        metrics.certificate(handshakes.not_after);
        if handshakes.has_ended() {
            tracing::warn!(file = %config.tls.certificate.display(), "the certificate has ended: no agent will connect");
        }
        let (taken, not_after) = (Mutex::new(config.clone()), Mutex::new(handshakes.not_after));
        Ok(Self { started_with: config, taken, not_after, tls: handshakes.tls.into(), access, origins, metrics })
    }

    /// What listeners use.
    pub(crate) fn tls(&self) -> ServerTls {
        self.tls.clone()
    }

    /// Whether the certificate that agents see has ended.
    pub(crate) fn certificate_has_ended(&self) -> bool {
        *self.not_after.lock().unwrap_or_else(PoisonError::into_inner) < SystemTime::now()
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
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = other_half_of_certificates(&changed_keys(&*taken, config)) {
            bail!(
                "{key} has changed together with client_ca or [[auth.certificate]]: who may read is not taken over by \
                 halves; restart the edge for it"
            );
        }
        let handshakes = Handshakes::of(config)?;
        if handshakes.has_ended() {
            bail!("the certificate {} has ended: agents would refuse it", config.tls.certificate.display());
        }
        let clients = self.origins.read_again(&config.origins)?;

        // Nothing below can fail. What certificates open changes before whose are believed: of one that is believed from
        // now on no rule of before is asked.
        self.access.replace_certificate_rules(config.auth.certificates.clone());
        self.tls.replace(handshakes.tls);
        self.metrics.certificate(handshakes.not_after);
        *self.not_after.lock().unwrap_or_else(PoisonError::into_inner) = handshakes.not_after;
        for (id, clients) in clients {
            self.origins.all()[id].replace(clients);
        }
        for key in left_for_a_restart(&self.started_with, config) {
            tracing::warn!(%key, "this key has changed, and takes effect at a restart alone");
        }
        taken.auth.client_ca.clone_from(&config.auth.client_ca);
        taken.auth.certificates.clone_from(&config.auth.certificates);
        Ok(())
    }

    fn counted(&self, outcome: anyhow::Result<()>) -> anyhow::Result<()> {
        let result = match &outcome {
            Ok(()) => {
                tracing::info!("the configuration was read again; new connections go by it");
                "applied"
            }
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "nothing was taken over: all is as it was");
                "refused"
            }
        };
        // Last: whoever sees the count finds the reason in the log.
        self.metrics.applied.with_label_values(&[result]).inc();
        outcome.context("the configuration was not taken over")
    }
}

/// The key that says something else about who may read and has changed together with what certificates open.
fn other_half_of_certificates(changed: &[String]) -> Option<&String> {
    let is_of_certificates = |key: &&String| OF_CERTIFICATES.contains(&key.as_str());
    let other = changed.iter().find(|key| key.starts_with("auth.") && !is_of_certificates(key));
    other.filter(|_| changed.iter().any(|key| is_of_certificates(&key)))
}

/// The keys that have changed since the start and are not taken over.
fn left_for_a_restart(started_with: &Config, now: &Config) -> Vec<String> {
    let without_what_is_taken = |config: &Config| {
        let mut config = config.clone();
        config.tls = started_with.tls.clone();
        config.auth.client_ca = None;
        config.auth.certificates.clear();
        for origin in &mut config.origins {
            (origin.ca, origin.client_certificate, origin.client_key) =
                (PathBuf::new(), PathBuf::new(), PathBuf::new());
        }
        config
    };
    changed_keys(&without_what_is_taken(started_with), &without_what_is_taken(now))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{AuthMode, CacheConfig, CertificateRule, OriginConfig, TlsConfig};

    fn config() -> Config {
        let tls = TlsConfig { certificate: "a.pem".into(), key: "a.key".into() };
        let origins = vec![OriginConfig::new("https://o:1", "ca", "c.pem", "c.key")];
        let listen = "127.0.0.1:0".parse().unwrap();
        Config::new("edge-1".parse().unwrap(), listen, tls, CacheConfig::new(Path::new("cache")), origins)
    }

    fn left(change: impl FnOnce(&mut Config)) -> Vec<String> {
        let mut now = config();
        change(&mut now);
        left_for_a_restart(&config(), &now)
    }

    #[test]
    fn what_waits_for_a_restart_is_named() {
        let rule = || CertificateRule { agents: "*".parse().unwrap(), services: Vec::new() };
        assert_eq!(
            left(|config| {
                config.tls.key = "b.key".into();
                config.origins[0].client_key = "b.key".into();
                config.auth.client_ca = Some("ca".into());
                config.auth.certificates.push(rule());
            }),
            [""; 0]
        );
        assert_eq!(left(|config| config.origins[0].url = "https://o:2".to_owned()), ["origin"]);
        assert_eq!(
            left(|config| {
                config.auth.mode = AuthMode::Required;
                config.cache.fetches = 1;
            }),
            ["auth.mode", "cache.fetches"]
        );
    }

    #[test]
    fn who_may_read_is_not_taken_over_by_halves() {
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        for (changed, expected) in [
            (&["auth.client_ca", "auth.mode"][..], Some("auth.mode")),
            (&["auth.certificate", "auth.keys", "tls.key"], Some("auth.keys")),
            (&["auth.certificate", "auth.client_ca", "cache.fetches"], None),
            (&["auth.mode", "auth.keys"], None),
        ] {
            assert_eq!(other_half_of_certificates(&keys(changed)).map(String::as_str), expected, "{changed:?}");
        }
    }
}

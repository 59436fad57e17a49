//! Reloads the configuration of a running agent, its edges, its TLS settings and its services, on SIGHUP; and its certificates, key and
//! authority when they change.
//!
//! Everything that can fail happens before anything changes: a configuration is applied in full or not at all. Requests
//! in flight are not affected.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::Context;
use weir_runtime::config::changed_keys;
use weir_runtime::config_watch::check_removed;
use weir_runtime::file_watch::Reload;
use weir_runtime::last_reload::LastReload;
use weir_runtime::tls;

use crate::config::{Config, RELOADABLE};
use crate::edge_client::Edges;
use crate::metrics::Metrics;
use crate::roster_messages::RosterHandle;

/// Replaces the edges and the services of a running agent.
pub(crate) struct Reloader {
    started_with: Config,
    /// What was applied last.
    config: Mutex<Config>,
    roster: RosterHandle,
    metrics: Metrics,
    pub(crate) last_reload: LastReload,
}

/// The files that a reload reads. The token is read for each request.
pub(crate) fn files(config: &Config) -> Vec<PathBuf> {
    let identity = config.client_certificate.iter().chain(&config.client_key);
    [&config.ca].into_iter().chain(identity).cloned().collect()
}

impl Reloader {
    pub(crate) fn new(started_with: Config, roster: RosterHandle, metrics: Metrics) -> Self {
        let last_reload = LastReload::new(metrics.reload_refused.clone());
        Self { config: Mutex::new(started_with.clone()), started_with, roster, metrics, last_reload }
    }

    /// Applies a configuration, as far as that needs no restart. Blocks.
    ///
    /// # Errors
    /// The configuration, or a file that it names, cannot be used. The old one stays in use.
    pub(crate) fn apply(&self, mut config: Config) -> anyhow::Result<()> {
        config.validate()?;
        config.root = std::path::absolute(&config.root).context("`root` is not a path")?;
        if let Some(certificate) = &config.client_certificate {
            tls::check_validity(certificate, SystemTime::now()).context("edges would reject the client certificate")?;
        }
        let edges = Edges::new(&config, &self.metrics)?;
        // The last step that can fail.
        self.roster.configure(config.clone(), edges)?;
        for key in changed_keys(&self.started_with, &config, RELOADABLE) {
            tracing::warn!(%key, "a changed key takes effect after a restart only");
        }
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// # Errors
    /// Too many of the services that are followed are missing in a changed file.
    pub(crate) fn check_removed(&self, changed: &Config) -> anyhow::Result<()> {
        let names = |config: &Config| config.services.iter().map(|service| service.name.clone()).collect();
        Ok(check_removed("services", &names(&self.config()), &names(changed))?)
    }

    fn config(&self) -> Config {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Reload for Reloader {
    fn files(&self) -> Vec<PathBuf> {
        files(&self.config())
    }

    fn apply(&self) -> anyhow::Result<()> {
        Reloader::apply(self, self.config())
    }

    fn report(&self, outcome: &anyhow::Result<()>) {
        let result = match outcome {
            Ok(()) => {
                tracing::info!("the configuration and its certificates were reloaded");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_need_a_restart_are_named() {
        let config = || {
            let mut config = Config::new(vec!["https://edge.example".parse().unwrap()], "ca.pem", "root");
            config.services = vec![crate::config::ServiceConfig::new(&"shop".parse().unwrap())];
            config
        };
        let mut now = config();
        now.edges = vec!["https://other.example".parse().unwrap()];
        now.token_file = Some("token".into());
        now.ca = "other.pem".into();
        assert_eq!(changed_keys(&config(), &now, RELOADABLE), [""; 0]);
        now.services[0].exec = Some("true".into());
        now.keep_releases = 9;
        assert_eq!(changed_keys(&config(), &now, RELOADABLE), ["keep_releases"]);
    }
}

//! What a running agent takes over from a changed configuration: whom it asks, and how it proves itself and them.
//!
//! All that can fail is done before anything changes: a configuration is taken over whole, or not at all. Talks that are
//! under way end as they began.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail};
use weir_runtime::config::changed_keys;
use weir_runtime::tls;

use crate::config::{Config, RELOADABLE};
use crate::edge_client::{EdgeClient, Edges};
use crate::metrics::Metrics;

/// What of a running agent can be replaced.
pub(crate) struct Reloading {
    started_with: Config,
    edges: Arc<EdgeClient>,
    metrics: Metrics,
}

impl Reloading {
    pub(crate) fn new(started_with: Config, edges: Arc<EdgeClient>, metrics: Metrics) -> Self {
        Self { started_with, edges, metrics }
    }

    /// Takes over what can be taken over; `read` is what came of reading the configuration again. Blocks.
    ///
    /// # Errors
    /// The configuration, or a file that it names, cannot be used. Everything is as it was.
    pub(crate) fn take(&self, read: anyhow::Result<Config>) -> anyhow::Result<()> {
        let outcome = read.and_then(|config| self.apply(config));
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
        self.metrics.reloads.with_label_values(&[result]).inc();
        outcome.context("the configuration was not taken over")
    }

    fn apply(&self, mut config: Config) -> anyhow::Result<()> {
        config.validate()?;
        config.root = std::path::absolute(&config.root).context("`root` is not a path")?;
        if let Some(certificate) = &config.client_certificate
            && tls::not_after(certificate)? < SystemTime::now()
        {
            bail!("the client certificate {} has ended: edges would refuse it", certificate.display());
        }
        // The last that can fail.
        self.edges.replace(Edges::new(&config, &self.metrics)?);
        for key in changed_keys(&self.started_with, &config, RELOADABLE) {
            tracing::warn!(%key, "this key has changed, and takes effect at a restart alone");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_restart_is_named() {
        let config = || {
            let mut config = Config::new(vec!["https://edge.example".parse().unwrap()], "ca.pem", "root");
            config.services = vec![crate::config::ServiceConfig::new("shop".parse().unwrap())];
            config
        };
        let mut now = config();
        now.edges = vec!["https://other.example".parse().unwrap()];
        now.token_file = Some("token".into());
        now.ca = "other.pem".into();
        assert_eq!(changed_keys(&config(), &now, RELOADABLE), [""; 0]);
        now.services[0].exec = Some("true".to_owned());
        now.keep_releases = 9;
        assert_eq!(changed_keys(&config(), &now, RELOADABLE), ["keep_releases", "service"]);
    }
}

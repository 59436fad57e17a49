//! `[peers]`: other edges that read from this one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weir_runtime::config::ConfigError;

/// Other edges that may read from this one as their shield.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeersConfig {
    /// PEM file of the authority of edges' client certificates (`spiffe://<trust_domain>/edge/<name>`). They open every
    /// service. Clients without a certificate may still connect, clients with one of an unknown authority may not. Without it,
    /// this edge is not a shield. Read again when it changes.
    pub ca: Option<PathBuf>,
    /// Event streams to other edges at a time. Further requests get 429. At least 1.
    pub streams: usize,
}

impl Default for PeersConfig {
    fn default() -> Self {
        Self { ca: None, streams: 100 }
    }
}

impl PeersConfig {
    pub(super) fn errors(&self) -> Vec<ConfigError> {
        ConfigError::failed([(self.streams == 0, "streams in [peers] must be at least 1")])
    }
}

//! `[agents]`: what agents ask about themselves.

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use weir_runtime::config::ConfigError;

/// Requests of agents about themselves.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentsConfig {
    /// Event streams to agents at a time. Further requests get 429, and those agents poll. At least 1.
    pub streams: usize,
    /// Memory for the last reports of agents. Beyond it the oldest are dropped.
    pub report_bytes: ByteSize,
}

impl Default for AgentsConfig {
    fn default() -> Self {
        Self { streams: 10_000, report_bytes: ByteSize::mib(64) }
    }
}

impl AgentsConfig {
    pub(super) fn errors(&self) -> Vec<ConfigError> {
        ConfigError::failed([(self.streams == 0, "streams in [agents] must be at least 1")])
    }
}

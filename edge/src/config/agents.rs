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
    /// How many agents may begin an update in a second: an edge tells its agents over how long to spread their updates after a
    /// change, by the number that follow the service. An agent spreads them over its own `spread` at most. At least 1.
    pub updates_per_second: usize,
    /// Memory for what agents say that they run: about 500 bytes for each service of each agent. Beyond it messages get 429,
    /// and agents send them again later; nothing is dropped.
    pub observed_bytes: ByteSize,
}

impl Default for AgentsConfig {
    fn default() -> Self {
        Self { streams: 10_000, updates_per_second: 200, observed_bytes: ByteSize::mib(256) }
    }
}

impl AgentsConfig {
    pub(super) fn errors(&self) -> Vec<ConfigError> {
        ConfigError::failed([
            (self.streams == 0, "streams in [agents] must be at least 1"),
            (self.updates_per_second == 0, "updates_per_second in [agents] must be at least 1"),
        ])
    }
}

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
    /// How many updates may start in a second: after a change, agents spread theirs over as long as updates of all services that
    /// they follow would take. Never over more than their own `spread`. At least 1.
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

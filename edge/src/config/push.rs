//! `[push]`: what the edge does beside the event streams of its origins.

use std::time::Duration;

use serde::Deserialize;
use weir_runtime::config::{ConfigError, duration};

/// The least of `[push] ask_interval`.
const LEAST_ASK_INTERVAL: Duration = Duration::from_secs(1);

/// `[push]`: what the edge does beside the event streams of its origins.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PushConfig {
    /// A new version of a service that was asked for within this time is fetched before anybody asks for it; zero: none.
    #[serde(with = "duration")]
    pub warm_within: Duration,
    /// How often the origin is asked about a service that is in use, although its stream says that nothing has changed.
    #[serde(with = "duration")]
    pub ask_interval: Duration,
}

impl Default for PushConfig {
    fn default() -> Self {
        Self { warm_within: Duration::from_secs(2 * 3600), ask_interval: Duration::from_secs(5 * 60) }
    }
}

impl PushConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.ask_interval < LEAST_ASK_INTERVAL {
            return Err(ConfigError::invalid("ask_interval in [push] must be at least \"1s\""));
        }
        Ok(())
    }
}

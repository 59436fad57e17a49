//! `[push]`: prefetching and periodic revalidation, in addition to the event streams.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_runtime::config::{ConfigError, duration};

/// The least of `[push] revalidate_interval`.
const MIN_REVALIDATE_INTERVAL: Duration = Duration::from_secs(1);

/// Work of an edge besides following the event streams of its origins.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PushConfig {
    /// A new version of a service is prefetched if a client requested the service within this time; the blobs of its OCI form, if
    /// a client of registries did. `"0s"`: never.
    #[serde(with = "duration")]
    pub prefetch_within: Duration,
    /// Time between queries about services that were requested within twice this time, even if the event stream announces no
    /// change; ±50 %. At least `1s`.
    #[serde(with = "duration")]
    pub revalidate_interval: Duration,
}

impl Default for PushConfig {
    fn default() -> Self {
        Self { prefetch_within: Duration::from_secs(2 * 3600), revalidate_interval: Duration::from_secs(5 * 60) }
    }
}

impl PushConfig {
    pub(super) fn errors(&self) -> Vec<ConfigError> {
        let is_short = self.revalidate_interval < MIN_REVALIDATE_INTERVAL;
        ConfigError::failed([(is_short, "revalidate_interval in [push] must be at least \"1s\"")])
    }
}

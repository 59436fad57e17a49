//! `[freshness]` and `[[freshness_for]]`: how old an answer may be.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use weir_protocol::name_glob::NameGlob;
use weir_runtime::config::{ConfigError, duration};

/// `[freshness]`: how old an answer may be.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FreshnessConfig {
    /// How long after its last validation an answer is served without asking the origin.
    #[serde(with = "duration")]
    pub fresh: Duration,
    /// How long after that it is served while the origin is asked in the background.
    #[serde(with = "duration")]
    pub stale_while_revalidate: Duration,
    /// How long a request waits for the origin after that, before it gets what is stored.
    #[serde(with = "duration")]
    pub wait: Duration,
    /// How long past its freshness an answer is served while the origin cannot be asked; without end when absent.
    #[serde(deserialize_with = "optional_duration")]
    pub stale_if_error: Option<Duration>,
}

/// `[[freshness_for]]`: how old an answer may be for some services.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreshnessForConfig {
    /// Which: a pattern of names, such as `shop-*`.
    pub services: NameGlob,
    /// As in `[freshness]`, whose value holds when it is absent; so with the others.
    #[serde(default, deserialize_with = "optional_duration")]
    pub fresh: Option<Duration>,
    /// As in `[freshness]`.
    #[serde(default, deserialize_with = "optional_duration")]
    pub stale_while_revalidate: Option<Duration>,
    /// As in `[freshness]`.
    #[serde(default, deserialize_with = "optional_duration")]
    pub wait: Option<Duration>,
    /// As in `[freshness]`.
    #[serde(default, deserialize_with = "optional_duration")]
    pub stale_if_error: Option<Duration>,
}

fn optional_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration::deserialize(deserializer).map(Some)
}

impl Default for FreshnessConfig {
    fn default() -> Self {
        Self {
            fresh: Duration::from_secs(15),
            stale_while_revalidate: Duration::from_secs(60),
            wait: Duration::from_secs(2),
            stale_if_error: None,
        }
    }
}

impl FreshnessConfig {
    /// Checks a rule that stands in the table `section`.
    pub(super) fn validate(&self, section: &str) -> Result<(), ConfigError> {
        if self.wait.is_zero() {
            return Err(ConfigError::invalid(format!(
                "wait in {section} must be more than nothing, for example \"2s\""
            )));
        }
        if self.stale_if_error.is_some_and(|maximum| maximum < self.stale_while_revalidate) {
            return Err(ConfigError::invalid(format!(
                "stale_if_error in {section} must not be less than stale_while_revalidate"
            )));
        }
        Ok(())
    }
}

impl FreshnessForConfig {
    /// What holds for its services: its own values, and the others of `[freshness]`.
    pub(crate) fn over(&self, others: &FreshnessConfig) -> FreshnessConfig {
        FreshnessConfig {
            fresh: self.fresh.unwrap_or(others.fresh),
            stale_while_revalidate: self.stale_while_revalidate.unwrap_or(others.stale_while_revalidate),
            wait: self.wait.unwrap_or(others.wait),
            stale_if_error: self.stale_if_error.or(others.stale_if_error),
        }
    }
}

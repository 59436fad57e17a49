//! `[freshness]` and `[[freshness_for]]`: how old an answer may be.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_protocol::name_glob::NameGlob;
use weir_runtime::config::{ConfigError, duration, optional_duration};

/// How old a response may be, counted from the last validation by the origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FreshnessConfig {
    /// How long a version is served without a query to the origin.
    #[serde(with = "duration")]
    pub fresh: Duration,
    /// How long after that it is served while the origin is queried in the background.
    #[serde(with = "duration")]
    pub stale_while_revalidate: Duration,
    /// How long a request waits for the origin after that, before it gets the stored version. More than `0s`.
    #[serde(with = "duration")]
    pub wait: Duration,
    /// How long past its freshness a version is served while the origin does not answer. At least `stale_while_revalidate`.
    /// Default: without end.
    #[serde(with = "optional_duration")]
    pub stale_if_error: Option<Duration>,
}

/// Freshness of some services. The first table that matches applies.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreshnessForConfig {
    /// Services, such as `shop-*`.
    pub services: NameGlob,
    /// Default: that of `[freshness]`.
    #[serde(default, with = "optional_duration")]
    pub fresh: Option<Duration>,
    /// Default: that of `[freshness]`.
    #[serde(default, with = "optional_duration")]
    pub stale_while_revalidate: Option<Duration>,
    /// Default: that of `[freshness]`.
    #[serde(default, with = "optional_duration")]
    pub wait: Option<Duration>,
    /// Default: that of `[freshness]`.
    #[serde(default, with = "optional_duration")]
    pub stale_if_error: Option<Duration>,
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
    /// The errors of a rule in the table `section`.
    pub(super) fn errors(&self, section: &str) -> Vec<ConfigError> {
        let maximum_is_short = self.stale_if_error.is_some_and(|maximum| maximum < self.stale_while_revalidate);
        ConfigError::failed([
            (self.wait.is_zero(), format!("wait in {section} must be more than \"0s\", for example \"2s\"")),
            (maximum_is_short, format!("stale_if_error in {section} must not be less than stale_while_revalidate")),
        ])
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

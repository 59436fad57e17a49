//! Freezes: no new content of some services is published for a while.

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use weir_protocol::freshness::optional_rfc3339;
use weir_protocol::name::{FreezeName, ServiceName};
use weir_protocol::name_glob::NameGlob;

/// The most patterns of a freeze.
pub const MAX_PATTERNS: usize = 20;

/// No new content of some services is published. It refuses unknown keys: one may be a condition of a later version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Freeze {
    /// Its name.
    pub name: FreezeName,
    /// Patterns of the services: at least one, at most [`MAX_PATTERNS`].
    pub services: Vec<NameGlob>,
    /// When it ends by itself.
    #[serde(default, with = "optional_rfc3339", skip_serializing_if = "Option::is_none")]
    pub until: Option<SystemTime>,
    /// Why, in the operator's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Freeze {
    /// Whether it has not ended.
    pub fn is_in_force(&self, now: SystemTime) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Whether it is about a service.
    pub fn covers(&self, service: &ServiceName) -> bool {
        self.services.iter().any(|pattern| pattern.matches(service.as_str()))
    }
}

impl fmt::Display for Freeze {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by `{}`", self.name)?;
        if let Some(until) = self.until {
            write!(f, " until {}", humantime::format_rfc3339_seconds(until))?;
        }
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_freeze_ends_at_its_time_and_says_why_it_is_there() {
        let json = r#"{"name":"sale","services":["shop-*"],"until":"2026-11-30T08:00:00Z","reason":"the sale"}"#;
        let freeze: Freeze = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&freeze).unwrap(), json);
        let until = freeze.until.unwrap();
        assert!(freeze.is_in_force(until - Duration::from_secs(1)) && !freeze.is_in_force(until));
        assert!(freeze.covers(&"shop-a".parse().unwrap()) && !freeze.covers(&"blog".parse().unwrap()));
        assert_eq!(freeze.to_string(), "by `sale` until 2026-11-30T08:00:00Z: the sale");
        assert!(serde_json::from_str::<Freeze>(&json.replace("reason", "unless")).is_err());
    }
}

//! `[log]`: which requests are logged.

use serde::{Deserialize, Serialize};

/// The access log: a line in the log of the process for each request, except those to `admin_listen`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// The requests that are logged.
    pub access: AccessMode,
    /// Lines of the access log in a second. Further ones are dropped and counted. At least 1.
    pub access_lines: u32,
}

/// The requests that are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessMode {
    /// None.
    Off,
    /// Those with a status of 400 or higher, or without a response.
    Errors,
    /// All.
    All,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { access: AccessMode::Errors, access_lines: 100 }
    }
}

impl LogConfig {
    /// What is wrong with the values.
    pub fn error(&self) -> Option<&'static str> {
        (self.access_lines == 0)
            .then_some("access_lines in [log] must be at least 1: access = \"off\" turns the access log off")
    }
}

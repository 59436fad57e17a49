//! `[admin]` of origins and agents. Edges have these keys and more.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Access to `admin_listen`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminConfig {
    /// File with a token that `/metrics` requires (`Authorization: Bearer …`): one line of 16 to 4,096 visible characters, read
    /// for each request. Without it, everyone who reaches the port reads the metrics, which name repositories and services.
    #[serde(default)]
    pub metrics_token_file: Option<PathBuf>,
}

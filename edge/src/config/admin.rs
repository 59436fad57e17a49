//! `[admin]`: access to `admin_listen`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Access to `admin_listen`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminConfig {
    /// File with the token of operators (`Authorization: Bearer …`): one line of 16 to 4,096 visible characters, read for
    /// each request. Without it, purges are rejected.
    #[serde(default)]
    pub operator_token_file: Option<PathBuf>,
    /// File with a token that `/metrics` requires (`Authorization: Bearer …`): one line of 16 to 4,096 visible characters, read
    /// for each request. Without it, everyone who reaches the port reads the metrics, which name repositories and services.
    #[serde(default)]
    pub metrics_token_file: Option<PathBuf>,
    /// Serve `admin_listen` with the certificate of `[tls]`.
    #[serde(default)]
    pub tls: bool,
    /// Allow plain HTTP beyond loopback, for private networks: anyone who can capture its traffic sees the token.
    #[serde(default)]
    pub allow_plain: bool,
}

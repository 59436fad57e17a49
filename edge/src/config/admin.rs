//! `[admin]`: who may do what on `admin_listen`.

use std::path::PathBuf;

use serde::Deserialize;

/// `[admin]`: who may do what on `admin_listen`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminConfig {
    /// The file of the token that operators show: one line of at least 16 characters, read anew for each request.
    /// Without it nobody may purge.
    #[serde(default)]
    pub operator_token_file: Option<PathBuf>,
    /// Serves it with the certificate of `[tls]`.
    #[serde(default)]
    pub tls: bool,
    /// Lets it listen beyond loopback without TLS: for private networks only, the token is sent in clear there.
    #[serde(default)]
    pub allow_plain: bool,
}

//! `[tls]`: what agents see.

use std::path::PathBuf;

use serde::Deserialize;

/// `[tls]`: what agents see.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM file of the certificate, with its chain.
    pub certificate: PathBuf,
    /// PEM file of its key.
    pub key: PathBuf,
}

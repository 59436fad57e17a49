//! `[tls]`: the certificate that agents see.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The edge's certificate. The files are read again when they change, and on SIGHUP.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM file of the certificate, with its chain.
    pub certificate: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
}

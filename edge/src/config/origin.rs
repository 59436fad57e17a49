//! `[[origin]]`: a node that publishes.

use std::path::PathBuf;

use http::Uri;
use serde::{Deserialize, Serialize};
use weir_runtime::config::ConfigError;

/// An origin. At least one is needed; several share the services among them. The files are read again on SIGHUP.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OriginConfig {
    /// `https://host:port`.
    pub url: String,
    /// PEM file of the authority that signed the origin's certificate.
    pub ca: PathBuf,
    /// PEM file of the edge's client certificate.
    pub client_certificate: PathBuf,
    /// PEM file of its private key.
    pub client_key: PathBuf,
}

impl OriginConfig {
    /// An origin at `https://host:port`, with the PEM files of its authority and of the edge's own identity.
    pub fn new(
        url: impl Into<String>,
        ca: impl Into<PathBuf>,
        client_certificate: impl Into<PathBuf>,
        client_key: impl Into<PathBuf>,
    ) -> Self {
        Self {
            url: url.into(),
            ca: ca.into(),
            client_certificate: client_certificate.into(),
            client_key: client_key.into(),
        }
    }

    /// The `host:port` of the url, once it has been checked.
    pub(crate) fn authority(&self) -> Result<http::uri::Authority, ConfigError> {
        let wrong = |what: &str| ConfigError::invalid(format!("origin url = \"{}\" {what}", redacted(&self.url)));
        let uri: Uri = self.url.parse().map_err(|_| wrong("is not a URL such as `https://origin.example:7400`"))?;
        if uri.scheme_str() != Some("https") {
            return Err(wrong("must begin with `https://`: origins are called with mutual TLS only"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("must hold no user name or password: the client certificate is the credential"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("must end with the host and port: origins have no path prefix"));
        }
        Ok(authority.clone())
    }
}

/// A URL, valid or not, as it may appear in an error: without the text before the last `@`, which may be a password.
fn redacted(url: &str) -> String {
    url.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, host)| format!("…@{host}"))
}

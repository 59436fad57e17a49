//! `[[origin]]` and `[[shield]]`: a node that is called.

use std::path::PathBuf;

use http::Uri;
use http::uri::Authority;
use serde::{Deserialize, Serialize};
use weir_runtime::config::ConfigError;

/// A node that is called with mutual TLS. The files are read again when they change. `[[origin]]`: an origin, or a host name
/// that several origins share; at least one is needed. The other members of its cluster are learnt from it, and are reached
/// with the same files. Origins that do not form a cluster share the services among them. `[[shield]]`: another edge that fills
/// the caches of this and other edges, so that origins send each object once. The digest of an object chooses its shield; write
/// the same URLs at all edges. When two shields have failed, the edge requests objects from the origins.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OriginConfig {
    /// `https://host:port`.
    pub url: String,
    /// PEM file of the authority that signed its certificate.
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
    pub(crate) fn authority(&self) -> Result<Authority, ConfigError> {
        authority(&self.url)
    }
}

/// The `host:port` of the url of an origin.
///
/// # Errors
/// It is no `https` URL, or has more than a host and a port.
pub(crate) fn authority(url: &str) -> Result<Authority, ConfigError> {
    let wrong = |what: &str| ConfigError::invalid(format!("origin url = \"{}\" {what}", redacted(url)));
    let uri: Uri = url.parse().map_err(|_| wrong("is not a URL such as `https://origin.example:7400`"))?;
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

/// A URL, valid or not, as it may appear in an error: without the text before the last `@`, which may be a password.
fn redacted(url: &str) -> String {
    url.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, host)| format!("…@{host}"))
}

//! `[operator]`: who may do what on `operator_listen`.

use std::path::PathBuf;

use rustls::ServerConfig;
use serde::{Deserialize, Serialize};
use weir_runtime::operator_token::{OPERATOR_TOKEN, OperatorToken, TokenError};
use weir_runtime::tls::{self, ClientAuth, TlsError};

use super::TlsConfig;

/// Access to `operator_listen`. The certificate files are read again when they change, and on SIGHUP.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OperatorConfig {
    /// File with the token of operators (`Authorization: Bearer …`): one line of 16 to 4,096 visible characters, read for
    /// each request. Without it, operators need a client certificate with `spiffe://<trust_domain>/operator/<name>`.
    pub operator_token_file: Option<PathBuf>,
    /// PEM file of the listener's certificate, with its chain; together with `key`. Webhooks need one of a public authority.
    /// Default: that of `[tls]`.
    pub certificate: Option<PathBuf>,
    /// PEM file of its private key. Default: that of `[tls]`.
    pub key: Option<PathBuf>,
    /// PEM file of the authority of operators' certificates. Default: that of `[tls]`.
    pub client_ca: Option<PathBuf>,
    /// Directory of the secrets that operators may name, one folder for each scheme, host and port of an upstream:
    /// `<secrets_dir>/git.example/token` for `https://` on port 443, otherwise `<secrets_dir>/https_git.example_8443/token`.
    /// Without it, they may name none.
    pub secrets_dir: Option<PathBuf>,
}

impl OperatorConfig {
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let Self { operator_token_file, certificate, key, client_ca, secrets_dir } = self;
        [operator_token_file, certificate, key, client_ca, secrets_dir].into_iter().flatten()
    }

    pub(super) fn error(&self) -> Option<&'static str> {
        match (&self.certificate, &self.key) {
            (Some(_), None) => Some("[operator] `certificate` needs `key`"),
            (None, Some(_)) => Some("[operator] `key` needs `certificate`"),
            _ => None,
        }
    }

    /// The TLS configuration of the listener. Client certificates are optional, because webhooks have none.
    pub(crate) fn server_tls(&self, of_edges: &TlsConfig) -> Result<ServerConfig, TlsError> {
        let TlsConfig { certificate, key, client_ca } = self.tls(of_edges);
        tls::server_config(&certificate, &key, ClientAuth::Offered { ca: &client_ca })
    }

    /// The files of the listener.
    pub(crate) fn tls(&self, of_edges: &TlsConfig) -> TlsConfig {
        let or = |own: &Option<PathBuf>, other: &PathBuf| own.as_ref().unwrap_or(other).clone();
        TlsConfig {
            certificate: or(&self.certificate, &of_edges.certificate),
            key: or(&self.key, &of_edges.key),
            client_ca: or(&self.client_ca, &of_edges.client_ca),
        }
    }

    /// The operators' token.
    pub(crate) fn token(&self) -> Result<Option<OperatorToken>, TokenError> {
        self.operator_token_file.as_deref().map(|file| OperatorToken::open(OPERATOR_TOKEN, file)).transpose()
    }
}

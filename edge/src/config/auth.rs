//! `[auth]`: who may read.

use std::path::PathBuf;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use weir_protocol::name_glob::NameGlob;
use weir_runtime::config::{self, ConfigError};

use super::issuer::{self, IssuerConfig};
use super::key_hosts::KeyHosts;

/// Which clients may read, and which agents may use the requests about themselves: batch polls, events, what they run. Keys and
/// certificates are checked in both modes where a client presents a credential.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// Who may read.
    pub mode: AuthMode,
    /// Allow an edge in open mode to listen beyond loopback.
    pub allow_anonymous: bool,
    /// Files of public keys that verify tokens, as `weir token key` writes them. Read again within two seconds of a change.
    pub keys: Vec<PathBuf>,
    /// File of denied tokens and revoked keys. Read again within two seconds of a change. Replace it by a rename, so that
    /// it is never read half written.
    pub deny: Option<PathBuf>,
    /// Accept keys that origins announce. Their denials always apply.
    pub keys_from_origins: bool,
    /// Hosts from which keys are fetched for issuers that operators define at origins with a `url`: names, and `*.` before a domain
    /// for all hosts below it; on any port. Empty: from none. Needs `keys_from_origins`.
    pub key_hosts: KeyHosts,
    /// PEM file of the authority of agents' certificates; with mode = "required" together with
    /// `[[auth.certificate]]`. Clients without a certificate
    /// may connect, clients with one of another authority may not. Read again when it changes.
    pub client_ca: Option<PathBuf>,
    /// What agents may read with their certificate alone.
    #[serde(rename = "certificate")]
    pub certificates: Vec<CertificateRule>,
    /// Issuers of tokens beside Weir.
    #[serde(rename = "issuer")]
    pub issuers: Vec<IssuerConfig>,
    /// Tokens in the cache of verified signatures. Expiry and denials are checked for each request. At least 1.
    pub cached_tokens: u64,
    /// Most issuers, of this file and of the origins together. Of those of origins the ones that were defined last are left out.
    pub max_issuers: usize,
    /// Most issuers of origins whose keys are fetched from a URL: each every 10 minutes, 64 at a time. Of more, those that were
    /// defined last are not fetched. A set of keys takes up to 64 KiB of memory.
    pub max_issuer_urls: usize,
    /// Memory of the agents, assignments and issuers that operators define at origins, as JSON. A list with more is not used:
    /// the previous one applies.
    #[serde(with = "config::size")]
    pub fleet_bytes: ByteSize,
}

/// Whether a reader must prove itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// No: every client may read everything. A credential that a client presents must be valid if the edge has keys or an
    /// authority to check it with, and allows an agent the requests about itself.
    #[default]
    Open,
    /// Yes: by a token or a certificate, which grants access to services.
    Required,
}

/// What agents may read with their certificate alone. Services that no rule names cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateRule {
    /// Agents, by the name in their certificate: `spiffe://<trust_domain>/agent/<name>`.
    pub agents: NameGlob,
    /// Services that these agents may read. At least one pattern.
    pub services: Vec<NameGlob>,
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            mode: AuthMode::Open,
            allow_anonymous: false,
            keys: Vec::new(),
            deny: None,
            keys_from_origins: false,
            key_hosts: KeyHosts::default(),
            client_ca: None,
            certificates: Vec::new(),
            issuers: Vec::new(),
            cached_tokens: 50_000,
            max_issuers: 25_000,
            max_issuer_urls: 2_000,
            fleet_bytes: ByteSize::mib(512),
        }
    }
}

impl AuthConfig {
    /// The paths in it.
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let issuers = self.issuers.iter_mut().flat_map(IssuerConfig::paths);
        self.keys.iter_mut().chain(&mut self.deny).chain(&mut self.client_ca).chain(issuers)
    }

    /// Whether there is anything but its own keys to check credentials with.
    pub(crate) fn has_authorities(&self) -> bool {
        self.keys_from_origins || !self.issuers.is_empty() || self.client_ca.is_some()
    }

    /// Whether there is anything to check credentials with.
    pub(crate) fn can_check(&self) -> bool {
        self.has_authorities() || !self.keys.is_empty()
    }

    pub(super) fn errors(&self) -> Vec<ConfigError> {
        let mut errors = ConfigError::failed([
            (
                self.mode == AuthMode::Open && !self.certificates.is_empty(),
                "[auth] mode = \"open\" lets every client read everything, so [[auth.certificate]] grants nothing: set mode = \
                 \"required\", or remove it",
            ),
            (
                self.mode == AuthMode::Open && !self.can_check() && self.deny.is_some(),
                "[auth] mode = \"open\", and a deny file without anything that it could deny: set keys, keys_from_origins, \
                 [[auth.issuer]] or client_ca, or remove deny",
            ),
            (
                self.mode == AuthMode::Required && !self.can_check() && self.certificates.is_empty(),
                "[auth] mode = \"required\", but no client can authenticate: set keys (files of `weir token key`), \
                 keys_from_origins = true, [[auth.issuer]], or client_ca with [[auth.certificate]]",
            ),
            (
                match self.mode {
                    AuthMode::Required => self.client_ca.is_some() == self.certificates.is_empty(),
                    AuthMode::Open => self.client_ca.is_none() && !self.certificates.is_empty(),
                },
                "client_ca in [auth] and [[auth.certificate]] must be set together: one names the authority of certificates, the \
                 other the services that they grant",
            ),
            (
                self.certificates.iter().any(|rule| rule.services.is_empty()),
                "services in [[auth.certificate]] is empty: name at least one pattern, such as \"shop-*\"",
            ),
            (
                !self.keys_from_origins && !self.key_hosts.is_empty(),
                "key_hosts in [auth] is for issuers of origins, of which this edge takes none: set keys_from_origins = true, or \
                 remove key_hosts",
            ),
            (self.cached_tokens == 0, "cached_tokens in [auth] must be at least 1"),
            (self.issuers.len() > self.max_issuers, "there are more [[auth.issuer]] than max_issuers in [auth]"),
        ]);
        errors.extend(issuer::errors(&self.issuers));
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_runtime::config;

    fn check(text: &str) -> Result<(), String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let config: AuthConfig = config::read(file.path()).map_err(|error| error.to_string())?;
        ConfigError::all(config.errors()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_mode_that_contradicts_the_credentials_is_refused() {
        let issuer = "[[issuer]]\nissuer = 'https://a.example'\naudience = 'weir'\njwks = 'jwks.json'\nsubjects = ['s']\n\
                      agent = '{kubernetes.io/namespace}'\nservices = ['*']\n";
        let rule = "[[certificate]]\nagents = 'cluster-*'\nservices = ['shop-*']\n";
        for right in [
            String::new(),
            "client_ca = 'ca'".to_owned(),
            "keys = ['a']\ndeny = 'd'".to_owned(),
            issuer.to_owned(),
            "mode = 'required'\nkeys = ['a']\ndeny = 'd'".to_owned(),
            "mode = 'required'\nkeys_from_origins = true".to_owned(),
            "mode = 'required'\nkeys_from_origins = true\nkey_hosts = ['*.clusters.example']".to_owned(),
            format!("mode = 'required'\nclient_ca = 'ca'\n{rule}"),
            format!("mode = 'required'\n{issuer}"),
            format!("mode = 'required'\n{issuer}{}", issuer.replace("jwks.json", "other.json")),
            format!("mode = 'required'\n{}", issuer.replace("jwks.json'", "https://a.example/jwks'\nca = 'ca'")),
        ] {
            assert_eq!(check(&right), Ok(()), "{right}");
        }
        for (wrong, named) in [
            ("deny = 'd'".to_owned(), "without anything that it could deny"),
            (format!("client_ca = 'ca'\n{rule}"), "grants nothing"),
            ("mode = 'required'".to_owned(), "no client can authenticate"),
            ("mode = 'required'\ndeny = 'd'".to_owned(), "no client can authenticate"),
            ("mode = 'required'\nkeys = ['a']\nclient_ca = 'ca'".to_owned(), "[[auth.certificate]]"),
            (format!("mode = 'required'\nkeys = ['a']\n{rule}"), "client_ca"),
            (format!("mode = 'required'\nclient_ca = 'ca'\n{}", rule.replace("'shop-*'", "")), "services"),
            (format!("mode = 'required'\nclient_ca = 'ca'\n{}", rule.replace("shop", "Shop")), "Shop-*"),
            (format!("mode = 'required'\nclient_ca = 'ca'\n{rule}more = 1"), "more"),
            ("mode = 'required'\nkeys = ['a']\ncached_tokens = 0".to_owned(), "cached_tokens"),
            ("mode = 'required'\nkeys = ['a']\nkey_hosts = ['a.example']".to_owned(), "keys_from_origins"),
            ("keys_from_origins = true\nkey_hosts = ['https://a.example']".to_owned(), "write no port and no path"),
            (format!("mode = 'required'\n{issuer}{issuer}"), "same issuer and jwks"),
            (format!("mode = 'required'\n{issuer}ca = 'ca'"), "only for a jwks"),
            (format!("mode = 'required'\n{}", issuer.replace("jwks.json", "https://a.example/jwks")), "ca is needed"),
            (format!("mode = 'required'\n{}", issuer.replace("jwks.json", "http://a.example/jwks")), "plain HTTP"),
            (format!("mode = 'required'\n{}", issuer.replace("jwks.json", "https://a:b@a.example/")), "https://issuer"),
            (format!("mode = 'required'\n{}", issuer.replace("'weir'", "''")), "audience"),
            (format!("mode = 'required'\n{}", issuer.replace("audience = 'weir'", "")), "audience"),
            (format!("mode = 'required'\n{}", issuer.replace("['s']", "[]")), "subjects"),
            (format!("mode = 'required'\n{}", issuer.replace("['*']", "[]")), "services is empty"),
            (format!("mode = 'required'\n{}", issuer.replace("{kube", "kube")), "template"),
        ] {
            let error = check(&wrong).unwrap_err();
            assert!(error.contains(named), "{wrong}: {error}");
        }
    }
}

//! `[auth]`: who may read.

use std::path::PathBuf;

use serde::Deserialize;
use weir_protocol::name_glob::NameGlob;
use weir_runtime::config::ConfigError;

/// `[auth]`: who may read.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// Whether a reader must prove itself.
    pub mode: AuthMode,
    /// Lets an edge in open mode listen beyond loopback.
    pub allow_anonymous: bool,
    /// Files of the public keys that verify tokens. Read again when they change.
    pub keys: Vec<PathBuf>,
    /// A file of denied tokens and revoked keys. Read again when it changes.
    pub deny: Option<PathBuf>,
    /// Whether keys that origins announce verify tokens too. What origins deny is denied in any case.
    pub keys_from_origins: bool,
    /// PEM file of the authority that signs the agents' certificates.
    pub client_ca: Option<PathBuf>,
    /// What agents may read by their certificate alone.
    #[serde(rename = "certificate")]
    pub certificates: Vec<CertificateRule>,
    /// Tokens whose signature was verified and need not be again.
    pub remembered_tokens: u64,
}

/// Whether a reader must prove itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// No: whoever connects may read everything.
    #[default]
    Open,
    /// Yes: by a token or by a certificate, and it reads what that opens.
    Required,
}

/// `[[auth.certificate]]`: which agents may read which services by their certificate alone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateRule {
    /// Names of agents: of certificates with `spiffe://weir/agent/<name>`.
    pub agents: NameGlob,
    /// Names of services.
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
            client_ca: None,
            certificates: Vec::new(),
            remembered_tokens: 50_000,
        }
    }
}

impl AuthConfig {
    /// The paths in it.
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.keys.iter_mut().chain(&mut self.deny).chain(&mut self.client_ca)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError::invalid(message));
        let has_tokens = !self.keys.is_empty() || self.keys_from_origins;
        let has_certificates = self.client_ca.is_some() || !self.certificates.is_empty();
        if self.mode == AuthMode::Open && (has_tokens || has_certificates || self.deny.is_some()) {
            return invalid(
                "[auth] mode = \"open\" lets everybody read, and there are keys, a deny file or certificates that say \
                 who may: set mode = \"required\", or remove them",
            );
        }
        if self.mode == AuthMode::Required && !has_tokens && !has_certificates {
            return invalid(
                "[auth] mode = \"required\" and nobody can prove anything: give keys (files of `weir token key`), \
                 keys_from_origins = true, or client_ca with [[auth.certificate]]",
            );
        }
        if self.client_ca.is_some() == self.certificates.is_empty() {
            return invalid(
                "client_ca in [auth] says whose certificates are believed and [[auth.certificate]] what they open: \
                 one without the other opens nothing",
            );
        }
        if self.certificates.iter().any(|rule| rule.services.is_empty()) {
            return invalid("services in [[auth.certificate]] is empty: name at least one pattern, such as \"shop-*\"");
        }
        if self.remembered_tokens == 0 {
            return invalid("remembered_tokens in [auth] must be at least 1");
        }
        Ok(())
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
        config.validate().map_err(|error| error.to_string())
    }

    #[test]
    fn what_opens_nothing_or_everything_by_accident_is_refused() {
        let rule = "[[certificate]]\nagents = 'cluster-*'\nservices = ['shop-*']\n";
        for right in [
            String::new(),
            "mode = 'required'\nkeys = ['a']\ndeny = 'd'".to_owned(),
            "mode = 'required'\nkeys_from_origins = true".to_owned(),
            format!("mode = 'required'\nclient_ca = 'ca'\n{rule}"),
        ] {
            assert_eq!(check(&right), Ok(()), "{right}");
        }
        for (wrong, named) in [
            ("keys = ['a']".to_owned(), "mode = \"required\""),
            ("deny = 'd'".to_owned(), "mode = \"required\""),
            ("mode = 'required'".to_owned(), "nobody can prove"),
            ("mode = 'required'\ndeny = 'd'".to_owned(), "nobody can prove"),
            ("mode = 'required'\nkeys = ['a']\nclient_ca = 'ca'".to_owned(), "[[auth.certificate]]"),
            (format!("mode = 'required'\nkeys = ['a']\n{rule}"), "client_ca"),
            (format!("mode = 'required'\nclient_ca = 'ca'\n{}", rule.replace("'shop-*'", "")), "services"),
            (format!("mode = 'required'\nclient_ca = 'ca'\n{}", rule.replace("shop", "Shop")), "Shop-*"),
            (format!("mode = 'required'\nclient_ca = 'ca'\n{rule}more = 1"), "more"),
            ("mode = 'required'\nkeys = ['a']\nremembered_tokens = 0".to_owned(), "remembered_tokens"),
        ] {
            let error = check(&wrong).unwrap_err();
            assert!(error.contains(named), "{wrong}: {error}");
        }
    }
}

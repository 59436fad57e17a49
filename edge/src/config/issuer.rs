//! `[[auth.issuer]]`: issuers of tokens beside Weir.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use http::Uri;
use serde::{Deserialize, Serialize};
use weir_protocol::issuer::key_url;
use weir_protocol::name_glob::NameGlob;
use weir_protocol::token::{AgentTemplate, IssuerPolicy};
use weir_runtime::config::ConfigError;

/// An issuer of tokens other than Weir: a cluster's service accounts, an OpenID Connect provider. Several entries may have one
/// `issuer`: a token belongs to the entry whose key signed it. A key in two entries belongs to the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssuerConfig {
    /// `iss` of its tokens, exactly.
    pub issuer: String,
    /// Value that `aud` of a token must be or contain.
    pub audience: String,
    /// Its public keys, as a JWK set: a file, or an `https://` URL. At most 64 KiB and 32 keys. A file is read again within 5
    /// seconds of a change. A URL is fetched every 10 minutes, and for a token with an unknown `kid`, which waits for it up to
    /// 5 s, but for that at most once a minute; redirects are not followed. The last valid set stays in use.
    pub jwks: KeySource,
    /// PEM file of the authority that signed the certificate of the URL's host. Needed with a URL.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Patterns over `sub`, in which `*` stands for any text. A token must match one.
    pub subjects: Vec<String>,
    /// The agent's name, or a template over the claims of its token: `{cluster}`, or `{kubernetes.io/namespace}` for the member
    /// `namespace` of the claim `kubernetes.io`.
    pub agent: AgentTemplate,
    /// Services that its agents may read. At least one pattern.
    pub services: Vec<NameGlob>,
}

/// Where a set of keys comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// An `https://` URL.
    Url(Uri),
}

impl TryFrom<String> for KeySource {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if !text.contains("://") {
            return Ok(Self::File(text.into()));
        }
        let wrong = "jwks must be a file, or a URL such as `https://issuer.example/jwks`: plain HTTP is not fetched";
        key_url(&text).map(Self::Url).ok_or_else(|| wrong.to_owned())
    }
}

impl From<KeySource> for String {
    fn from(source: KeySource) -> Self {
        source.to_string()
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Url(uri) => uri.fmt(f),
        }
    }
}

impl IssuerConfig {
    /// What its tokens are worth.
    pub(crate) fn issuer(&self) -> IssuerPolicy {
        IssuerPolicy {
            issuer: self.issuer.clone(),
            audience: self.audience.clone(),
            subjects: self.subjects.clone(),
            agent: self.agent.clone(),
            services: self.services.clone(),
        }
    }

    /// The paths in it.
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let file = if let KeySource::File(path) = &mut self.jwks { Some(path) } else { None };
        file.into_iter().chain(&mut self.ca)
    }

    fn error(&self) -> Option<&'static str> {
        let is_url = matches!(self.jwks, KeySource::Url(_));
        [
            (self.issuer.is_empty() || self.audience.is_empty(), "issuer and audience must not be empty"),
            (
                self.subjects.is_empty() || self.subjects.iter().any(String::is_empty),
                "subjects must name at least one subject, such as \"system:serviceaccount:weir:agent\"",
            ),
            (self.services.is_empty(), "services is empty: name at least one pattern, such as \"shop-*\""),
            (is_url && self.ca.is_none(), "ca is needed: the authority of the host that `jwks` names"),
            (!is_url && self.ca.is_some(), "ca is only for a jwks with an https:// URL"),
        ]
        .into_iter()
        .find_map(|(is_wrong, why)| is_wrong.then_some(why))
    }
}

pub(super) fn errors(issuers: &[IssuerConfig]) -> Vec<ConfigError> {
    let mut sources = HashSet::new();
    let mut errors: Vec<ConfigError> = Vec::new();
    for issuer in issuers {
        let name = &issuer.issuer;
        let is_twice = !sources.insert((name, issuer.jwks.to_string()));
        let twice = is_twice.then_some("another entry has the same issuer and jwks: a key belongs to one entry");
        for why in issuer.error().into_iter().chain(twice) {
            errors.push(ConfigError::invalid(format!("[[auth.issuer]] issuer = \"{name}\": {why}")));
        }
    }
    errors
}

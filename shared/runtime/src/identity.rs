//! The identity in a certificate: the SPIFFE URI `spiffe://<trust domain>/<role>/<name>` among its subject alternative names.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use weir_protocol::name::NodeName;
use weir_protocol::serde_as_text;

/// The roles that a certificate can prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Owns repositories and publishes.
    Origin,
    /// Caches.
    Edge,
    /// Follows services on a cluster.
    Agent,
    /// A person or a program that manages services and tokens.
    Operator,
}

impl Role {
    /// The role's component of the URI.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Origin => "origin",
            Role::Edge => "edge",
            Role::Agent => "agent",
            Role::Operator => "operator",
        }
    }
}

/// The SPIFFE trust domain of certificates. Default: `weir`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustDomain(Arc<str>);

/// The text is not a trust domain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a SPIFFE trust domain: 1 to 255 of `a-z`, `0-9`, `.`, `_`, `-`, such as `example.org`")]
pub struct TrustDomainError(String);

impl Default for TrustDomain {
    fn default() -> Self {
        Self("weir".into())
    }
}

impl FromStr for TrustDomain {
    type Err = TrustDomainError;

    fn from_str(text: &str) -> Result<Self, TrustDomainError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-');
        match (1..=255).contains(&text.len()) && text.bytes().all(allowed) {
            true => Ok(Self(text.into())),
            false => Err(TrustDomainError(text.chars().take(120).collect())),
        }
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

serde_as_text!(TrustDomain);

/// A role and a name, in the trust domain of whoever reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The role of the certificate's holder.
    pub role: Role,
    /// The name of the node or operator.
    pub name: NodeName,
}

impl Identity {
    /// Reads the identity from an end-entity certificate whose chain was verified already. `None` if it has none in the trust
    /// domain, or several.
    pub fn of_certificate(certificate: &CertificateDer<'_>, trust_domain: &TrustDomain) -> Option<Self> {
        Self::only(certificate, |domain| domain == &*trust_domain.0)
    }

    /// The identity in a certificate of a trust domain that only its verifier knows.
    pub(crate) fn in_any_domain(certificate: &CertificateDer<'_>) -> Option<Self> {
        Self::only(certificate, |_| true)
    }

    fn only(certificate: &CertificateDer<'_>, is_domain: impl Fn(&str) -> bool) -> Option<Self> {
        let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
        let mut identities = certificate.valid_uri_names().filter_map(|uri| Self::parse(uri, &is_domain));
        let identity = identities.next()?;
        identities.next().is_none().then_some(identity)
    }

    fn parse(uri: &str, is_domain: impl Fn(&str) -> bool) -> Option<Self> {
        let (domain, path) = uri.strip_prefix("spiffe://")?.split_once('/')?;
        let (role, name) = path.split_once('/')?;
        let roles = [Role::Origin, Role::Edge, Role::Agent, Role::Operator];
        let role = roles.into_iter().find(|known| known.as_str() == role)?;
        is_domain(domain).then_some(Self { role, name: name.parse().ok()? })
    }

    /// Its URI: `spiffe://<trust domain>/<role>/<name>`.
    pub fn uri(&self, trust_domain: &TrustDomain) -> String {
        format!("spiffe://{trust_domain}/{}/{}", self.role.as_str(), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_as_they_are_written() {
        for domain in ["weir", "fleet.example.org"] {
            let domain: TrustDomain = domain.parse().unwrap();
            let parse = |uri: &str| Identity::parse(uri, |of| of == &*domain.0);
            let identity = Identity { role: Role::Edge, name: "edge-1".parse().unwrap() };
            assert_eq!(identity.uri(&domain), format!("spiffe://{domain}/edge/edge-1"));
            assert_eq!(parse(&identity.uri(&domain)), Some(identity));
            for wrong in ["spiffe://other/edge/a", "https://weir/edge/a", "spiffe:///edge/a"] {
                assert_eq!(parse(wrong), None, "{wrong}");
            }
            for wrong in ["edge", "king/a", "edge/a/b", "edge/", "Edge/a", ""] {
                assert_eq!(parse(&format!("spiffe://{domain}/{wrong}")), None, "{wrong}");
            }
        }
        for wrong in ["", "A", "a/b", "a:1", &"a".repeat(256)] {
            assert!(wrong.parse::<TrustDomain>().is_err(), "{wrong}");
        }
    }
}

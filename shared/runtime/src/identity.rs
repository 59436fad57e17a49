//! The identity in a certificate: the SPIFFE URI `spiffe://weir/<role>/<name>` among its subject alternative names.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;

use weir_protocol::name::NodeName;

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

/// A role and a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The role of the certificate's holder.
    pub role: Role,
    /// The name of the node or operator.
    pub name: NodeName,
}

/// The text was not `spiffe://weir/<role>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an identity: expected `spiffe://weir/<origin|edge|agent|operator>/<name>`")]
pub struct IdentityError(String);

impl Identity {
    /// Reads the identity from an end-entity certificate whose chain was verified already. `None` if it has none, or several.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
        let mut identities = certificate.valid_uri_names().filter_map(|uri| uri.parse().ok());
        let identity = identities.next()?;
        identities.next().is_none().then_some(identity)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://weir/{}/{}", self.role.as_str(), self.name)
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let error = || IdentityError(text.chars().take(200).collect());
        let (role, name) =
            text.strip_prefix("spiffe://weir/").and_then(|rest| rest.split_once('/')).ok_or_else(error)?;
        let role = [Role::Origin, Role::Edge, Role::Agent, Role::Operator]
            .into_iter()
            .find(|r| r.as_str() == role)
            .ok_or_else(error)?;
        Ok(Self { role, name: name.parse().map_err(|_| error())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_as_they_are_written() {
        let identity: Identity = "spiffe://weir/edge/edge-1".parse().unwrap();
        assert_eq!(identity, Identity { role: Role::Edge, name: "edge-1".parse().unwrap() });
        assert_eq!(identity.to_string(), "spiffe://weir/edge/edge-1");
        for wrong in [
            "spiffe://other/edge/a",
            "spiffe://weir/edge",
            "spiffe://weir/king/a",
            "spiffe://weir/edge/a/b",
            "spiffe://weir/edge/",
        ] {
            assert!(wrong.parse::<Identity>().is_err(), "{wrong}");
        }
    }
}

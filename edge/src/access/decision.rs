//! Decides whether a request is allowed.

use weir_protocol::name::ServiceName;
use weir_protocol::token::UnixSeconds;
use weir_runtime::identity::{Identity, Role};

use super::credential::Credential;
use super::standing::Standing;
use crate::config::CertificateRule;

/// The decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Allowed(Proof),
    /// The client is authenticated and may not read this service: the answer is `404`, as if it did not exist.
    Unseen,
    /// The client is not authenticated.
    Unauthorized(Refusal),
}

/// How a client was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Not at all: the edge is open.
    None,
    Token,
    Certificate,
}

/// Why a client is not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It sent neither a token nor an agent's certificate.
    NoCredential,
    /// The token is malformed.
    Malformed,
    /// The key of the token is unknown.
    UnknownKey,
    /// The key of the token is revoked.
    RevokedKey,
    BadSignature,
    Expired,
    NotYetValid,
    Denied,
}

impl Decision {
    /// The decision of an open edge.
    pub(super) const OPEN: Decision = Decision::Allowed(Proof::None);

    /// All decisions, in the order of [`index`](Self::index).
    pub(super) const ALL: [Decision; 12] = [
        Decision::Allowed(Proof::None),
        Decision::Allowed(Proof::Token),
        Decision::Allowed(Proof::Certificate),
        Decision::Unseen,
        Decision::Unauthorized(Refusal::NoCredential),
        Decision::Unauthorized(Refusal::Malformed),
        Decision::Unauthorized(Refusal::UnknownKey),
        Decision::Unauthorized(Refusal::RevokedKey),
        Decision::Unauthorized(Refusal::BadSignature),
        Decision::Unauthorized(Refusal::Expired),
        Decision::Unauthorized(Refusal::NotYetValid),
        Decision::Unauthorized(Refusal::Denied),
    ];

    /// The position in [`ALL`](Self::ALL).
    pub(super) fn index(self) -> usize {
        Self::ALL.iter().position(|each| *each == self).expect("all are there")
    }

    /// The value of a metric's label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Decision::Allowed(Proof::None) => "open",
            Decision::Allowed(Proof::Token) => "token",
            Decision::Allowed(Proof::Certificate) => "certificate",
            Decision::Unseen => "unseen",
            Decision::Unauthorized(refusal) => refusal.as_str(),
        }
    }
}

impl Refusal {
    /// The value of a metric's label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Refusal::NoCredential => "no_credential",
            Refusal::Malformed => "malformed",
            Refusal::UnknownKey => "unknown_key",
            Refusal::RevokedKey => "revoked_key",
            Refusal::BadSignature => "bad_signature",
            Refusal::Expired => "expired",
            Refusal::NotYetValid => "not_yet_valid",
            Refusal::Denied => "denied",
        }
    }

    /// The reason as a sentence, fit for clients and for a quoted string of RFC 9110.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Refusal::NoCredential => "This edge needs a bearer token or a client certificate of an agent.",
            Refusal::Malformed => "The token cannot be read.",
            Refusal::UnknownKey => "The token is signed with a key that is not known here.",
            Refusal::RevokedKey => "The token is signed with a key that was revoked: a new token is needed.",
            Refusal::BadSignature => "The signature of the token is wrong.",
            Refusal::Expired => "The token has expired: a new one is needed.",
            Refusal::NotYetValid => "The token is not valid yet.",
            Refusal::Denied => "The token was revoked: a new one is needed.",
        }
    }
}

/// Decides on a client that must authenticate. `rules`: the services that certificates may read. A token decides alone:
/// a certificate does not make up for a bad one.
pub(super) fn decide(
    rules: &[CertificateRule],
    standing: &Standing,
    credential: &Credential<'_>,
    identity: Option<&Identity>,
    service: Option<&ServiceName>,
    now: UnixSeconds,
) -> Decision {
    let (proof, opens) = match (credential, identity) {
        (Credential::Unreadable, _) => return Decision::Unauthorized(Refusal::Malformed),
        (Credential::Token(token), _) => match standing.claims(token, now) {
            Ok(claims) => (Proof::Token, service.is_none_or(|service| claims.open(service))),
            Err(refusal) => return Decision::Unauthorized(refusal),
        },
        (Credential::None, Some(Identity { role: Role::Agent, name })) => {
            let rules = rules.iter().filter(|rule| rule.agents.matches(name.as_str()));
            let mut opened = rules.flat_map(|rule| &rule.services);
            (Proof::Certificate, service.is_none_or(|service| opened.any(|glob| glob.matches(service.as_str()))))
        }
        // Certificates of other roles may read nothing.
        (Credential::None, _) => return Decision::Unauthorized(Refusal::NoCredential),
    };
    if opens { Decision::Allowed(proof) } else { Decision::Unseen }
}

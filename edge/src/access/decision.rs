//! The rule: what a request shows, and what that opens.

use weir_protocol::name::ServiceName;
use weir_protocol::token::UnixSeconds;
use weir_runtime::identity::{Identity, Role};

use super::credential::Credential;
use super::standing::Standing;
use crate::config::CertificateRule;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is answered.
    Allowed(Proof),
    /// The reader has proved itself, and may not see this service: it is answered as if there were none of that name.
    Unseen,
    /// The reader has not proved itself.
    Unauthorized(Refusal),
}

/// What a request was allowed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The edge is open.
    None,
    /// A token.
    Token,
    /// A client certificate.
    Certificate,
}

/// Why a reader has not proved itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It shows neither a token nor an agent's certificate.
    NoCredential,
    /// What it shows is not a token of the one shape that is read.
    Malformed,
    /// The token's key is not known here.
    UnknownKey,
    /// The token's key was revoked.
    RevokedKey,
    /// The token's key did not sign it.
    BadSignature,
    /// The token's time has passed.
    Expired,
    /// The token's time has not come.
    NotYetValid,
    /// The token is on a deny list.
    Denied,
}

impl Decision {
    /// What an open edge decides.
    pub(super) const OPEN: Decision = Decision::Allowed(Proof::None);

    /// All decisions there are, in the order of [`index`](Self::index).
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

    /// Its place in [`ALL`](Self::ALL).
    pub(super) fn index(self) -> usize {
        Self::ALL.iter().position(|each| *each == self).expect("all are there")
    }

    /// The value of a metric's label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Decision::Allowed(Proof::None) => "open",
            Decision::Allowed(Proof::Token) => "token",
            Decision::Allowed(Proof::Certificate) => "certificate",
            Decision::Unseen => "out_of_scope",
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

    /// The reason in plain words, fit for a client and for a quoted string of RFC 9110.
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

/// Decides about a reader that has to prove itself. `rules`: what certificates open. A token that is shown decides alone: a bad one is told, and not made up
/// for by a certificate.
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
        // Certificates of other roles open nothing here.
        (Credential::None, _) => return Decision::Unauthorized(Refusal::NoCredential),
    };
    if opens { Decision::Allowed(proof) } else { Decision::Unseen }
}

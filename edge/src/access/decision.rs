//! Decides whether a request is allowed.

use std::time::SystemTime;

use weir_protocol::name::ServiceName;
use weir_protocol::token::unix_seconds;
use weir_runtime::identity::{Identity, Role};
use weir_runtime::serve::Peer;

use super::credential::Credential;
use super::key_set::KeySet;
use crate::config::CertificateRule;

/// The decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessDecision {
    Allowed(AuthMethod),
    /// The client is authenticated and may not read this service: the answer is `404`, as if it did not exist.
    OutOfScope,
    /// The client is not authenticated.
    Unauthorized(Refusal),
}

/// How a client was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthMethod {
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
    /// The token is for another audience.
    WrongAudience,
    /// The issuer's tokens are not accepted for this subject.
    WrongSubject,
    /// The claims make no name of an agent.
    NoAgent,
    Expired,
    NotYetValid,
    Denied,
}

impl AccessDecision {
    /// The decision of an open edge.
    pub(super) const OPEN: AccessDecision = AccessDecision::Allowed(AuthMethod::None);

    /// All decisions, in the order of [`index`](Self::index).
    pub(super) const ALL: [AccessDecision; 15] = [
        AccessDecision::Allowed(AuthMethod::None),
        AccessDecision::Allowed(AuthMethod::Token),
        AccessDecision::Allowed(AuthMethod::Certificate),
        AccessDecision::OutOfScope,
        AccessDecision::Unauthorized(Refusal::NoCredential),
        AccessDecision::Unauthorized(Refusal::Malformed),
        AccessDecision::Unauthorized(Refusal::UnknownKey),
        AccessDecision::Unauthorized(Refusal::RevokedKey),
        AccessDecision::Unauthorized(Refusal::BadSignature),
        AccessDecision::Unauthorized(Refusal::WrongAudience),
        AccessDecision::Unauthorized(Refusal::WrongSubject),
        AccessDecision::Unauthorized(Refusal::NoAgent),
        AccessDecision::Unauthorized(Refusal::Expired),
        AccessDecision::Unauthorized(Refusal::NotYetValid),
        AccessDecision::Unauthorized(Refusal::Denied),
    ];

    /// The position in [`ALL`](Self::ALL).
    pub(super) fn index(self) -> usize {
        Self::ALL.iter().position(|each| *each == self).expect("all are there")
    }

    /// The value of a metric's label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            AccessDecision::Allowed(AuthMethod::None) => "open",
            AccessDecision::Allowed(AuthMethod::Token) => "token",
            AccessDecision::Allowed(AuthMethod::Certificate) => "certificate",
            AccessDecision::OutOfScope => "out_of_scope",
            AccessDecision::Unauthorized(refusal) => refusal.as_str(),
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
            Refusal::WrongAudience => "wrong_audience",
            Refusal::WrongSubject => "wrong_subject",
            Refusal::NoAgent => "no_agent",
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
            Refusal::UnknownKey => "The token is signed with an unknown key.",
            Refusal::RevokedKey => "The token is signed with a key that was revoked: use a new token.",
            Refusal::BadSignature => "The signature of the token is invalid.",
            Refusal::WrongAudience => "The token is for another audience.",
            Refusal::WrongSubject => "Tokens of this subject are not accepted here.",
            Refusal::NoAgent => "The claims of the token do not form the name of an agent.",
            Refusal::Expired => "The token or the certificate has expired: use a new one.",
            Refusal::NotYetValid => "The token is not valid yet.",
            Refusal::Denied => "The token was revoked: use a new one.",
        }
    }
}

/// Decides on a client that must authenticate. `rules`: the services that certificates may read. A token decides alone:
/// a certificate does not make up for a bad one.
pub(super) fn decide(
    rules: &[CertificateRule],
    key_set: &KeySet,
    credential: &Credential<'_>,
    peer: &Peer,
    service: Option<&ServiceName>,
    now: SystemTime,
) -> AccessDecision {
    let (method, allowed) = match (credential, &peer.identity) {
        (Credential::Unreadable, _) => return AccessDecision::Unauthorized(Refusal::Malformed),
        (Credential::Token(token), _) => match key_set.claims(token, unix_seconds(now)) {
            Ok(claims) => (AuthMethod::Token, service.is_none_or(|service| claims.allows(service))),
            Err(refusal) => return AccessDecision::Unauthorized(refusal),
        },
        (Credential::None, Some(Identity { role: Role::Agent, name })) if key_set.denies_agent(name) => {
            return AccessDecision::Unauthorized(Refusal::Denied);
        }
        // Connections outlive certificates.
        (Credential::None, Some(Identity { role: Role::Agent, .. })) if peer.has_expired(now) => {
            return AccessDecision::Unauthorized(Refusal::Expired);
        }
        (Credential::None, Some(Identity { role: Role::Agent, name })) => {
            let rules = rules.iter().filter(|rule| rule.agents.matches(name.as_str()));
            let mut opened = rules.flat_map(|rule| &rule.services);
            (AuthMethod::Certificate, service.is_none_or(|service| opened.any(|glob| glob.matches(service.as_str()))))
        }
        // Certificates of other roles may read nothing.
        (Credential::None, _) => return AccessDecision::Unauthorized(Refusal::NoCredential),
    };
    if allowed { AccessDecision::Allowed(method) } else { AccessDecision::OutOfScope }
}

//! Decides whether a request is allowed.

use std::time::SystemTime;

use weir_protocol::name::ServiceName;
use weir_protocol::token::unix_seconds;
use weir_runtime::identity::{Identity, Role};
use weir_runtime::serve::Peer;

use super::credential::Credential;
use super::key_set::KeySet;
use super::refusal::Refusal;
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

impl AccessDecision {
    /// The decision of an open edge.
    pub(super) const OPEN: AccessDecision = AccessDecision::Allowed(AuthMethod::None);

    /// All decisions, in the order of [`index`](Self::index).
    pub(super) const ALL: [AccessDecision; 17] = [
        AccessDecision::Allowed(AuthMethod::None),
        AccessDecision::Allowed(AuthMethod::Token),
        AccessDecision::Allowed(AuthMethod::Certificate),
        AccessDecision::OutOfScope,
        AccessDecision::Unauthorized(Refusal::NoCredential),
        AccessDecision::Unauthorized(Refusal::Malformed),
        AccessDecision::Unauthorized(Refusal::UnknownKey),
        AccessDecision::Unauthorized(Refusal::KeyOfOrigins),
        AccessDecision::Unauthorized(Refusal::KeysNotFetched),
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
            AccessDecision::Unauthorized(refusal) => refusal.into_str(),
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

//! The claims of a token.

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) use super::UnixSeconds;
use super::id::TokenId;
use super::{AUDIENCE, CLOCK_LEEWAY, TokenError};
use crate::labels::Labels;
use crate::name::{NodeName, ServiceName};
use crate::name_glob::NameGlob;

/// The claims of a token (RFC 7519), with two of our own (`services` and `labels`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// The name of the agent: `sub` of a token of Weir's own. Any holder may use the token.
    pub subject: NodeName,
    /// `jti`: the id in deny lists. Always there in a token of Weir's own.
    pub id: Option<TokenId>,
    /// The services that it may read: `services` of a token of Weir's own, else those of its issuer. At least one pattern.
    pub services: Vec<NameGlob>,
    /// `labels`: what it asserts of the agent.
    pub labels: Labels,
    /// `exp`: the end of its validity.
    pub expires: UnixSeconds,
    /// `nbf`: the start of its validity.
    pub not_before: Option<UnixSeconds>,
    /// `iat`: when it was issued. Informative.
    pub issued_at: Option<UnixSeconds>,
}

/// A token is outside of its validity period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValidityError {
    /// `exp` has passed.
    #[error("the token has expired")]
    Expired,
    /// `nbf` has not come.
    #[error("the token is not valid yet")]
    NotYetValid,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Document {
    sub: NodeName,
    jti: Option<TokenId>,
    services: Vec<NameGlob>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    exp: UnixSeconds,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<UnixSeconds>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iat: Option<UnixSeconds>,
    #[serde(default, skip_serializing)]
    aud: Option<Audience>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Audience {
    pub(super) fn holds(&self, wanted: &str) -> bool {
        match self {
            Audience::One(one) => one == wanted,
            Audience::Several(several) => several.iter().any(|one| one == wanted),
        }
    }
}

impl Claims {
    /// Reads the payload of a token of Weir's own.
    pub(super) fn parse(payload: &Value) -> Result<Self, TokenError> {
        let Document { sub, jti, services, labels, exp, nbf, iat, aud } =
            Document::deserialize(payload).map_err(|error| TokenError::Malformed(format!("its claims: {error}")))?;
        if jti.is_none() {
            return Err(TokenError::Malformed("its claims: `jti` is missing, so it could not be denied".to_owned()));
        }
        if services.is_empty() {
            return Err(TokenError::Malformed("its claims: `services` is empty, so it opens nothing".to_owned()));
        }
        if aud.is_some_and(|aud| !aud.holds(AUDIENCE)) {
            return Err(TokenError::WrongAudience);
        }
        Ok(Self { subject: sub, id: jti, services, labels, expires: exp, not_before: nbf, issued_at: iat })
    }

    pub(super) fn document(&self) -> Document {
        Document {
            sub: self.subject.clone(),
            jti: self.id.clone(),
            services: self.services.clone(),
            labels: self.labels.clone(),
            exp: self.expires,
            nbf: self.not_before,
            iat: self.issued_at,
            aud: None,
        }
    }

    /// Whether the token may read a service.
    pub fn allows(&self, service: &ServiceName) -> bool {
        self.services.iter().any(|glob| glob.matches(service.as_str()))
    }

    /// Checks the validity period, with a tolerance of [`CLOCK_LEEWAY`].
    ///
    /// # Errors
    /// The token is not valid yet, or has expired.
    pub fn valid_at(&self, now: UnixSeconds) -> Result<(), ValidityError> {
        if has_expired(self.expires, now) {
            return Err(ValidityError::Expired);
        }
        match self.not_before {
            Some(begins) if now.saturating_add(CLOCK_LEEWAY.as_secs()) < begins => Err(ValidityError::NotYetValid),
            _ => Ok(()),
        }
    }
}

/// Whether a token with this `exp` is rejected everywhere by now.
pub(crate) fn has_expired(expires: UnixSeconds, now: UnixSeconds) -> bool {
    now >= expires.saturating_add(CLOCK_LEEWAY.as_secs())
}

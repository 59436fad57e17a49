//! The claims of a token.

use serde::{Deserialize, Serialize};

use super::id::TokenId;
use super::object;
use super::{AUDIENCE, CLOCK_LEEWAY, TokenError, UnixSeconds};
use crate::name::{NodeName, ServiceName};
use crate::name_glob::NameGlob;

/// The claims of a token (RFC 7519), with one of our own (`services`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// `sub`: the agent that it was issued to. For display only: any holder may use the token.
    pub subject: NodeName,
    /// `jti`: the id in deny lists.
    pub id: TokenId,
    /// `services`: the services that it may read. At least one pattern.
    pub services: Vec<NameGlob>,
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
    jti: TokenId,
    services: Vec<NameGlob>,
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
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Audience {
    fn holds(&self, wanted: &str) -> bool {
        match self {
            Audience::One(one) => one == wanted,
            Audience::Several(several) => several.iter().any(|one| one == wanted),
        }
    }
}

impl Claims {
    /// Reads the payload of a token.
    pub(super) fn parse(json: &[u8]) -> Result<Self, TokenError> {
        let (document, _) =
            object::read::<Document>(json).map_err(|error| TokenError::Malformed(format!("its claims: {error}")))?;
        let Document { sub, jti, services, exp, nbf, iat, aud } = document;
        if services.is_empty() {
            return Err(TokenError::Malformed("its claims: `services` is empty, so it opens nothing".to_owned()));
        }
        if aud.is_some_and(|aud| !aud.holds(AUDIENCE)) {
            return Err(TokenError::Malformed(format!("its claims: `aud` is not `{AUDIENCE}`")));
        }
        Ok(Self { subject: sub, id: jti, services, expires: exp, not_before: nbf, issued_at: iat })
    }

    pub(super) fn document(&self) -> Document {
        Document {
            sub: self.subject.clone(),
            jti: self.id.clone(),
            services: self.services.clone(),
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

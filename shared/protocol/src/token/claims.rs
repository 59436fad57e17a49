//! What a token says.

use serde::{Deserialize, Serialize};

use super::id::TokenId;
use super::object;
use super::{AUDIENCE, CLOCK_LEEWAY, TokenError, UnixSeconds};
use crate::name::{NodeName, ServiceName};
use crate::name_glob::NameGlob;

/// What a token says, in the claims of RFC 7519 and one of our own (`services`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// `sub`: the agent that it was issued to. For people and logs: whoever holds the token may read.
    pub subject: NodeName,
    /// `jti`: what a deny list calls it.
    pub id: TokenId,
    /// `services`: which services it opens. At least one pattern.
    pub services: Vec<NameGlob>,
    /// `exp`: when it ends.
    pub expires: UnixSeconds,
    /// `nbf`: when it begins.
    pub not_before: Option<UnixSeconds>,
    /// `iat`: when it was issued. Nothing is decided by it.
    pub issued_at: Option<UnixSeconds>,
}

/// A token is not valid at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotNow {
    /// `exp` has passed.
    #[error("the token has expired")]
    Expired,
    /// `nbf` has not come.
    #[error("the token is not valid yet")]
    NotYet,
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
            return Err(TokenError::Malformed(format!("its claims: `aud` is somebody else, and not `{AUDIENCE}`")));
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

    /// Whether the token opens a service.
    pub fn open(&self, service: &ServiceName) -> bool {
        self.services.iter().any(|glob| glob.matches(service.as_str()))
    }

    /// Whether the token is valid at a moment, give or take [`CLOCK_LEEWAY`].
    ///
    /// # Errors
    /// It is not yet, or no longer.
    pub fn valid_at(&self, now: UnixSeconds) -> Result<(), NotNow> {
        if has_ended(self.expires, now) {
            return Err(NotNow::Expired);
        }
        match self.not_before {
            Some(begins) if now.saturating_add(CLOCK_LEEWAY.as_secs()) < begins => Err(NotNow::NotYet),
            _ => Ok(()),
        }
    }
}

/// Whether a token with this `exp` is refused everywhere by now.
pub(crate) fn has_ended(expires: UnixSeconds, now: UnixSeconds) -> bool {
    now >= expires.saturating_add(CLOCK_LEEWAY.as_secs())
}

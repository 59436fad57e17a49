//! Issuers of tokens beside Weir: a cluster's service accounts, an OpenID Connect provider.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TokenError;
use super::agent_template::AgentTemplate;
use super::claims::{Audience, Claims, UnixSeconds};
use crate::labels::Labels;
use crate::name_glob::{NameGlob, glob_matches};

/// What the tokens of an issuer are worth. Its keys are not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuerPolicy {
    /// `iss` of its tokens.
    pub issuer: String,
    /// Value that `aud` of a token must be or contain.
    pub audience: String,
    /// Patterns over `sub`: `*` stands for any text. A token must match one.
    pub subjects: Vec<String>,
    /// The name of the agent.
    pub agent: AgentTemplate,
    /// What the agent may read.
    pub services: Vec<NameGlob>,
}

/// The claims that are evaluated. Others only as far as the name of the agent is made of them.
#[derive(Deserialize)]
struct Document {
    iss: String,
    sub: String,
    aud: Audience,
    exp: UnixSeconds,
    #[serde(default)]
    nbf: Option<UnixSeconds>,
    #[serde(default)]
    iat: Option<UnixSeconds>,
    #[serde(default)]
    jti: Option<String>,
    #[serde(default)]
    labels: Labels,
}

impl IssuerPolicy {
    /// Reads the claims of a verified token.
    pub(super) fn claims(&self, payload: &Value) -> Result<Claims, TokenError> {
        let malformed = |error: serde_json::Error| TokenError::Malformed(format!("its claims: {error}"));
        let Document { iss, sub, aud, exp, nbf, iat, jti, labels } =
            Document::deserialize(payload).map_err(malformed)?;
        if iss != self.issuer {
            return Err(TokenError::Malformed("its claims: `iss` is another issuer".to_owned()));
        }
        if !aud.holds(&self.audience) {
            return Err(TokenError::WrongAudience);
        }
        if !self.subjects.iter().any(|pattern| glob_matches(pattern, &sub)) {
            return Err(TokenError::WrongSubject);
        }
        Ok(Claims {
            subject: self.agent.name(payload).map_err(TokenError::NoAgent)?,
            // Denied by its id if that can be written in a deny list.
            id: jti.and_then(|id| id.parse().ok()),
            services: self.services.clone(),
            labels,
            expires: exp,
            not_before: nbf,
            issued_at: iat,
        })
    }
}

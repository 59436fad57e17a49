//! Why tokens are rejected.

use super::MAX_TOKEN_BYTES;

/// Why a token is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// More than [`MAX_TOKEN_BYTES`].
    #[error("the token has {0} bytes, more than the limit of {MAX_TOKEN_BYTES}")]
    TooLong(usize),
    /// Malformed, or of a form that is not accepted. The text does not repeat the token.
    #[error("the token cannot be read: {0}")]
    Malformed(String),
    /// The token names another key.
    #[error("the token is signed with the key {0}, which is not known")]
    UnknownKey(String),
    /// The signature does not match.
    #[error("the token's signature is invalid")]
    BadSignature,
    /// `aud` does not name the audience.
    #[error("the token is for another audience")]
    WrongAudience,
    /// `sub` is not one of the issuer's allowed subjects.
    #[error("the subject of the token is not allowed")]
    WrongSubject,
    /// The claims do not make the name of an agent.
    #[error("the token names no agent: {0}")]
    NoAgent(String),
}

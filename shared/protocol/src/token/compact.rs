//! The compact serialisation (RFC 7515 section 3.1), parsed strictly.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::MAX_TOKEN_BYTES;
use super::claims::Claims;
use super::id::KeyId;
use super::object;
use super::public_key::PublicKey;

/// The only algorithm (RFC 8037 section 3.1); with our keys it is Ed25519.
pub(super) const ALGORITHM: &str = "EdDSA";

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
    UnknownKey(KeyId),
    /// The signature does not match.
    #[error("the token's signature is wrong")]
    BadSignature,
}

/// A parsed token whose signature has not been verified.
#[derive(Debug, Clone)]
pub struct UnverifiedToken<'a> {
    key: KeyId,
    /// Header and payload as they were signed.
    message: &'a str,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: KeyId,
    #[serde(default)]
    typ: Option<String>,
}

impl<'a> UnverifiedToken<'a> {
    /// Parses a token. Its claims are parsed by [`verify`](Self::verify).
    ///
    /// # Errors
    /// It is too long, or of a form that is not accepted.
    pub fn parse(token: &'a str) -> Result<Self, TokenError> {
        let malformed = |what: &str| TokenError::Malformed(what.to_owned());
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong(token.len()));
        }
        let mut parts = token.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed("it is not three parts with a `.` between"));
        };
        // Padding, other alphabets and non-zero trailing bits are rejected: each token has one spelling.
        let decode = |what: &str, part: &str| {
            URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed(format!("its {what} is not base64url")))
        };
        let message = &token[..header.len() + 1 + payload.len()];
        let (header, payload, signature) =
            (decode("header", header)?, decode("payload", payload)?, decode("signature", signature)?);
        let (Header { alg, kid, typ }, names) =
            object::read::<Header>(&header).map_err(|error| TokenError::Malformed(format!("its header: {error}")))?;
        if alg != ALGORITHM {
            return Err(malformed("its header: `alg` is not `EdDSA`"));
        }
        if typ.is_some_and(|typ| !typ.eq_ignore_ascii_case("JWT")) {
            return Err(malformed("its header: `typ` is not `JWT`"));
        }
        // No critical extension is supported (RFC 7515 section 4.1.11).
        if names.contain("crit") {
            return Err(malformed("its header: `crit` names an extension, and none is supported"));
        }
        Ok(Self { key: kid, message, payload, signature })
    }

    /// The id of the key that signed it.
    pub fn key_id(&self) -> &KeyId {
        &self.key
    }

    /// Verifies the signature and returns the claims. The caller checks validity period and revocation.
    ///
    /// # Errors
    /// The key is another one, the signature does not match, or the claims are malformed.
    pub fn verify(self, key: &PublicKey) -> Result<Claims, TokenError> {
        if *key.id() != self.key {
            return Err(TokenError::UnknownKey(self.key));
        }
        if !key.verifies(self.message.as_bytes(), &self.signature) {
            return Err(TokenError::BadSignature);
        }
        Claims::parse(&self.payload)
    }

    /// The claims, unverified.
    ///
    /// # Errors
    /// The claims are malformed.
    #[cfg(feature = "fuzzing")]
    pub fn claims(&self) -> Result<Claims, TokenError> {
        Claims::parse(&self.payload)
    }
}

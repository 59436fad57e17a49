//! The compact serialisation (RFC 7515 section 3.1), read strictly.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::MAX_TOKEN_BYTES;
use super::claims::Claims;
use super::id::KeyId;
use super::object;
use super::public_key::PublicKey;

/// The one algorithm (RFC 8037 section 3.1); with a key of ours it is Ed25519.
pub(super) const ALGORITHM: &str = "EdDSA";

/// Why a token is not one, or not ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// More bytes than [`MAX_TOKEN_BYTES`].
    #[error("the token has {0} bytes, more than the limit of {MAX_TOKEN_BYTES}")]
    TooLong(usize),
    /// Not a token of the one shape that is read. The text never repeats the token.
    #[error("the token cannot be read: {0}")]
    Malformed(String),
    /// It calls for another key than the one it was to be verified with.
    #[error("the token is signed with the key {0}, which is not known")]
    UnknownKey(KeyId),
    /// The signature is not that of the key.
    #[error("the token's signature is wrong")]
    BadSignature,
}

/// A token as it stands on the wire: read, and not believed.
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
    /// Takes a token apart. What it claims is looked at when it is verified.
    ///
    /// # Errors
    /// It is too long, or not of the one shape that is read.
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
        // Padding, characters of other alphabets and bits that say nothing are refused: each token has one spelling.
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
        // Extensions that must be understood (RFC 7515 section 4.1.11): none is.
        if names.contain("crit") {
            return Err(malformed("its header: `crit` asks for what is not known here"));
        }
        Ok(Self { key: kid, message, payload, signature })
    }

    /// The id of the key that is to verify it.
    pub fn key_id(&self) -> &KeyId {
        &self.key
    }

    /// Verifies the signature, then reads what the token says. Whether it is valid now, or revoked, is another question.
    ///
    /// # Errors
    /// The key is another one, it did not sign this, or the claims are not what they have to be.
    pub fn verify(self, key: &PublicKey) -> Result<Claims, TokenError> {
        if *key.id() != self.key {
            return Err(TokenError::UnknownKey(self.key));
        }
        if !key.signed(self.message.as_bytes(), &self.signature) {
            return Err(TokenError::BadSignature);
        }
        Claims::parse(&self.payload)
    }

    /// What it says, whoever wrote it.
    ///
    /// # Errors
    /// The claims are not what they have to be.
    #[cfg(feature = "fuzzing")]
    pub fn claims(&self) -> Result<Claims, TokenError> {
        Claims::parse(&self.payload)
    }
}

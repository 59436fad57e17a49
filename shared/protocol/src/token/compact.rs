//! The compact serialisation (RFC 7515 section 3.1), parsed strictly.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::claims::Claims;
use super::error::TokenError;
use super::issuer_policy::IssuerPolicy;
use super::jwk_set::VerifyingKey;
use super::public_key::PublicKey;
use super::{MAX_TOKEN_BYTES, UnixSeconds};
use crate::name::NodeName;

/// The algorithm of Weir's own tokens (RFC 8037 section 3.1); with our keys it is Ed25519.
pub(super) const ALGORITHM: &str = "EdDSA";

/// A parsed token whose signature has not been verified.
#[derive(Debug, Clone)]
pub struct UnverifiedToken<'a> {
    algorithm: String,
    key: String,
    /// Header and payload as they were signed.
    message: &'a str,
    payload: Value,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: String,
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
        let object = |what: &str, json: &[u8]| {
            let read = crate::json::from_slice::<Map<String, Value>>(json);
            read.map_err(|error| TokenError::Malformed(format!("its {what}: {error}")))
        };
        let (header, payload) = (object("header", &header)?, object("claims", &payload)?);
        let has_crit = header.contains_key("crit");
        let Header { alg, kid, typ } = Header::deserialize(&Value::Object(header))
            .map_err(|error| TokenError::Malformed(format!("its header: {error}")))?;
        if typ.is_some_and(|typ| !typ.eq_ignore_ascii_case("JWT")) {
            return Err(malformed("its header: `typ` is not `JWT`"));
        }
        // No critical extension is supported (RFC 7515 section 4.1.11).
        if has_crit {
            return Err(malformed("its header: `crit` names an extension, and none is supported"));
        }
        Ok(Self { algorithm: alg, key: kid, message, payload: Value::Object(payload), signature })
    }

    /// The name of an agent that it claims, if it is one of Weir's own. Nothing proves it yet.
    pub fn claimed_name(&self) -> Option<NodeName> {
        self.payload.get("sub")?.as_str()?.parse().ok()
    }

    /// All that it claims. Nothing proves it yet.
    pub fn unverified_claims(&self) -> &Value {
        &self.payload
    }

    /// The id of the key that signed it.
    pub fn key_id(&self) -> &str {
        &self.key
    }

    /// The issuer that it names, unverified: it selects the keys.
    pub fn issuer(&self) -> Option<&str> {
        self.payload.get("iss").and_then(Value::as_str)
    }

    /// Verifies the signature of a token of Weir's own, and returns the claims. The caller checks validity period and
    /// revocation.
    ///
    /// # Errors
    /// The key is another one, the signature does not match, or the claims are malformed.
    pub fn verify(self, key: &PublicKey) -> Result<Claims, TokenError> {
        if key.id().as_str() != self.key {
            return Err(TokenError::UnknownKey(self.key));
        }
        self.is_signed(ALGORITHM, |message, signature| key.verifies(message, signature))?;
        Claims::parse(&self.payload)
    }

    /// Verifies the signature of a token of an issuer, and returns the claims. `key`: what the issuer and
    /// [`key_id`](Self::key_id) stand for. The caller checks validity period and revocation.
    ///
    /// # Errors
    /// The algorithm is not that of the key, the signature does not match, the claims are malformed, or the issuer's
    /// tokens are not for this audience, subject or agent.
    pub fn verify_of(&self, issuer: &IssuerPolicy, key: &VerifyingKey) -> Result<Claims, TokenError> {
        self.is_signed(key.algorithm(), |message, signature| key.verifies(message, signature))?;
        issuer.claims(&self.payload)
    }

    /// The key fixes the algorithm.
    fn is_signed(&self, algorithm: &str, verifies: impl FnOnce(&[u8], &[u8]) -> bool) -> Result<(), TokenError> {
        if self.algorithm != algorithm {
            return Err(TokenError::Malformed(format!("its header: `alg` is not `{algorithm}`, as its key needs")));
        }
        if verifies(self.message.as_bytes(), &self.signature) { Ok(()) } else { Err(TokenError::BadSignature) }
    }

    /// The claims as those of a token of Weir's own, unverified.
    ///
    /// # Errors
    /// The claims are malformed.
    #[cfg(feature = "fuzzing")]
    pub fn claims(&self) -> Result<Claims, TokenError> {
        Claims::parse(&self.payload)
    }

    /// The claims as those of a token of an issuer, unverified.
    ///
    /// # Errors
    /// As [`verify_of`](Self::verify_of).
    #[cfg(feature = "fuzzing")]
    pub fn claims_of(&self, issuer: &IssuerPolicy) -> Result<Claims, TokenError> {
        issuer.claims(&self.payload)
    }
}

/// `exp` of a token that its holder does not verify. `None`: it is no token of this form.
pub fn unverified_expiry(token: &str) -> Option<UnixSeconds> {
    UnverifiedToken::parse(token).ok()?.payload.get("exp")?.as_u64()
}

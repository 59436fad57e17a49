//! Public keys, which verify tokens and publications.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::signature::{ED25519, UnparsedPublicKey};

use super::id::KeyId;

/// The prefix of an Ed25519 public key as SubjectPublicKeyInfo (RFC 8410 section 4).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// An Ed25519 public key with its id.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    id: KeyId,
    bytes: [u8; 32],
}

/// The text is not an Ed25519 public key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an Ed25519 public key: expected its 32 bytes in base64url without padding (43 characters)")]
pub struct PublicKeyError(String);

impl PublicKey {
    /// A key with its thumbprint as id (RFC 7638, RFC 8037 appendix A.3): the SHA-256 of its canonical JWK in
    /// base64url.
    pub fn new(bytes: [u8; 32]) -> Self {
        let jwk = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{}"}}"#, URL_SAFE_NO_PAD.encode(bytes));
        let thumbprint = URL_SAFE_NO_PAD.encode(digest(&SHA256, jwk.as_bytes()));
        Self { id: thumbprint.parse().expect("43 characters of base64url are an id"), bytes }
    }

    /// A key with a chosen id.
    pub fn with_id(id: KeyId, bytes: [u8; 32]) -> Self {
        Self { id, bytes }
    }

    /// Parses a key as [`encoded`](Self::encoded) writes it, with a chosen id.
    ///
    /// # Errors
    /// The text is not base64url of 32 bytes.
    pub fn decode(id: KeyId, encoded: &str) -> Result<Self, PublicKeyError> {
        let wrong = || PublicKeyError(encoded.chars().take(80).collect());
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| wrong())?;
        Ok(Self { id, bytes: bytes.try_into().map_err(|_| wrong())? })
    }

    /// Its id.
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// Its 32 bytes in base64url without padding: the `x` of its JWK.
    pub fn encoded(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.bytes)
    }

    /// The key as SubjectPublicKeyInfo in DER (RFC 8410).
    pub(crate) fn to_der(&self) -> Vec<u8> {
        [&SPKI_PREFIX[..], &self.bytes].concat()
    }

    /// Whether the key signed a message.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.bytes).verify(message, signature).is_ok()
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.encoded())
    }
}

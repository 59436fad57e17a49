//! The public keys of an issuer: a JWK set (RFC 7517 section 5).

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

/// The largest set, in bytes of JSON.
pub const MAX_JWK_SET_BYTES: usize = 64 << 10;

/// The most usable keys of a set.
pub const MAX_JWKS: usize = 32;

/// A key that verifies tokens of one algorithm.
#[derive(Clone, PartialEq, Eq)]
pub enum VerifyingKey {
    /// `EdDSA` (RFC 8037).
    Ed25519([u8; 32]),
    /// `ES256` (RFC 7518 section 3.4): an uncompressed point.
    P256([u8; 65]),
    /// `RS256` (RFC 7518 section 3.3), of 2,048 to 8,192 bits.
    Rsa {
        /// The modulus, big-endian.
        modulus: Vec<u8>,
        /// The exponent, big-endian.
        exponent: Vec<u8>,
    },
}

impl VerifyingKey {
    /// `alg` of all tokens that it verifies.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Ed25519(_) => "EdDSA",
            Self::P256(_) => "ES256",
            Self::Rsa { .. } => "RS256",
        }
    }

    /// The bytes of the key, with its algorithm before them.
    pub fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Ed25519(key) => [b"EdDSA", &key[..]].concat(),
            Self::P256(key) => [b"ES256", &key[..]].concat(),
            Self::Rsa { modulus, exponent } => {
                [b"RS256", &(modulus.len() as u32).to_be_bytes()[..], modulus, exponent].concat()
            }
        }
    }

    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
            Self::P256(key) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key).verify(message, signature),
            Self::Rsa { modulus: n, exponent: e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
        }
        .is_ok()
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.algorithm())
    }
}

/// The usable keys of a set, by `kid`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JwkSet {
    keys: BTreeMap<String, VerifyingKey>,
}

/// Why a set of keys cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwkSetError {
    /// More than [`MAX_JWK_SET_BYTES`].
    #[error("the key set has {0} bytes, more than the limit of {MAX_JWK_SET_BYTES}")]
    TooLarge(usize),
    /// Not a JWK set.
    #[error("the key set cannot be read: {0}")]
    Malformed(String),
    /// A key of a supported kind is wrong.
    #[error("the key `{kid}`: {message}")]
    Key {
        /// Its `kid`.
        kid: String,
        /// What is wrong with it.
        message: &'static str,
    },
    /// None of its keys has a `kid` and a supported algorithm.
    #[error("no key of the set can be used: each needs a `kid`, and `EdDSA` (Ed25519), `ES256` or `RS256`")]
    Empty,
    /// More than [`MAX_JWKS`].
    #[error("the key set has more than {MAX_JWKS} usable keys")]
    TooMany,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    alg: Option<String>,
    #[serde(default, rename = "use")]
    used_for: Option<String>,
    #[serde(default)]
    crv: Option<String>,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
    /// The private part, of every kind.
    #[serde(default)]
    d: Option<String>,
}

impl Jwk {
    /// `None`: a key of another kind or for another purpose.
    fn key(&self) -> Result<Option<VerifyingKey>, &'static str> {
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| "it is not base64url without padding");
        let key = match (self.kty.as_str(), self.crv.as_deref()) {
            ("OKP", Some("Ed25519")) => {
                VerifyingKey::Ed25519(decode(&self.x)?.try_into().map_err(|_| "`x` is not 32 bytes")?)
            }
            ("EC", Some("P-256")) => {
                let point = [vec![4], decode(&self.x)?, decode(&self.y)?];
                if point[1].len() != 32 {
                    return Err("`x` is not 32 bytes");
                }
                VerifyingKey::P256(point.concat().try_into().map_err(|_| "`y` is not 32 bytes")?)
            }
            ("RSA", _) => {
                let (modulus, exponent) = (decode(&self.n)?, decode(&self.e)?);
                if !(256..=1024).contains(&modulus.len()) || modulus[0] < 0x80 && modulus.len() == 256 {
                    return Err("its modulus has fewer than 2,048 or more than 8,192 bits");
                }
                if modulus[0] == 0 || exponent.first().is_none_or(|first| *first == 0) {
                    return Err("`n` or `e` begins with zeros");
                }
                VerifyingKey::Rsa { modulus, exponent }
            }
            _ => return Ok(None),
        };
        let signs = self.used_for.as_deref().is_none_or(|purpose| purpose == "sig");
        let is_supported = self.alg.as_deref().is_none_or(|alg| alg == key.algorithm());
        if self.d.is_some() {
            return Err("it is a private key: publish its public part alone, and make a new key");
        }
        Ok((signs && is_supported).then_some(key))
    }
}

impl JwkSet {
    /// Parses a set. Keys of other kinds, for other purposes or without `kid` are left out.
    ///
    /// # Errors
    /// It is too large, malformed, or has no usable key, too many, or two with one `kid`.
    pub fn parse(json: &[u8]) -> Result<Self, JwkSetError> {
        if json.len() > MAX_JWK_SET_BYTES {
            return Err(JwkSetError::TooLarge(json.len()));
        }
        let document: Document =
            crate::json::from_slice(json).map_err(|error| JwkSetError::Malformed(error.to_string()))?;
        let mut keys = BTreeMap::new();
        for jwk in document.keys {
            let Some(kid) = &jwk.kid else { continue };
            let wrong = |message| JwkSetError::Key { kid: crate::text_type::truncated(kid), message };
            let Some(key) = jwk.key().map_err(wrong)? else { continue };
            if keys.insert(kid.clone(), key).is_some() {
                return Err(wrong("it stands there twice"));
            }
        }
        match keys.len() {
            0 => Err(JwkSetError::Empty),
            1..=MAX_JWKS => Ok(Self { keys }),
            _ => Err(JwkSetError::TooMany),
        }
    }

    /// The keys by `kid`.
    pub fn keys(&self) -> impl Iterator<Item = (&str, &VerifyingKey)> {
        self.keys.iter().map(|(kid, key)| (kid.as_str(), key))
    }

    /// The key of this `kid`.
    pub fn get(&self, kid: &str) -> Option<&VerifyingKey> {
        self.keys.get(kid)
    }
}

//! Private keys, which sign tokens and publications.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use serde::Serialize;

use super::claims::Claims;
use super::compact::ALGORITHM;
use super::error::TokenError;
use super::id::{KeyId, TokenId};
use super::public_key::PublicKey;
use super::{MAX_TOKEN_BYTES, UnverifiedToken};

/// The prefix of an Ed25519 private key in PKCS#8 version 1 (RFC 8410 section 7).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// An Ed25519 key pair.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

/// Why a private key cannot be generated or parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SigningKeyError {
    /// The system's random number generator failed.
    #[error("the system provides no random numbers")]
    NoRandomness,
    /// No `PRIVATE KEY` in PEM.
    #[error("there is no `BEGIN PRIVATE KEY` in it (PKCS#8, not encrypted)")]
    NotPem,
    /// A private key of another algorithm.
    #[error("it is not an Ed25519 private key")]
    NotEd25519,
}

impl SigningKey {
    /// Generates a key: returns it with its PEM file (PKCS#8), which [`from_pem`](Self::from_pem) and OpenSSL read.
    ///
    /// # Errors
    /// The system's random number generator failed.
    pub fn generate() -> Result<(Self, String), SigningKeyError> {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).map_err(|_| SigningKeyError::NoRandomness)?;
        let der = [&PKCS8_PREFIX[..], &seed].concat();
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(&der));
        Ok((Self::from_der(&der)?, pem))
    }

    /// Parses a PEM file with a PKCS#8 private key, with or without its public key.
    ///
    /// # Errors
    /// It has no such key, or one of another algorithm.
    pub fn from_pem(pem: &[u8]) -> Result<Self, SigningKeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|_| SigningKeyError::NotPem)?;
        Self::from_der(der.secret_pkcs8_der())
    }

    fn from_der(der: &[u8]) -> Result<Self, SigningKeyError> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| SigningKeyError::NotEd25519)?;
        let bytes = pair.public_key().as_ref().try_into().map_err(|_| SigningKeyError::NotEd25519)?;
        Ok(Self { pair, public: PublicKey::new(bytes) })
    }

    /// The public key, with its thumbprint as id.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs a message: 64 bytes, deterministic. The caller ensures that a message for one purpose cannot be taken for
    /// another.
    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }

    /// Issues a token.
    ///
    /// # Errors
    /// It would be longer than [`MAX_TOKEN_BYTES`]: too many services.
    pub fn issue(&self, claims: &Claims) -> Result<String, TokenError> {
        #[derive(Serialize)]
        struct Header<'a> {
            alg: &'a str,
            typ: &'a str,
            kid: &'a KeyId,
        }
        let header = Header { alg: ALGORITHM, typ: "JWT", kid: self.public.id() };
        let json = |part: Result<Vec<u8>, _>| URL_SAFE_NO_PAD.encode(part.expect("plain data"));
        let message = format!("{}.{}", json(serde_json::to_vec(&header)), json(serde_json::to_vec(&claims.document())));
        let signature = self.sign(message.as_bytes());
        let token = format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature));
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong(token.len()));
        }
        // A token that readers would reject is not issued.
        UnverifiedToken::parse(&token)?.verify(&self.public)?;
        Ok(token)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public.id())
    }
}

impl TokenId {
    /// Generates an id: 128 random bits in hex, so that it can be typed on a command line.
    ///
    /// The system's random number generator failed.
    /// The system gives no randomness.
    pub fn random() -> Result<Self, SigningKeyError> {
        let mut bits = [0; 16];
        SystemRandom::new().fill(&mut bits).map_err(|_| SigningKeyError::NoRandomness)?;
        Ok(format!("{:032x}", u128::from_be_bytes(bits)).parse().expect("32 digits are an id"))
    }
}

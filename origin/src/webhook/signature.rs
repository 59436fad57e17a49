//! Verifies that the sender of a delivery knows the secret.

use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use ring::hmac::{self, HMAC_SHA256, Key};
use ring::rand::SystemRandom;

/// The most signatures to check in one delivery; providers send several during a rotation.
const MAX_SIGNATURES: usize = 8;

/// The prefix of GitLab's signing secrets; the rest is base64.
const SIGNING_TOKEN: &str = "whsec_";

/// A shared secret. Never displayed.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Parses the contents of a secret file, without surrounding white space. `None`: it is empty.
    pub fn from_file(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// `encoded`: decode the secret if it has the prefix of a signing secret.
    fn signing_key(&self, encoded: bool) -> Key {
        let text = self.0.strip_prefix(SIGNING_TOKEN.as_bytes()).filter(|_| encoded);
        let decoded = text.and_then(|text| STANDARD.decode(text).ok());
        Key::new(HMAC_SHA256, decoded.as_deref().unwrap_or(&self.0))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The proof in a delivery.
pub(super) enum Proof {
    /// HMAC-SHA256 over `before` and the body; any of the claimed ones may match. `encoded`: the secret may be
    /// base64.
    Signed {
        before: Vec<u8>,
        claimed: Vec<Vec<u8>>,
        encoded: bool,
    },
    Token(Vec<u8>),
}

impl Proof {
    /// A signature in hex, optionally after `sha256=`, from the first of these headers that is present.
    pub(super) fn hex(headers: &HeaderMap, names: &[&str]) -> Self {
        let value = names.iter().find_map(|name| headers.get(*name)).map(|value| value.as_bytes().trim_ascii());
        let claimed = value.and_then(|value| unhex(value.strip_prefix(b"sha256=").unwrap_or(value)));
        Self::Signed { before: Vec::new(), claimed: claimed.into_iter().collect(), encoded: false }
    }

    /// Signatures in base64, each after `v1,`, separated by spaces.
    pub(super) fn listed(before: Vec<u8>, value: &[u8]) -> Self {
        let signatures = value.split(|byte| *byte == b' ').filter_map(|each| each.strip_prefix(b"v1,"));
        let claimed = signatures.take(MAX_SIGNATURES).filter_map(|text| STANDARD.decode(text).ok()).collect();
        Self::Signed { before, claimed, encoded: true }
    }

    pub(super) fn is_present(&self) -> bool {
        match self {
            Self::Signed { claimed, .. } => !claimed.is_empty(),
            Self::Token(token) => !token.is_empty(),
        }
    }
}

/// A proof that is verified while the body arrives.
pub(super) enum Check {
    Signed { contexts: Vec<hmac::Context>, claimed: Vec<Vec<u8>>, known: bool },
    Token(bool),
}

impl Check {
    pub(super) fn begin(proof: Proof, secrets: &[Secret]) -> Self {
        // Without secrets the same work is done with a random one.
        let stand_in = [Secret(random_key().1.to_vec())];
        let known = !secrets.is_empty();
        let secrets = if known { secrets } else { &stand_in };
        match proof {
            Proof::Signed { before, claimed, encoded } => {
                let context = |secret: &Secret| {
                    let mut context = hmac::Context::with_key(&secret.signing_key(encoded));
                    context.update(&before);
                    context
                };
                Self::Signed { contexts: secrets.iter().map(context).collect(), claimed, known }
            }
            // All secrets are compared, so that the time does not reveal which one matched.
            Proof::Token(token) => Self::Token(
                secrets.iter().fold(false, |any, secret| any | constant_time_eq(&secret.0, &token)) && known,
            ),
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if let Self::Signed { contexts, .. } = self {
            contexts.iter_mut().for_each(|context| context.update(bytes));
        }
    }

    pub(super) fn matches(self) -> bool {
        match self {
            Self::Token(is_valid) => is_valid,
            Self::Signed { contexts, claimed, known } => {
                let tags: Vec<_> = contexts.into_iter().map(hmac::Context::sign).collect();
                let pairs = tags
                    .iter()
                    .flat_map(|tag| claimed.iter().map(move |claimed| constant_time_eq(tag.as_ref(), claimed)));
                pairs.fold(false, |any, is_valid| any | is_valid) && known
            }
        }
    }
}

/// Compares two texts in a time that depends only on their lengths: both are signed with a random key, and the
/// signatures are compared in constant time.
fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    let (key, _) = random_key();
    hmac::verify(key, one, hmac::sign(key, other).as_ref()).is_ok()
}

/// A random key of this process.
fn random_key() -> &'static (Key, [u8; 32]) {
    static KEY: OnceLock<(Key, [u8; 32])> = OnceLock::new();
    KEY.get_or_init(|| {
        let random = ring::rand::generate::<[u8; 32]>(&SystemRandom::new());
        // A process without randomness has no TLS and never gets here.
        let bytes = random.map_or_else(|_| *blake3::hash(b"no randomness").as_bytes(), |random| random.expose());
        (Key::new(HMAC_SHA256, &bytes), bytes)
    })
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect::<Option<Vec<_>>>()?;
    (rest.is_empty() && bytes.len() == 32).then_some(bytes)
}

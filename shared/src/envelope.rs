//! Signed statements: envelopes of DSSE 1.0 (Dead Simple Signing Envelope), signed with Ed25519.
//!
//! What is signed is the payload's exact bytes together with what kind of statement they are, so that no statement can be
//! taken for one of another kind. Whoever verifies goes on with the payload that [`Envelope::verify`] gives, and with
//! nothing that stood beside the envelope. Everything here is pure.

use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use base64::engine::{DecodePaddingMode, general_purpose};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::token::{KeyId, PublicKey, SigningKey};

/// What the payload of a signed publication is.
pub const PUBLICATION_TYPE: &str = "application/vnd.weir.publication+json";

/// The most signatures that are looked at in one envelope.
pub const MAX_SIGNATURES: usize = 16;

/// The most signatures that are verified for one envelope, each with each key: some milliseconds.
pub const MAX_CHECKS: usize = 64;

/// A statement and the signatures under it. Nothing of it is verified before [`verify`](Self::verify).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    #[serde(rename = "payloadType")]
    payload_type: String,
    payload: Base64,
    signatures: Vec<Signature>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Signature {
    /// A hint only: which key to try. An empty one, as an absent one, is no hint.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    keyid: String,
    sig: Base64,
}

/// An envelope, or what should have been one, cannot be believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Not JSON, or a field is missing or wrong.
    #[error("the envelope cannot be read: {0}")]
    Malformed(String),
    /// A statement of another kind.
    #[error("the envelope holds `{found}`, and not `{expected}`")]
    OtherType {
        /// What it holds.
        found: String,
        /// What was to be verified.
        expected: &'static str,
    },
    /// More than [`MAX_SIGNATURES`].
    #[error("the envelope has {0} signatures, more than the limit of {MAX_SIGNATURES}")]
    TooManySignatures(usize),
    /// No signature is by a key that is trusted.
    #[error("none of the keys that signed it is trusted (it names: {})", named(.0))]
    UnknownKeys(Vec<String>),
    /// A key that is trusted did not sign these bytes.
    #[error("its signature is not of these bytes")]
    BadSignature,
    /// It is signed, and what is signed is not what was asked for.
    #[error("what was signed cannot be used: {0}")]
    Payload(String),
}

fn named(keys: &[String]) -> String {
    if keys.is_empty() { "no key".to_owned() } else { keys.join(", ") }
}

/// What is signed: DSSE's pre-authentication encoding of a payload and its type.
pub fn pre_authentication_encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut encoded = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    encoded.extend_from_slice(payload);
    encoded
}

impl Envelope {
    /// Signs a statement with each of some keys.
    pub fn sign(payload_type: &str, payload: Vec<u8>, keys: &[SigningKey]) -> Self {
        let message = pre_authentication_encoding(payload_type, &payload);
        let sign =
            |key: &SigningKey| Signature { keyid: key.public().id().to_string(), sig: Base64(key.sign(&message)) };
        let signatures = keys.iter().map(sign).collect();
        Self { payload_type: payload_type.to_owned(), payload: Base64(payload), signatures }
    }

    /// Reads the JSON of an envelope. Fields that are not known are passed over.
    ///
    /// # Errors
    /// It is malformed, or has too many signatures.
    pub fn parse(json: &[u8]) -> Result<Self, EnvelopeError> {
        let read: Self = serde_json::from_slice(json).map_err(|error| EnvelopeError::Malformed(error.to_string()))?;
        match read.signatures.len() {
            number if number > MAX_SIGNATURES => Err(EnvelopeError::TooManySignatures(number)),
            _ => Ok(read),
        }
    }

    /// The JSON of the envelope, in one line.
    pub fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }

    /// The payload, once one of `keys` is found to have signed it as a statement of this type.
    ///
    /// Each signature is tried with the keys that it names, and then with all others: what a key is called where it signs
    /// and where it is trusted need not be the same. At most [`MAX_CHECKS`] in all.
    ///
    /// # Errors
    /// It is of another type, by no known key, or a known key did not sign these bytes.
    pub fn verify(&self, payload_type: &'static str, keys: &[PublicKey]) -> Result<&[u8], EnvelopeError> {
        if self.payload_type != payload_type {
            let found = self.payload_type.chars().take(100).collect();
            return Err(EnvelopeError::OtherType { found, expected: payload_type });
        }
        if self.signatures.len() > MAX_SIGNATURES {
            return Err(EnvelopeError::TooManySignatures(self.signatures.len()));
        }
        let message = pre_authentication_encoding(payload_type, &self.payload.0);
        let pairs = |hinted: bool| {
            let with_keys = move |signature| keys.iter().map(move |key| (signature, key));
            let pairs = self.signatures.iter().flat_map(with_keys);
            pairs.filter(move |(signature, key): &(&Signature, _)| (signature.keyid == key.id().as_str()) == hinted)
        };
        if pairs(true)
            .chain(pairs(false))
            .take(MAX_CHECKS)
            .any(|(signature, key)| key.signed(&message, &signature.sig.0))
        {
            return Ok(&self.payload.0);
        }
        let known = pairs(true).next().is_some() || self.signatures.iter().any(|signature| signature.keyid.is_empty());
        Err(if known { EnvelopeError::BadSignature } else { EnvelopeError::UnknownKeys(self.key_names()) })
    }

    /// The ids of the keys that it says it is signed with; what it says is not verified.
    pub fn key_ids(&self) -> impl Iterator<Item = KeyId> {
        self.signatures.iter().filter_map(|signature| signature.keyid.parse().ok())
    }

    /// The payload, verified by nobody: for whoever signs it anew.
    pub fn unverified_payload(&self) -> &[u8] {
        &self.payload.0
    }

    fn key_names(&self) -> Vec<String> {
        let names = self.signatures.iter().map(|signature| signature.keyid.chars().take(64).collect());
        names.filter(|name: &String| !name.is_empty()).collect()
    }
}

impl std::fmt::Debug for Envelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Envelope({}, {} bytes, by {})", self.payload_type, self.payload.0.len(), named(&self.key_names()))
    }
}

/// Bytes that are written in base64: by us in its standard alphabet with padding; read in either alphabet, as DSSE has it.
#[derive(Clone, PartialEq, Eq)]
struct Base64(Vec<u8>);

const LENIENT: GeneralPurposeConfig = general_purpose::PAD.with_decode_padding_mode(DecodePaddingMode::Indifferent);
const READ_STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const READ_URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let read = READ_STANDARD.decode(text.as_bytes()).or_else(|_| READ_URL_SAFE.decode(text.as_bytes()));
        read.map(Self).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> SigningKey {
        SigningKey::generate().unwrap().0
    }

    fn keys(signing: &[&SigningKey]) -> Vec<PublicKey> {
        signing.iter().map(|key| key.public().clone()).collect()
    }

    /// The example of DSSE's own protocol document.
    #[test]
    fn what_is_signed_is_what_the_standard_says() {
        let encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world");
        assert_eq!(encoded, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
        assert_eq!(pre_authentication_encoding("", b""), b"DSSEv1 0  0 ");
        assert_eq!(
            pre_authentication_encoding("\u{e9}", b"\n"),
            "DSSEv1 2 \u{e9} 1 \n".as_bytes(),
            "lengths are of bytes"
        );
    }

    #[test]
    fn the_json_is_the_contract_s() {
        let key = key();
        let envelope = Envelope::sign(PUBLICATION_TYPE, b"{\"a\":1}".to_vec(), std::slice::from_ref(&key));
        let json: serde_json::Value = serde_json::from_slice(&envelope.json()).unwrap();
        assert_eq!(json["payloadType"], "application/vnd.weir.publication+json");
        assert_eq!(json["payload"], "eyJhIjoxfQ==");
        assert_eq!(json["signatures"][0]["keyid"], key.public().id().as_str());
        let signature = STANDARD.decode(json["signatures"][0]["sig"].as_str().unwrap()).unwrap();
        assert_eq!(signature.len(), 64);
        assert_eq!(Envelope::parse(&envelope.json()), Ok(envelope));
    }

    #[test]
    fn one_trusted_key_is_enough_and_the_hint_is_only_a_hint() {
        let (old, new, other) = (key(), key(), key());
        let both = Envelope::sign(PUBLICATION_TYPE, b"statement".to_vec(), &[old, new]);
        let [old, new] = [0, 1].map(|at| both.key_ids().nth(at).unwrap());
        let trusted = |id: &KeyId, key: &SigningKey| PublicKey::decode(id.clone(), &key.public().encoded()).unwrap();
        assert_eq!(
            both.verify(PUBLICATION_TYPE, &[]),
            Err(EnvelopeError::UnknownKeys(vec![old.to_string(), new.to_string()]))
        );
        // One that signed, under another id.
        let (signing, foreign) = (key(), key());
        let envelope = Envelope::sign(PUBLICATION_TYPE, b"statement".to_vec(), std::slice::from_ref(&signing));
        let renamed = trusted(foreign.public().id(), &signing);
        assert_eq!(
            envelope.verify(PUBLICATION_TYPE, &[foreign.public().clone(), renamed.clone()]),
            Ok(&b"statement"[..])
        );
        // After so many keys that are not it nobody looks any further.
        let mut many = vec![foreign.public().clone(); MAX_CHECKS];
        many.push(renamed);
        assert!(envelope.verify(PUBLICATION_TYPE, &many).is_err());
        many.push(signing.public().clone());
        assert!(envelope.verify(PUBLICATION_TYPE, &many).is_ok(), "the hint comes first");
        // Another key under the id of one that signed.
        assert_eq!(both.verify(PUBLICATION_TYPE, &[trusted(&new, &other)]), Err(EnvelopeError::BadSignature));

        let (first, second) = (key(), key());
        let [p, q] = [first.public().clone(), second.public().clone()];
        let both = Envelope::sign(PUBLICATION_TYPE, b"statement".to_vec(), &[first, second]);
        for trusted in [std::slice::from_ref(&p), std::slice::from_ref(&q), &[q.clone(), p.clone()]] {
            assert_eq!(both.verify(PUBLICATION_TYPE, trusted), Ok(&b"statement"[..]));
        }
        let unnamed = String::from_utf8(both.json()).unwrap().replace("keyid", "comment");
        let unnamed = Envelope::parse(unnamed.as_bytes()).unwrap();
        assert_eq!(unnamed.verify(PUBLICATION_TYPE, &[other.public().clone(), q]), Ok(&b"statement"[..]));
    }

    #[test]
    fn a_statement_is_taken_for_no_other() {
        let key = key();
        let trusted = keys(&[&key]);
        let json = Envelope::sign(PUBLICATION_TYPE, b"{}".to_vec(), &[key]).json();
        let signed = Envelope::parse(&json).unwrap();
        let other = "application/vnd.weir.heartbeat+json";
        assert!(matches!(signed.verify(other, &trusted), Err(EnvelopeError::OtherType { .. })));
        let renamed = String::from_utf8(json).unwrap().replace("publication", "heartbeat");
        let renamed = Envelope::parse(renamed.as_bytes()).unwrap();
        assert_eq!(renamed.verify(other, &trusted), Err(EnvelopeError::BadSignature));
    }

    #[test]
    fn both_alphabets_are_read_and_nothing_else() {
        let read = |payload: &str| {
            let json = format!(r#"{{"payloadType": "t", "payload": "{payload}", "signatures": [], "more": 1}}"#);
            Envelope::parse(json.as_bytes()).map(|envelope| envelope.payload.0)
        };
        for same in ["+/8=", "-_8=", "+/8", "-_8"] {
            assert_eq!(read(same).unwrap(), [0xfb, 0xff], "{same}");
        }
        for wrong in ["+_8=", "a", "a b=", "+/9=", "="] {
            assert!(matches!(read(wrong), Err(EnvelopeError::Malformed(_))), "{wrong}");
        }
        let many = format!(r#"{{"payloadType":"t","payload":"","signatures":[{}]}}"#, [r#"{"sig":""}"#; 17].join(","));
        assert_eq!(Envelope::parse(many.as_bytes()), Err(EnvelopeError::TooManySignatures(17)));
    }

    proptest! {
        #[test]
        fn what_is_signed_verifies_and_with_any_byte_changed_it_does_not(
            payload in proptest::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let key = key();
            let trusted = keys(&[&key]);
            let envelope = Envelope::sign(PUBLICATION_TYPE, payload.clone(), &[key]);
            let read = Envelope::parse(&envelope.json()).unwrap();
            prop_assert_eq!(read.verify(PUBLICATION_TYPE, &trusted), Ok(&payload[..]));
            let mut changed = read.clone();
            let signature = &mut changed.signatures[0].sig.0;
            let at_signature = at.index(signature.len());
            signature[at_signature] ^= 1 << bit;
            prop_assert_eq!(changed.verify(PUBLICATION_TYPE, &trusted), Err(EnvelopeError::BadSignature));
            if !payload.is_empty() {
                let mut changed = read;
                changed.payload.0[at.index(payload.len())] ^= 1 << bit;
                prop_assert_eq!(changed.verify(PUBLICATION_TYPE, &trusted), Err(EnvelopeError::BadSignature));
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(envelope) = Envelope::parse(&bytes) {
                prop_assert!(envelope.verify(PUBLICATION_TYPE, &keys(&[&key()])).is_err());
            }
        }
    }
}

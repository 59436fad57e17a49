//! Signed statements: DSSE 1.0 envelopes (Dead Simple Signing Envelope) with Ed25519 signatures. Pure.
//!
//! The signature covers the payload's exact bytes and its type, so that a statement cannot be taken for one of another
//! type.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::token::{KeyId, PublicKey, SigningKey};

/// The payload type of a signed publication.
pub const PUBLICATION_TYPE: &str = "application/vnd.weir.publication+json";

/// A payload with its signatures, in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    #[serde(rename = "payloadType")]
    payload_type: String,
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Signature {
    keyid: KeyId,
    sig: String,
}

/// The signed message: DSSE's pre-authentication encoding (PAE) of a payload and its type.
pub fn pre_authentication_encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut encoded = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    encoded.extend_from_slice(payload);
    encoded
}

impl Envelope {
    /// The most signatures that are looked at.
    const MAX_SIGNATURES: usize = 16;

    /// Signs a payload with each of `keys`.
    pub fn sign(payload_type: &str, payload: &[u8], keys: &[SigningKey]) -> Self {
        let message = pre_authentication_encoding(payload_type, payload);
        let sign =
            |key: &SigningKey| Signature { keyid: key.public().id().clone(), sig: STANDARD.encode(key.sign(&message)) };
        let signatures = keys.iter().map(sign).collect();
        Self { payload_type: payload_type.to_owned(), payload: STANDARD.encode(payload), signatures }
    }

    /// The payload, if it is of this type, whoever signed it.
    pub(crate) fn unverified(&self, payload_type: &str) -> Option<Vec<u8>> {
        STANDARD.decode(&self.payload).ok().filter(|_| self.payload_type == payload_type)
    }

    /// The payload, if this key signed it under its own id with this payload type.
    pub fn signed_by(&self, key: &PublicKey, payload_type: &str) -> Option<Vec<u8>> {
        let payload = self.unverified(payload_type)?;
        let message = pre_authentication_encoding(payload_type, &payload);
        let bounded = self.signatures.iter().take(Self::MAX_SIGNATURES);
        let of_key = bounded.filter(|signature| signature.keyid == *key.id());
        let mut signatures = of_key.filter_map(|signature| STANDARD.decode(&signature.sig).ok());
        signatures.any(|signature| key.verifies(&message, &signature)).then_some(payload)
    }

    /// The ids of the keys in the signatures, unverified.
    pub fn key_ids(&self) -> impl Iterator<Item = &KeyId> {
        self.signatures.iter().map(|signature| &signature.keyid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the DSSE protocol document.
    #[test]
    fn the_signed_message_is_that_of_dsse() {
        let encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world");
        assert_eq!(encoded, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
        assert_eq!(pre_authentication_encoding("", b""), b"DSSEv1 0  0 ");
        let encoded = pre_authentication_encoding("\u{e9}", b"\n");
        assert_eq!(encoded, "DSSEv1 2 \u{e9} 1 \n".as_bytes(), "lengths are of bytes");
    }

    #[test]
    fn the_json_is_as_documented_and_verifies_with_each_key() {
        let [one, two, other] = [(); 3].map(|()| SigningKey::generate().unwrap().0);
        let publics = [&one, &two, &other].map(|key| key.public().clone());
        let envelope = Envelope::sign(PUBLICATION_TYPE, b"{\"a\":1}", &[one, two]);
        let json = serde_json::to_value(&envelope).unwrap();
        assert_eq!(json["payloadType"], "application/vnd.weir.publication+json");
        assert_eq!(json["payload"], "eyJhIjoxfQ==");
        assert_eq!(json["signatures"][0]["keyid"], publics[0].id().as_str());
        assert_eq!(STANDARD.decode(json["signatures"][0]["sig"].as_str().unwrap()).unwrap().len(), 64);

        let is_signed = |envelope: &Envelope, payload_type| {
            publics.each_ref().map(|key| envelope.signed_by(key, payload_type).is_some())
        };
        assert_eq!(is_signed(&envelope, PUBLICATION_TYPE), [true, true, false]);
        assert_eq!(is_signed(&envelope, "another"), [false; 3]);
        let renamed = Envelope { payload_type: "another".to_owned(), ..envelope.clone() };
        assert_eq!(is_signed(&renamed, "another"), [false; 3]);
        let mut many = envelope.clone();
        many.signatures.splice(0..0, vec![envelope.signatures[1].clone(); Envelope::MAX_SIGNATURES]);
        assert_eq!(is_signed(&many, PUBLICATION_TYPE), [false, true, false], "further signatures are not looked at");
        let changed = Envelope { payload: STANDARD.encode("{\"a\":2}"), ..envelope };
        assert_eq!(is_signed(&changed, PUBLICATION_TYPE), [false; 3]);
    }
}

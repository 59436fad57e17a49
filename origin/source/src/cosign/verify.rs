//! Signatures of cosign by key: what was signed, and by which of the keys. Pure.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use weir_protocol::cosign::SIGN_PREDICATE as SIGNED;
use weir_protocol::digest::Sha256;
use weir_protocol::envelope::pre_authentication_encoding;

use super::public_key::PublicKey;

const IN_TOTO: &str = "application/vnd.in-toto+json";

/// The type of a payload that `cosign sign --new-bundle-format=false` signs.
const SIMPLE_SIGNING: &str = "cosign container image signature";

/// The most signatures of an envelope that are verified.
const MAX_SIGNATURES: usize = 16;

/// What a signature is worth for a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// One of the keys signed the digest.
    Valid,
    /// None of the keys made it.
    OtherKey,
    /// It was made by a key that a certificate names.
    Keyless,
    /// One of the keys signed something else.
    OtherContent,
    Malformed,
}

#[derive(Deserialize)]
struct Payload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: Image,
    r#type: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Image {
    docker_manifest_digest: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    verification_material: Material,
    dsse_envelope: Envelope,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Material {
    public_key: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload_type: String,
    payload: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    predicate_type: String,
    subject: Vec<Subject>,
}

#[derive(Deserialize)]
struct Subject {
    digest: SubjectDigest,
}

#[derive(Deserialize)]
struct SubjectDigest {
    sha256: Option<String>,
}

/// Verifies a signature of a payload, which is a layer. `is_keyless`: the layer has a certificate.
pub(crate) fn verify_payload(
    payload: &[u8],
    signature: &str,
    is_keyless: bool,
    digest: &Sha256,
    keys: &[PublicKey],
) -> Verdict {
    let Ok(signature) = STANDARD.decode(signature) else { return Verdict::Malformed };
    if !keys.iter().any(|key| key.verifies(payload, &signature)) {
        return if is_keyless { Verdict::Keyless } else { Verdict::OtherKey };
    }
    let expected = format!("sha256:{digest}");
    match serde_json::from_slice::<Payload>(payload) {
        Ok(Payload { critical: Critical { image, r#type } })
            if r#type == SIMPLE_SIGNING && image.docker_manifest_digest == expected =>
        {
            Verdict::Valid
        }
        _ => Verdict::OtherContent,
    }
}

/// Verifies a bundle of Sigstore with a DSSE envelope.
pub(crate) fn verify_bundle(bundle: &[u8], digest: &Sha256, keys: &[PublicKey]) -> Verdict {
    let Ok(Bundle { verification_material, dsse_envelope: envelope }) = serde_json::from_slice(bundle) else {
        return Verdict::Malformed;
    };
    let is_keyless = verification_material.public_key.is_none();
    verify_envelope(&envelope, is_keyless, digest, keys, |predicate| predicate == SIGNED)
}

/// Verifies an attestation: a bundle, or an envelope alone. It states something of an artifact, and does not sign it.
pub(crate) fn verify_attestation(document: &[u8], digest: &Sha256, keys: &[PublicKey]) -> Verdict {
    let bundle = serde_json::from_slice(document).map(|Bundle { dsse_envelope, .. }| dsse_envelope);
    let Ok(envelope) = bundle.or_else(|_| serde_json::from_slice(document)) else { return Verdict::Malformed };
    verify_envelope(&envelope, false, digest, keys, |predicate| predicate != SIGNED)
}

fn verify_envelope(
    envelope: &Envelope,
    is_keyless: bool,
    digest: &Sha256,
    keys: &[PublicKey],
    is_expected: impl Fn(&str) -> bool,
) -> Verdict {
    let Ok(payload) = STANDARD.decode(&envelope.payload) else { return Verdict::Malformed };
    let message = pre_authentication_encoding(&envelope.payload_type, &payload);
    let signatures = envelope.signatures.iter().filter_map(|signature| STANDARD.decode(&signature.sig).ok());
    let mut signatures = signatures.take(MAX_SIGNATURES);
    if !signatures.any(|signature| keys.iter().any(|key| key.verifies(&message, &signature))) {
        return if is_keyless { Verdict::Keyless } else { Verdict::OtherKey };
    }
    let expected = digest.to_string();
    let is_subject = |subject: &Subject| subject.digest.sha256.as_deref() == Some(&expected);
    match serde_json::from_slice::<Statement>(&payload) {
        Ok(Statement { predicate_type, subject })
            if envelope.payload_type == IN_TOTO && is_expected(&predicate_type) && subject.iter().any(is_subject) =>
        {
            Verdict::Valid
        }
        _ => Verdict::OtherContent,
    }
}

/// The signatures that were seen, none of which is valid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    other_keys: usize,
    keyless: usize,
    other_content: usize,
    malformed: usize,
}

impl Seen {
    /// Counts a signature. Returns whether it is valid.
    pub(crate) fn add(&mut self, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Valid => return true,
            Verdict::OtherKey => self.other_keys += 1,
            Verdict::Keyless => self.keyless += 1,
            Verdict::OtherContent => self.other_content += 1,
            Verdict::Malformed => self.malformed += 1,
        }
        false
    }
}

/// In parentheses, with a blank before them.
impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.other_keys, "of other keys or algorithms"),
            (self.keyless, "without a key (keyless signatures are not supported yet: use a key)"),
            (self.other_content, "of something else"),
            (self.malformed, "malformed"),
        ];
        let mut separator = " (";
        for (count, what) in kinds.into_iter().filter(|(count, _)| *count > 0) {
            let signatures = if count == 1 { "signature" } else { "signatures" };
            write!(f, "{separator}{count} {signatures} {what}")?;
            separator = ", ";
        }
        if separator == ", " { f.write_str(")") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::test_data::{ATTESTATION, DIGEST, ED25519, ED25519_PH, OTHER_TYPE, P256, RSA, Signed};
    use super::*;

    fn digest() -> Sha256 {
        DIGEST.parse().unwrap()
    }

    fn keys(signed: &[Signed]) -> Vec<PublicKey> {
        signed.iter().map(|signed| PublicKey::from_pem(signed.key.as_bytes()).unwrap()).collect()
    }

    fn payload(payload: &str, signature: &str, keys: &[PublicKey]) -> Verdict {
        verify_payload(payload.as_bytes(), signature, false, &digest(), keys)
    }

    /// A bundle with another predicate or signature.
    fn edited(bundle: &str, from: &str, to: &str, signature: Option<&str>) -> String {
        let mut bundle: serde_json::Value = serde_json::from_str(bundle).unwrap();
        let envelope = &mut bundle["dsseEnvelope"];
        let payload = STANDARD.decode(envelope["payload"].as_str().unwrap()).unwrap();
        let payload = String::from_utf8(payload).unwrap().replace(from, to);
        envelope["payload"] = STANDARD.encode(payload).into();
        if let Some(signature) = signature {
            envelope["signatures"][0]["sig"] = signature.into();
        }
        bundle.to_string()
    }

    #[test]
    fn both_formats_of_cosign_are_verified() {
        let all = keys(&[ED25519_PH, RSA, P256]);
        for signed in [P256, RSA] {
            let bundle = |keys: &[PublicKey], digest: &Sha256| verify_bundle(signed.bundle.as_bytes(), digest, keys);
            assert_eq!(payload(signed.payload, signed.signature, &all), Verdict::Valid);
            assert_eq!(bundle(&all, &digest()), Verdict::Valid);
            let others = keys(&[ED25519_PH]);
            assert_eq!(payload(signed.payload, signed.signature, &others), Verdict::OtherKey);
            assert_eq!(bundle(&others, &digest()), Verdict::OtherKey);
            let other = Sha256::from_bytes([7; 32]);
            let of_other = verify_payload(signed.payload.as_bytes(), signed.signature, false, &other, &all);
            assert_eq!((of_other, bundle(&all, &other)), (Verdict::OtherContent, Verdict::OtherContent));
        }
        // Plain Ed25519 is verified, and nothing else.
        let ed25519 = keys(&[ED25519_PH]);
        assert_eq!(payload(ED25519_PH.payload, ED25519[0], &ed25519), Verdict::Valid);
        let plain = edited(ED25519_PH.bundle, "", "", Some(ED25519[1]));
        assert_eq!(verify_bundle(plain.as_bytes(), &digest(), &ed25519), Verdict::Valid);
        assert_eq!(payload(ED25519_PH.payload, ED25519_PH.signature, &ed25519), Verdict::OtherKey);
    }

    #[test]
    fn what_a_key_signed_for_another_purpose_is_no_signature() {
        let p256 = keys(&[P256]);
        let other_type = P256.payload.replace(SIMPLE_SIGNING, "another type");
        assert_eq!(payload(&other_type, OTHER_TYPE, &p256), Verdict::OtherContent);
        assert_eq!(payload(&other_type, P256.signature, &p256), Verdict::OtherKey);
        let bundle = |text: &str| verify_bundle(text.as_bytes(), &digest(), &p256);
        let attestation = edited(P256.bundle, SIGNED, "https://spdx.dev/Document", Some(ATTESTATION));
        assert_eq!(bundle(&attestation), Verdict::OtherContent);
        assert_eq!(bundle(&edited(P256.bundle, SIGNED, "https://spdx.dev/Document", None)), Verdict::OtherKey);
        // The type of the payload is signed, too.
        assert_eq!(bundle(&P256.bundle.replace(IN_TOTO, "text/plain")), Verdict::OtherKey);
        let keyless = P256.bundle.replace("publicKey", "certificate");
        assert_eq!(verify_bundle(keyless.as_bytes(), &digest(), &keys(&[RSA])), Verdict::Keyless);
        let with_certificate = verify_payload(P256.payload.as_bytes(), P256.signature, true, &digest(), &keys(&[RSA]));
        assert_eq!(with_certificate, Verdict::Keyless);
        for malformed in ["", "{}", "<html>", &P256.bundle.replace("\"payload\":\"", "\"payload\":\"!")] {
            assert_eq!(bundle(malformed), Verdict::Malformed, "{malformed}");
        }
        assert_eq!(payload(P256.payload, "!", &p256), Verdict::Malformed);
    }

    #[test]
    fn what_was_seen_is_counted_by_its_kind() {
        let mut seen = Seen::default();
        assert_eq!(seen.to_string(), "");
        for verdict in [Verdict::OtherKey, Verdict::OtherKey] {
            assert!(!seen.add(verdict));
        }
        assert_eq!(seen.to_string(), " (2 signatures of other keys or algorithms)");
        for verdict in [Verdict::Keyless, Verdict::OtherContent, Verdict::Malformed] {
            assert!(!seen.add(verdict));
        }
        let expected = " (2 signatures of other keys or algorithms, 1 signature without a key (keyless signatures are not \
                        supported yet: use a key), 1 signature of something else, 1 signature malformed)";
        assert_eq!(seen.to_string(), expected);
        assert!(seen.add(Verdict::Valid));
    }

    proptest! {
        /// Only the exact bytes are valid, or others with the same meaning outside of what is signed.
        #[test]
        fn a_changed_signature_or_payload_is_not_valid(at in 0..DIGEST.len() * 3, flip in 1..=255_u8) {
            let p256 = keys(&[P256]);
            let mut bytes = P256.payload.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            prop_assert_ne!(verify_payload(&bytes, P256.signature, false, &digest(), &p256), Verdict::Valid);
            let mut signature = STANDARD.decode(P256.signature).unwrap();
            let at = at % signature.len();
            signature[at] ^= flip;
            let signature = STANDARD.encode(signature);
            prop_assert_ne!(payload(P256.payload, &signature, &p256), Verdict::Valid);
        }

        #[test]
        fn no_bundle_is_too_odd(bytes: Vec<u8>, at in 0..600_usize) {
            let p256 = keys(&[P256]);
            prop_assert_ne!(verify_bundle(&bytes, &digest(), &p256), Verdict::Valid);
            prop_assert_eq!(verify_bundle(&P256.bundle.as_bytes()[..at], &digest(), &p256), Verdict::Malformed);
            PublicKey::from_pem(&bytes).unwrap_err();
        }
    }
}

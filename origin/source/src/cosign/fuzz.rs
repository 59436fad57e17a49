//! For the fuzzer in `loadtest/fuzz`: what anybody may push into a registry as a signature of cosign.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use weir_protocol::digest::Sha256;

use super::test_data::{DIGEST, P256, RSA};
use super::{PublicKey, Verdict, verify_bundle, verify_payload};

/// What is signed of a bundle. Whatever else it has may be odd.
#[derive(Deserialize)]
struct Bundle {
    #[serde(rename = "dsseEnvelope")]
    envelope: Envelope,
}

#[derive(Deserialize)]
struct Envelope {
    payload: String,
}

/// A bundle; or a signature, and below it the payload; or a public key. Nobody has the private keys, so nothing is valid but
/// what cosign signed with them.
pub fn fuzz_cosign(bytes: &[u8]) {
    let known = [P256, RSA];
    let keys = known.each_ref().map(|signed| PublicKey::from_pem(signed.key.as_bytes()).expect("a key of cosign"));
    let (digest, other) = (DIGEST.parse().expect("a digest"), Sha256::from_bytes([7; 32]));
    let decoded = |text: &str| STANDARD.decode(text).ok();

    let payload = |bundle: &[u8]| {
        let bundle: Bundle = serde_json::from_slice(bundle).ok()?;
        decoded(&bundle.envelope.payload)
    };
    let is_known = known.iter().any(|signed| payload(bytes) == payload(signed.bundle.as_bytes()));
    assert!(is_known || verify_bundle(bytes, &digest, &keys) != Verdict::Valid);
    assert_ne!(verify_bundle(bytes, &other, &keys), Verdict::Valid);

    let signed = bytes.iter().position(|byte| *byte == b'\n').map(|end| (&bytes[..end], &bytes[end + 1..]));
    if let Some((Ok(signature), payload)) = signed.map(|(signature, payload)| (str::from_utf8(signature), payload)) {
        let is_known = known
            .iter()
            .any(|signed| payload == signed.payload.as_bytes() && decoded(signature) == decoded(signed.signature));
        assert!(is_known || verify_payload(payload, signature, false, &digest, &keys) != Verdict::Valid);
        assert_ne!(verify_payload(payload, signature, false, &other, &keys), Verdict::Valid);
    }
    assert!(!PublicKey::from_pem(bytes).is_ok_and(|key| key.verifies(b"", bytes)));
}

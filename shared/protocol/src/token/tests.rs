use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use ring::signature::Ed25519KeyPair;
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;

use super::*;

const NOW: UnixSeconds = 1_800_000_000;

/// The key of RFC 8037 appendix A.
const RFC_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
    -----END PRIVATE KEY-----\n";

fn key() -> SigningKey {
    SigningKey::from_pem(RFC_KEY.as_bytes()).unwrap()
}

fn claims() -> Claims {
    Claims {
        subject: "cluster-1".parse().unwrap(),
        id: "token-1".parse().unwrap(),
        services: vec!["shop-*".parse().unwrap(), "bank".parse().unwrap()],
        expires: NOW + 3600,
        not_before: Some(NOW),
        issued_at: Some(NOW),
    }
}

fn verify(token: &str) -> Result<Claims, TokenError> {
    UnverifiedToken::parse(token)?.verify(key().public())
}

/// A token with this header and payload, signed by the test's key.
fn signed(header: &str, payload: &str) -> String {
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    let der = PrivatePkcs8KeyDer::from_pem_slice(RFC_KEY.as_bytes()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der()).unwrap();
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes())))
}

#[test]
fn the_key_of_rfc_8037_has_the_thumbprint_of_rfc_8037() {
    let public = key().public().clone();
    assert_eq!(public.encoded(), "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
    assert_eq!(public.id().as_str(), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    assert_eq!(PublicKey::decode(public.id().clone(), &public.encoded()), Ok(public));
    for wrong in ["", "AA", "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo=", &"A".repeat(44)] {
        assert!(PublicKey::decode("k".parse().unwrap(), wrong).is_err(), "{wrong}");
    }
}

#[test]
fn issued_tokens_verify() {
    let token = key().issue(&claims()).unwrap();
    assert_eq!(verify(&token), Ok(claims()));
    let (new, pem) = SigningKey::generate().unwrap();
    assert_eq!(SigningKey::from_pem(pem.as_bytes()).unwrap().public(), new.public());
    let foreign = new.issue(&claims()).unwrap();
    assert_eq!(verify(&foreign), Err(TokenError::UnknownKey(new.public().id().clone())));
    // The same id with another key.
    let impostor = PublicKey::with_id(new.public().id().clone(), [7; 32]);
    assert_eq!(UnverifiedToken::parse(&foreign).unwrap().verify(&impostor), Err(TokenError::BadSignature));
    let endless = Claims { services: vec!["shop-*".parse().unwrap(); 1000], ..claims() };
    assert!(matches!(key().issue(&endless), Err(TokenError::TooLong(_))));
    assert!(matches!(SigningKey::from_pem(b"none"), Err(SigningKeyError::NotPem)));
    let other = RFC_KEY.replace("MC4CAQAwBQYDK2Vw", "MC4CAQAwBQYDK2Vx");
    assert!(matches!(SigningKey::from_pem(other.as_bytes()), Err(SigningKeyError::NotEd25519)));
}

#[test]
fn other_forms_are_rejected_though_the_signature_is_valid() {
    let kid = key().public().id().to_string();
    let header = format!(r#"{{"alg":"EdDSA","kid":"{kid}"}}"#);
    let payload = r#"{"sub":"a","jti":"1","services":["*"],"exp":1800000000}"#;
    assert!(verify(&signed(&header, payload)).is_ok());
    let with = |more: &str| header.replace('}', &format!(",{more}}}"));
    assert!(verify(&signed(&with(r#""typ":"jwt","x5t":[1,{"a":2}]"#), payload)).is_ok(), "unknown members are ignored");
    for wrong in [
        with(r#""crit":["b64"]"#),
        with(r#""crit":null"#),
        with(r#""alg":"EdDSA""#),
        with(r#""x":1,"x":2"#),
        with(r#""typ":"at+jwt""#),
        header.replace("EdDSA", "none"),
        header.replace("EdDSA", "HS256"),
        header.replace("EdDSA", "eddsa"),
        r#"{"alg":"EdDSA"}"#.to_owned(),
        format!("{header} x"),
        "[]".to_owned(),
        String::new(),
    ] {
        assert!(matches!(verify(&signed(&wrong, payload)), Err(TokenError::Malformed(_))), "{wrong}");
    }
    let with = |more: &str| payload.replace('}', &format!(",{more}}}"));
    for right in [r#""aud":"weir""#, r#""aud":["x","weir"]"#, r#""nbf":5,"iat":5"#, r#""iss":"me","more":{"a":[]}"#] {
        assert!(verify(&signed(&header, &with(right))).is_ok(), "{right}");
    }
    for wrong in [
        with(r#""aud":"x""#),
        with(r#""aud":[]"#),
        with(r#""exp":9"#),
        with(r#""more":1,"more":1"#),
        with(r#""nbf":"soon""#),
        payload.replace("1800000000", "1.8e9"),
        payload.replace("1800000000", "-1"),
        payload.replace(r#","exp":1800000000"#, ""),
        payload.replace(r#""jti":"1","#, ""),
        payload.replace(r#""sub":"a","#, ""),
        payload.replace(r#"["*"]"#, "[]"),
        payload.replace(r#"["*"]"#, r#""*""#),
        payload.replace(r#"["*"]"#, r#"["A"]"#),
        payload.replace(r#""sub":"a""#, r#""sub":"A B""#),
        payload.replace(r#""jti":"1""#, r#""jti":"a b""#),
    ] {
        assert!(matches!(verify(&signed(&header, &wrong)), Err(TokenError::Malformed(_))), "{wrong}");
    }
}

#[test]
fn validity_has_a_tolerance_of_a_minute() {
    let (claims, leeway) = (claims(), CLOCK_LEEWAY.as_secs());
    assert_eq!(claims.valid_at(NOW - leeway - 1), Err(ValidityError::NotYetValid));
    assert_eq!(claims.valid_at(NOW - leeway), Ok(()));
    assert_eq!(claims.valid_at(NOW + 3600 + leeway - 1), Ok(()));
    assert_eq!(claims.valid_at(NOW + 3600 + leeway), Err(ValidityError::Expired));
    let eternal = Claims { expires: u64::MAX, not_before: None, ..claims };
    assert_eq!(eternal.valid_at(u64::MAX - 1), Ok(()));
    assert_eq!(unix_seconds(UNIX_EPOCH + Duration::from_secs(5)), 5);
    assert_eq!(unix_seconds(UNIX_EPOCH - Duration::from_secs(5)), 0);
}

#[test]
fn a_token_allows_the_services_its_patterns_match() {
    for (service, opens) in [("shop-prod", true), ("bank", true), ("bank-2", false), ("shop", false)] {
        assert_eq!(claims().allows(&service.parse().unwrap()), opens, "{service}");
    }
}

#[test]
fn every_flipped_bit_and_truncation_is_rejected() {
    let token = key().issue(&claims()).unwrap();
    for at in 0..token.len() {
        for bit in 0..7 {
            let mut bytes = token.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            let changed = String::from_utf8(bytes).unwrap();
            assert!(verify(&changed).is_err(), "byte {at}, bit {bit}: {changed}");
        }
        assert!(verify(&token[..at]).is_err(), "cut at {at}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}", header in ".{0,80}", payload in ".{0,80}") {
        let _ = verify(&text);
        let _ = verify(&signed(&header, &payload));
    }

    #[test]
    fn no_json_panics(json in r#"\{("(alg|kid|exp|sub|services|aud|crit)":("EdDSA"|[0-9]{1,20}|\[\]|\{\}|null),?){0,5}\}"#) {
        let _ = verify(&signed(&json, &json));
    }
}

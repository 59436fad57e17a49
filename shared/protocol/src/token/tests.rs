use std::collections::BTreeMap;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
    RsaPublicKeyComponents,
};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;

use super::*;
use crate::labels::Labels;

const NOW: UnixSeconds = 1_800_000_000;

/// The key of RFC 8037 appendix A.
const RFC_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
    -----END PRIVATE KEY-----\n";

fn key() -> SigningKey {
    SigningKey::from_pem(RFC_KEY.as_bytes()).unwrap()
}

fn canary() -> Labels {
    [("ring".to_owned(), "canary".to_owned())].into_iter().collect::<BTreeMap<_, _>>().try_into().unwrap()
}

fn claims() -> Claims {
    Claims {
        subject: "cluster-1".parse().unwrap(),
        id: Some("token-1".parse().unwrap()),
        services: vec!["shop-*".parse().unwrap(), "bank".parse().unwrap()],
        labels: canary(),
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
    let der = PrivatePkcs8KeyDer::from_pem_slice(RFC_KEY.as_bytes()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der()).unwrap();
    token(header, payload, |message| pair.sign(message).as_ref().to_vec())
}

fn token(header: &str, payload: &str, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    let signature = URL_SAFE_NO_PAD.encode(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

/// A private key of OpenSSL, in PKCS#8.
fn openssl(options: &[&str]) -> Vec<u8> {
    let made = Command::new("openssl").args(["genpkey", "-outform", "PEM"]).args(options).output().unwrap();
    PrivatePkcs8KeyDer::from_pem_slice(&made.stdout).unwrap().secret_pkcs8_der().to_vec()
}

/// The keys of an issuer by their algorithms, which are their ids too.
struct Issuing {
    ed25519: Ed25519KeyPair,
    p256: EcdsaKeyPair,
    rsa: RsaKeyPair,
}

impl Issuing {
    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match algorithm {
            "EdDSA" => self.ed25519.sign(message).as_ref().to_vec(),
            "ES256" => self.p256.sign(&random, message).unwrap().as_ref().to_vec(),
            _ => {
                let mut signature = vec![0; self.rsa.public().modulus_len()];
                self.rsa.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
        }
    }

    /// A token as the API server of Kubernetes makes it, for a key and an algorithm that its header names.
    fn token(&self, kid: &str, header_algorithm: &str, payload: &str) -> String {
        let header = format!(r#"{{"alg":"{header_algorithm}","kid":"{kid}"}}"#);
        token(&header, payload, |message| self.sign(kid, message))
    }

    fn jwks(&self) -> String {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let point = self.p256.public_key().as_ref();
        let rsa = RsaPublicKeyComponents::<Vec<u8>>::from(self.rsa.public());
        let (x, y) = point[1..].split_at(32);
        let keys = [
            format!(
                r#"{{"kty":"OKP","crv":"Ed25519","kid":"EdDSA","x":"{}"}}"#,
                encode(self.ed25519.public_key().as_ref())
            ),
            format!(r#"{{"kty":"EC","crv":"P-256","kid":"ES256","x":"{}","y":"{}"}}"#, encode(x), encode(y)),
            format!(
                r#"{{"use":"sig","kty":"RSA","kid":"RS256","alg":"RS256","n":"{}","e":"{}"}}"#,
                encode(&rsa.n),
                encode(&rsa.e)
            ),
            format!(r#"{{"kty":"RSA","use":"enc","kid":"enc","n":"{}","e":"AQAB"}}"#, encode(&[0x80; 256])),
            r#"{"kty":"EC","crv":"P-384","kid":"other","x":"","y":""}"#.to_owned(),
            r#"{"kty":"oct","kid":"shared","k":"AQAB"}"#.to_owned(),
        ];
        format!(r#"{{"keys":[{}]}}"#, keys.join(","))
    }
}

static ISSUING: LazyLock<Issuing> = LazyLock::new(|| {
    let p256 = openssl(&["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    let rsa = openssl(&["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]);
    Issuing {
        ed25519: Ed25519KeyPair::from_pkcs8_maybe_unchecked(&openssl(&["-algorithm", "ED25519"])).unwrap(),
        p256: EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &p256, &SystemRandom::new()).unwrap(),
        rsa: RsaKeyPair::from_pkcs8(&rsa).unwrap(),
    }
});

const ALGORITHMS: [&str; 3] = ["EdDSA", "ES256", "RS256"];

fn issuer() -> IssuerPolicy {
    IssuerPolicy {
        issuer: "https://kubernetes.default.svc.cluster.local".to_owned(),
        audience: "weir".to_owned(),
        subjects: vec!["system:serviceaccount:*:agent".to_owned()],
        agent: "eu-{kubernetes.io/namespace}".parse().unwrap(),
        services: vec!["shop-*".parse().unwrap()],
    }
}

/// The claims of a projected token of a service account.
const PROJECTED: &str = r#"{"aud":["weir"],"exp":1800003607,"iat":1800000000,"iss":"https://kubernetes.default.svc.cluster.local","jti":"0d2b4b4c-5c35-4d4b-8b8c-9b0c6b7b7d6e","kubernetes.io":{"namespace":"weir","node":{"name":"n1","uid":"4c1e"},"pod":{"name":"agent-0","uid":"58b3"},"serviceaccount":{"name":"agent","uid":"21cd"},"warnafter":1800000000},"nbf":1800000000,"sub":"system:serviceaccount:weir:agent"}"#;

fn verify_of(token: &str) -> Result<Claims, TokenError> {
    let keys = JwkSet::parse(ISSUING.jwks().as_bytes()).unwrap();
    let token = UnverifiedToken::parse(token)?;
    let key = keys.get(token.key_id()).ok_or_else(|| TokenError::UnknownKey(token.key_id().to_owned()))?;
    token.verify_of(&issuer(), key)
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
    assert_eq!(verify(&foreign), Err(TokenError::UnknownKey(new.public().id().to_string())));
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
        with(r#""aud":3"#),
        with(r#""labels":{"a":1}"#),
        with(r#""labels":["a"]"#),
        with(r#""more":[{"x":1,"x":1}]"#),
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
    for wrong in [with(r#""aud":"x""#), with(r#""aud":[]"#)] {
        assert_eq!(verify(&signed(&header, &wrong)), Err(TokenError::WrongAudience), "{wrong}");
    }
}

#[test]
fn projected_tokens_of_kubernetes_are_verified() {
    for algorithm in ALGORITHMS {
        let claims = verify_of(&ISSUING.token(algorithm, algorithm, PROJECTED)).unwrap();
        assert_eq!((claims.subject.as_str(), claims.expires), ("eu-weir", 1_800_003_607), "{algorithm}");
        assert_eq!(claims.id, Some("0d2b4b4c-5c35-4d4b-8b8c-9b0c6b7b7d6e".parse().unwrap()));
        assert!(claims.allows(&"shop-prod".parse().unwrap()) && !claims.allows(&"bank".parse().unwrap()));
        assert_eq!(claims.valid_at(NOW - 61), Err(ValidityError::NotYetValid));
        assert_eq!(claims.valid_at(NOW + 3607 + 60), Err(ValidityError::Expired));
    }
    let verify = |payload: &str| verify_of(&ISSUING.token("RS256", "RS256", payload));
    assert_eq!(unverified_expiry(&ISSUING.token("RS256", "RS256", PROJECTED)), Some(1_800_003_607));
    let with = |more: &str| PROJECTED.replacen('{', &format!("{{{more},"), 1);
    assert_eq!(verify(&with(r#""labels":{"ring":"canary"}"#)).unwrap().labels, canary());
    assert_eq!(verify(&with(r#""services":["*"],"more":1"#)).unwrap().services, issuer().services);
    assert!(verify(&PROJECTED.replace(r#"["weir"]"#, r#""weir""#)).is_ok());
    assert_eq!(verify(&PROJECTED.replace("0d2b4b4c", "0d 2b")).unwrap().id, None, "an id that no list can name");
    for (from, to, error) in [
        (r#"["weir"]"#, r#"["api"]"#, TokenError::WrongAudience),
        (r#"["weir"]"#, "[]", TokenError::WrongAudience),
        ("weir:agent", "weir:other", TokenError::WrongSubject),
    ] {
        assert_eq!(verify(&PROJECTED.replace(from, to)), Err(error), "{from}");
    }
    assert!(matches!(verify(&PROJECTED.replace(r#""namespace":"weir","#, "")), Err(TokenError::NoAgent(_))));
    assert!(matches!(
        verify(&PROJECTED.replace(r#""namespace":"weir""#, r#""namespace":"A/b""#)),
        Err(TokenError::NoAgent(_))
    ));
    for wrong in [
        PROJECTED.replace(r#""aud":["weir"],"#, ""),
        PROJECTED.replace(r#""exp":1800003607,"#, ""),
        PROJECTED.replace("cluster.local", "cluster.other"),
        PROJECTED.replace(r#""sub":"#, r#""subject":"#),
        PROJECTED.replace(r#""namespace":"weir""#, r#""namespace":"weir","namespace":"other""#),
        with(r#""labels":{"ring":1}"#),
        with(r#""sub":"system:serviceaccount:weir:agent""#),
    ] {
        assert!(matches!(verify(&wrong), Err(TokenError::Malformed(_))), "{wrong}");
    }
}

#[test]
fn the_key_fixes_the_algorithm() {
    for key in ALGORITHMS {
        for header in ALGORITHMS.into_iter().chain(["none", "HS256", "PS256", "rs256"]) {
            let verified = verify_of(&ISSUING.token(key, header, PROJECTED));
            assert_eq!(verified.is_ok(), key == header, "{key} {header}: {verified:?}");
        }
    }
    // A token of an issuer is none of Weir's own, and the other way round.
    let own = PublicKey::with_id("ES256".parse().unwrap(), [1; 32]);
    let foreign = ISSUING.token("ES256", "ES256", PROJECTED);
    assert!(matches!(UnverifiedToken::parse(&foreign).unwrap().verify(&own), Err(TokenError::Malformed(_))));
}

#[test]
fn key_sets_hold_what_can_be_used_and_nothing_doubtful() {
    let jwks = ISSUING.jwks();
    let set = JwkSet::parse(jwks.as_bytes()).unwrap();
    assert_eq!(
        set.keys().map(|(kid, key)| (kid, key.algorithm())).collect::<Vec<_>>(),
        ["ES256", "EdDSA", "RS256"].map(|kid| (kid, kid))
    );
    let one = |key: &str| JwkSet::parse(format!(r#"{{"keys":[{key}]}}"#).as_bytes()).map_err(|error| error.to_string());
    let ed25519 = r#"{"kty":"OKP","crv":"Ed25519","kid":"k","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
    assert!(one(ed25519).is_ok());
    let rsa = |bytes: &[u8]| format!(r#"{{"kty":"RSA","kid":"k","n":"{}","e":"AQAB"}}"#, URL_SAFE_NO_PAD.encode(bytes));
    assert!(one(&rsa(&[0x80; 256])).is_ok() && one(&rsa(&[0xff; 1024])).is_ok());
    for (wrong, reason) in [
        (String::new(), "no key"),
        (ed25519.replace(r#""kid":"k","#, ""), "no key"),
        (ed25519.replace(r#""kid""#, r#""alg":"ES256","kid""#), "no key"),
        (ed25519.replace(r#""kid""#, r#""use":"enc","kid""#), "no key"),
        (ed25519.replace(r#""kid""#, r#""d":"AA","kid""#), "private"),
        (ed25519.replace("11qY", "1"), "32 bytes"),
        (ed25519.replace("Ro\"", "Ro=\""), "base64url"),
        (format!("{ed25519},{ed25519}"), "twice"),
        (ed25519.replace(r#""kid""#, r#""kid":"a","kid""#), "twice"),
        (rsa(&[0x7f; 256]), "2,048"),
        (rsa(&[0xff; 1025]), "8,192"),
        (rsa(&[&[0][..], &[0xff; 300]].concat()), "zeros"),
        (rsa(&[0x80; 256]).replace("AQAB", ""), "zeros"),
    ] {
        let error = one(&wrong).unwrap_err();
        assert!(error.contains(reason), "{reason}: {error}");
    }
    let many: Vec<_> = (0..=MAX_JWKS).map(|i| ed25519.replace(r#""k""#, &format!("\"k{i}\""))).collect();
    assert!(one(&many[1..].join(",")).is_ok());
    assert_eq!(one(&many.join(",")).unwrap_err(), JwkSetError::TooMany.to_string());
    let long = " ".repeat(MAX_JWK_SET_BYTES + 1);
    assert_eq!(JwkSet::parse(long.as_bytes()), Err(JwkSetError::TooLarge(long.len())));
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
    let own = key().issue(&claims()).unwrap();
    let of_issuer = ALGORITHMS.map(|algorithm| ISSUING.token(algorithm, algorithm, PROJECTED));
    let keys = JwkSet::parse(ISSUING.jwks().as_bytes()).unwrap();
    let verify_of = |token: &str| {
        let token = UnverifiedToken::parse(token)?;
        let key = keys.get(token.key_id()).ok_or_else(|| TokenError::UnknownKey(token.key_id().to_owned()))?;
        token.verify_of(&issuer(), key)
    };
    for token in of_issuer.iter().chain([&own]) {
        let verified = |token: &str| verify(token).is_ok() || verify_of(token).is_ok();
        assert!(verified(token), "{token}");
        for at in 0..token.len() {
            for bit in 0..7 {
                let mut bytes = token.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let changed = String::from_utf8(bytes).unwrap();
                assert!(!verified(&changed), "byte {at}, bit {bit}: {changed}");
            }
            assert!(!verified(&token[..at]), "cut at {at}");
        }
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}", header in ".{0,80}", payload in ".{0,80}") {
        let _ = verify(&text);
        let _ = verify(&signed(&header, &payload));
        let _ = JwkSet::parse(payload.as_bytes());
    }

    #[test]
    fn no_json_panics(json in r#"\{("(alg|kid|exp|sub|services|aud|crit)":("EdDSA"|[0-9]{1,20}|\[\]|\{\}|null),?){0,5}\}"#) {
        let _ = verify(&signed(&json, &json));
    }
}

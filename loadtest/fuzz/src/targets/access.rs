//! Who may read: tokens, and lists of keys and denials.

use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use weir_protocol::access_list::{AccessList, MAX_ACCESS_LIST_BYTES, SHARDS, Shard};
use weir_protocol::issuer::Issuer;
use weir_protocol::token::{
    IssuerPolicy, JwkSet, MAX_JWK_SET_BYTES, MAX_JWKS, SigningKey, TokenError, UnverifiedToken,
};

fn key() -> &'static SigningKey {
    static KEY: OnceLock<SigningKey> = OnceLock::new();
    KEY.get_or_init(|| SigningKey::generate().expect("there is randomness").0)
}

/// An issuer with a key of each algorithm, whose private keys nobody has.
fn issuer() -> &'static (IssuerPolicy, JwkSet) {
    static ISSUER: OnceLock<(IssuerPolicy, JwkSet)> = OnceLock::new();
    ISSUER.get_or_init(|| {
        let (x, point) = (key().public().encoded(), URL_SAFE_NO_PAD.encode(P256_X));
        let (y, n) = (URL_SAFE_NO_PAD.encode(P256_Y), URL_SAFE_NO_PAD.encode([0xc5; 256]));
        let jwks = format!(
            r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"k1","x":"{x}"}},
                {{"kty":"EC","crv":"P-256","kid":"k2","x":"{point}","y":"{y}"}},
                {{"kty":"RSA","kid":"k3","n":"{n}","e":"AQAB"}}]}}"#
        );
        let policy = IssuerPolicy {
            issuer: "https://issuer.example".to_owned(),
            audience: "weir".to_owned(),
            subjects: vec!["system:serviceaccount:*:agent".to_owned()],
            agent: "{kubernetes.io/namespace}".parse().expect("a template"),
            services: vec!["shop-*".parse().expect("a pattern")],
        };
        (policy, JwkSet::parse(jwks.as_bytes()).expect("a key set"))
    })
}

/// The generator of P-256 (FIPS 186-4, D.1.2.3), a point on the curve.
const P256_X: [u8; 32] = [
    0x6b, 0x17, 0xd1, 0xf2, 0xe1, 0x2c, 0x42, 0x47, 0xf8, 0xbc, 0xe6, 0xe5, 0x63, 0xa4, 0x40, 0xf2, 0x77, 0x03, 0x7d,
    0x81, 0x2d, 0xeb, 0x33, 0xa0, 0xf4, 0xa1, 0x39, 0x45, 0xd8, 0x98, 0xc2, 0x96,
];
const P256_Y: [u8; 32] = [
    0x4f, 0xe3, 0x42, 0xe2, 0xfe, 0x1a, 0x7f, 0x9b, 0x8e, 0xe7, 0xeb, 0x4a, 0x7c, 0x0f, 0x9e, 0x16, 0x2b, 0xce, 0x33,
    0x57, 0x6b, 0x31, 0x5e, 0xce, 0xcb, 0xb6, 0x40, 0x68, 0x37, 0xbf, 0x51, 0xf5,
];

/// No text is a token of the issuer, whatever key it names.
fn is_none_of_issuer(token: &UnverifiedToken<'_>) {
    let (policy, keys) = issuer();
    for (_, key) in keys.keys() {
        assert!(token.clone().verify_of(policy, key).is_err(), "nobody finds a signature");
    }
    if let Ok(claims) = token.claims_of(policy) {
        assert_eq!(claims.services, policy.services, "an issuer's token says nothing of services");
    }
}

/// Two readings of a key set agree, and each key is of a supported kind.
pub(crate) fn jwk_set(bytes: &[u8]) {
    let Ok(set) = JwkSet::parse(bytes) else { return };
    assert!((1..=MAX_JWKS).contains(&set.keys().count()) && bytes.len() <= MAX_JWK_SET_BYTES);
    for (kid, key) in set.keys() {
        assert!(set.get(kid) == Some(key) && ["EdDSA", "ES256", "RS256"].contains(&key.algorithm()));
        let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{}","kid":"k"}}"#, key.algorithm()));
        let forged = format!("{header}.e30.{}", URL_SAFE_NO_PAD.encode([1; 64]));
        if let Ok(token) = UnverifiedToken::parse(&forged) {
            assert!(token.verify_of(&issuer().0, key).is_err(), "no key accepts it");
        }
    }
}

/// Header and payload with a NUL between: put together as a token that nobody signed.
pub(crate) fn token(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(token) = UnverifiedToken::parse(text)
    {
        is_none_of_issuer(&token);
        assert!(token.verify(key().public()).is_err(), "nobody finds a signature");
    }
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let [header, payload] = [parts.next(), parts.next()].map(|part| URL_SAFE_NO_PAD.encode(part.unwrap_or_default()));
    let forged = format!("{header}.{payload}.{}", URL_SAFE_NO_PAD.encode([0; 64]));
    let Ok(token) = UnverifiedToken::parse(&forged) else { return };
    is_none_of_issuer(&token);
    let claims = token.claims();
    assert!(token.verify(key().public()).is_err());
    let Ok(claims) = claims else { return };
    match key().issue(&claims) {
        Ok(issued) => {
            let read = UnverifiedToken::parse(&issued).and_then(|token| token.verify(key().public()));
            assert_eq!(read.as_ref(), Ok(&claims), "what is issued is read back");
        }
        Err(error) => assert!(matches!(error, TokenError::TooLong(_)), "{error}"),
    }
}

pub(crate) fn access_list(bytes: &[u8]) {
    let Ok(list) = AccessList::parse(bytes) else { return };
    if !list.lacking().is_empty() {
        return;
    }
    let json = list.json();
    assert!(json.get().len() <= MAX_ACCESS_LIST_BYTES);
    assert_eq!(AccessList::parse(json.get().as_bytes()), Ok(list), "what is written is read back");
}

/// The documents of a shard.
pub(crate) fn access_shard(bytes: &[u8]) {
    let index = bytes.len() % SHARDS;
    let Ok(shard) = Shard::<Issuer>::parse_documents(index, bytes) else { return };
    let read = Shard::parse_documents(index, &shard.documents_json()).map(|read| (read.digest(), read));
    assert_eq!(read, Ok((shard.digest(), shard)), "what is written is read back");
}

/// The same text as a key file and as a deny file.
pub(crate) fn access_files(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut list = AccessList::default();
    let _ = list.add_key_file(text);
    let _ = list.add_deny_file(text);
    assert_eq!(AccessList::parse(list.json().get().as_bytes()), Ok(list), "what files say can be told");
}

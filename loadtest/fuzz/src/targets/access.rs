//! Who may read: tokens, and lists of keys and denials.

use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use weir_protocol::access_list::{AccessList, MAX_ACCESS_LIST_BYTES};
use weir_protocol::token::{SigningKey, TokenError, UnverifiedToken};

fn key() -> &'static SigningKey {
    static KEY: OnceLock<SigningKey> = OnceLock::new();
    KEY.get_or_init(|| SigningKey::generate().expect("there is randomness").0)
}

/// Header and payload with a NUL between: put together as a token that nobody signed.
pub(crate) fn token(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(token) = UnverifiedToken::parse(text)
    {
        assert!(token.verify(key().public()).is_err(), "nobody finds a signature");
    }
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let [header, payload] = [parts.next(), parts.next()].map(|part| URL_SAFE_NO_PAD.encode(part.unwrap_or_default()));
    let forged = format!("{header}.{payload}.{}", URL_SAFE_NO_PAD.encode([0; 64]));
    let Ok(token) = UnverifiedToken::parse(&forged) else { return };
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
    let json = list.json();
    assert!(json.get().len() <= MAX_ACCESS_LIST_BYTES);
    assert_eq!(AccessList::parse(json.get().as_bytes()), Ok(list), "what is written is read back");
}

/// The same text as a key file and as a deny file.
pub(crate) fn access_files(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut list = AccessList::default();
    let _ = list.add_key_file(text);
    let _ = list.add_deny_file(text);
    assert_eq!(AccessList::parse(list.json().get().as_bytes()), Ok(list), "what files say can be told");
}

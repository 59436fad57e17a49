//! The ids of keys and of tokens.

use crate::text_type::{checked_text, truncated};

/// The longest id, in bytes.
const MAX_ID_LENGTH: usize = 64;

/// The text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not the id of a {kind}: 1 to {MAX_ID_LENGTH} letters and digits of ASCII, `.`, `_`, `~`, `:`, `-`"
)]
pub struct IdError {
    kind: &'static str,
    text: String,
}

fn is_valid(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'~' | b':' | b'-');
    (1..=MAX_ID_LENGTH).contains(&text.len()) && text.bytes().all(allowed)
}

checked_text! {
    /// The id of a key: `kid` in RFC 7515.
    KeyId, is_valid, IdError, |text| IdError { kind: "key", text: truncated(text) }
}

checked_text! {
    /// The id of a token: `jti` in RFC 7519.
    TokenId, is_valid, IdError, |text| IdError { kind: "token", text: truncated(text) }
}

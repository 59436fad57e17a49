//! `X-Request-Id`: names one request in the logs of all tiers that it passes.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id of a client, in bytes.
pub const MAX_REQUEST_ID_BYTES: usize = 128;

/// The id of a request: 1 to [`MAX_REQUEST_ID_BYTES`] visible ASCII characters without quotes. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// A new id, of a random number.
    pub fn new(random: u64) -> Self {
        Self::checked(HeaderValue::try_from(format!("{random:016x}")).expect("hex digits"))
    }

    /// The id that a client sent, if it is valid.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(REQUEST_ID)?;
        let is_valid = (1..=MAX_REQUEST_ID_BYTES).contains(&value.len())
            && value.as_bytes().iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\''));
        is_valid.then(|| Self::checked(value.clone()))
    }

    fn checked(mut value: HeaderValue) -> Self {
        // No id comes twice: HPACK must not put it into its dynamic table, where it displaces fields that do.
        value.set_sensitive(true);
        Self(value)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// Sets the header.
    pub fn insert_into(&self, headers: &mut HeaderMap) {
        headers.insert(REQUEST_ID, self.0.clone());
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &[u8]) -> Option<String> {
        let headers = HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_bytes(value).unwrap())]);
        RequestId::of(&headers).map(|id| id.to_string())
    }

    #[test]
    fn a_clients_id_is_visible_ascii_without_quotes() {
        for valid in ["a", "9f86d081884c7d65", "a/b:c,d=e;{f}|~!", &"x".repeat(MAX_REQUEST_ID_BYTES)] {
            assert_eq!(of(valid.as_bytes()).as_deref(), Some(valid));
        }
        let too_long = "x".repeat(MAX_REQUEST_ID_BYTES + 1);
        for invalid in ["", " ", "a b", "a\tb", "a\"b", "a'b", "\u{fc}", &too_long] {
            assert_eq!(of(invalid.as_bytes()), None, "{invalid:?}");
        }
        assert_eq!(RequestId::of(&HeaderMap::new()), None);
    }

    #[test]
    fn a_new_id_is_one_that_is_accepted() {
        let mut headers = HeaderMap::new();
        let id = RequestId::new(7);
        id.insert_into(&mut headers);
        assert_eq!((id.as_str(), RequestId::of(&headers)), ("0000000000000007", Some(id.clone())));
    }
}

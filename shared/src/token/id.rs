//! The names of keys and of tokens.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest id, in bytes.
const MAX_ID_LENGTH: usize = 64;

/// The text was not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not the id of a {kind}: 1 to {MAX_ID_LENGTH} letters and digits of ASCII, `.`, `_`, `~`, `:`, `-`"
)]
pub struct IdError {
    kind: &'static str,
    text: String,
}

macro_rules! id {
    ($(#[$doc:meta])* $type:ident, $kind:literal) => {
        $(#[$doc])*
        ///
        /// 1 to 64 letters and digits of ASCII, `.`, `_`, `~`, `:`, `-`. Cheap to clone.
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'~' | b':' | b'-');
                if (1..=MAX_ID_LENGTH).contains(&text.len()) && text.bytes().all(allowed) {
                    Ok(Self(text.into()))
                } else {
                    Err(IdError { kind: $kind, text: text.chars().take(80).collect() })
                }
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        $crate::serde_as_text!($type);
    };
}

id! {
    /// The id of a key: the `kid` of RFC 7515.
    KeyId, "key"
}
impl KeyId {
    /// Whether it has the form of the thumbprint that a key is called by unless it is given an id of its own (RFC 7638):
    /// SHA-256 in base64url without padding.
    pub fn is_thumbprint(&self) -> bool {
        self.as_str().len() == 43
            && self.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    }
}

id! {
    /// The id of a token: the `jti` of RFC 7519.
    TokenId, "token"
}

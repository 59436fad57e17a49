//! Names that appear in URLs, configuration, file paths and metrics, valid by construction.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name, in bytes.
pub const MAX_NAME_LENGTH: usize = 100;

/// The text was not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind} name: 1 to 100 of `a-z`, `0-9`, `.`, `_`, `-`, the first a letter or a digit")]
pub struct NameError {
    kind: &'static str,
    text: String,
}

fn is_valid(text: &str) -> bool {
    let head = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let tail = |b: u8| head(b) || matches!(b, b'.' | b'_' | b'-');
    text.len() <= MAX_NAME_LENGTH && text.bytes().next().is_some_and(head) && text.bytes().all(tail)
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal) => {
        $(#[$doc])*
        ///
        /// `[a-z0-9][a-z0-9._-]{0,99}`; cheap to clone. Such a name is safe as a path component, a URL segment and a
        /// metric label.
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                if is_valid(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(NameError { kind: $kind, text: text.chars().take(120).collect() })
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

name! {
    /// The name of a service: what an agent follows.
    ServiceName, "service"
}
name! {
    /// The name of a repository in an origin's configuration.
    RepositoryName, "repository"
}
name! {
    /// The name of a node: an origin, an edge, an agent, an operator.
    NodeName, "node"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_path_components_and_url_segments() {
        for good in ["a", "0", "shop-prod", "a.b_c-d", &"x".repeat(100)] {
            assert!(good.parse::<ServiceName>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".a", "-a", "_a", "A", "a/b", "a b", "ä", "a\0", "a%2f", &"x".repeat(101)] {
            assert!(bad.parse::<ServiceName>().is_err(), "{bad}");
        }
    }
}

//! Patterns over names: what a token or a certificate may read.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::name::MAX_NAME_LENGTH;

/// A pattern over names (of services, of agents): the characters of a name, and `*` for any run of them, also none.
///
/// There is nothing else: no `?`, no classes, no exceptions. A pattern without `*` is one name; `*` alone is all names.
/// At most 100 bytes, as a name. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameGlob(Arc<str>);

/// The text was not a pattern over names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a pattern over names: 1 to 100 of `a-z`, `0-9`, `.`, `_`, `-` and `*`, such as `shop-*`")]
pub struct NameGlobError(String);

impl NameGlob {
    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a name is among those it stands for. Takes at most the product of both lengths in steps.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        // The last `*`, and how much of the name it takes so far: all earlier ones can stay as they are.
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            if pattern.get(p) == Some(&b'*') {
                star = Some((p, n));
                p += 1;
            } else if pattern.get(p) == Some(&name[n]) {
                p += 1;
                n += 1;
            } else if let Some((at, taken)) = star {
                star = Some((at, taken + 1));
                p = at + 1;
                n = taken + 1;
            } else {
                return false;
            }
        }
        pattern[p..].iter().all(|rest| *rest == b'*')
    }
}

impl FromStr for NameGlob {
    type Err = NameGlobError;

    fn from_str(text: &str) -> Result<Self, NameGlobError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-' | b'*');
        if (1..=MAX_NAME_LENGTH).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(NameGlobError(text.chars().take(120).collect()))
        }
    }
}

impl fmt::Display for NameGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NameGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::serde_as_text!(NameGlob);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same by its definition, in exponential time.
    fn by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=name.len()).any(|taken| by_definition(rest, &name[taken..])),
            ([p, rest @ ..], [n, name @ ..]) => p == n && by_definition(rest, name),
            _ => false,
        }
    }

    #[test]
    fn a_star_is_any_run_of_characters() {
        for (pattern, name, expected) in [
            ("shop", "shop", true),
            ("shop", "shop-prod", false),
            ("shop-*", "shop-", true),
            ("shop-*", "shop-prod", true),
            ("shop-*", "shop", false),
            ("shop-*", "workshop-prod", false),
            ("*", "anything", true),
            ("*-prod", "shop-prod", true),
            ("*-prod", "shop-prod-2", false),
            ("a*b*c", "abbbcbc", true),
            ("a*b*c", "acb", false),
            ("**", "x", true),
        ] {
            assert_eq!(pattern.parse::<NameGlob>().unwrap().matches(name), expected, "{pattern} {name}");
        }
        for wrong in ["", "Shop", "shop/*", "sh?p", "[a]", "!a", "a b", &"*".repeat(101)] {
            assert!(wrong.parse::<NameGlob>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn it_matches_as_defined(pattern in "[ab*]{1,8}", name in "[ab]{0,10}") {
            let glob: NameGlob = pattern.parse().unwrap();
            prop_assert_eq!(glob.matches(&name), by_definition(pattern.as_bytes(), name.as_bytes()));
        }
    }
}

//! Patterns that services are picked by: names in which `*` stands for anything.

use std::fmt;
use std::str::FromStr;

use crate::name::{MAX_NAME_LENGTH, ServiceName};

/// A pattern for names of services: each `*` stands for any number of characters, none included; nothing else is
/// special. `shop-*`, `*-prod`, `*`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceGlob(String);

/// The text was not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a pattern of service names: 1 to 100 of `a-z`, `0-9`, `.`, `_`, `-`, and `*` for any characters")]
pub struct ServiceGlobError(String);

impl ServiceGlob {
    /// Whether the pattern matches the whole name.
    pub fn matches(&self, service: &ServiceName) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = service.as_str().strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        // Each part at its first place leaves the most for those after it, so nothing is ever tried twice.
        for part in parts {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ServiceGlob {
    type Err = ServiceGlobError;

    fn from_str(text: &str) -> Result<Self, ServiceGlobError> {
        let may_stand = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-' | b'*');
        if text.is_empty() || text.len() > MAX_NAME_LENGTH || !text.bytes().all(may_stand) {
            return Err(ServiceGlobError(text.chars().take(120).collect()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for ServiceGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::serde_as_text!(ServiceGlob);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_star_is_any_characters_and_nothing_else_is_special() {
        for (glob, name, matches) in [
            ("*", "shop", true),
            ("shop", "shop", true),
            ("shop", "shop-prod", false),
            ("shop-*", "shop-prod", true),
            ("shop-*", "shop-", true),
            ("shop-*", "shop", false),
            ("*-prod", "shop-prod", true),
            ("*-prod", "shop-prod-2", false),
            ("s*p*d", "shop-prod", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a**b", "ab", true),
            ("a.c", "abc", false),
            ("*ab*ab", "abab", true),
            ("*ab*ab", "ab", false),
        ] {
            let glob: ServiceGlob = glob.parse().unwrap();
            assert_eq!(glob.matches(&name.parse().unwrap()), matches, "{glob} {name}");
        }
    }

    #[test]
    fn what_no_name_can_match_is_refused() {
        for text in ["", "Shop", "shop?", "a/b", "[a]", "a b", "ä", &"x".repeat(101)] {
            assert!(text.parse::<ServiceGlob>().is_err(), "{text:?}");
        }
    }

    /// The definition, tried in every way.
    fn matches_slowly(glob: &[u8], name: &[u8]) -> bool {
        match glob.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|skipped| matches_slowly(rest, &name[skipped..])),
            Some((first, rest)) => name.first() == Some(first) && matches_slowly(rest, &name[1..]),
        }
    }

    proptest! {
        #[test]
        fn it_matches_by_the_definition(glob in "[ab*]{1,8}", name in "[ab]{1,10}") {
            let fast = glob.parse::<ServiceGlob>().unwrap().matches(&name.parse().unwrap());
            prop_assert_eq!(fast, matches_slowly(glob.as_bytes(), name.as_bytes()));
        }
    }
}

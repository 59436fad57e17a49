//! Glob patterns over names, for tokens and certificates.

use crate::labels::MAX_KEY_BYTES;
use crate::name::MAX_NAME_LENGTH;
use crate::text_type::{checked_text, truncated};

/// The longest name of an edge, in bytes.
const MAX_EDGE_NAME_LENGTH: usize = 2 * MAX_NAME_LENGTH + 1;

checked_text! {
    /// A glob pattern over names: the characters of a name, and `*` for any number of them, also none.
    ///
    /// There is no `?`, no character class and no negation. At most 100 bytes, as a name.
    NameGlob, is_valid, NameGlobError, |text| NameGlobError(truncated(text))
}

checked_text! {
    /// The same over names of edges, which may have a `~`.
    EdgeGlob, |text| is_valid_with(text, MAX_EDGE_NAME_LENGTH, b"~"), NameGlobError, |text| NameGlobError(truncated(text))
}

checked_text! {
    /// The same over keys of labels.
    LabelGlob, is_label_glob, LabelGlobError, |text| LabelGlobError(truncated(text))
}

/// The text is not a valid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a pattern over keys of labels: 1 to {MAX_KEY_BYTES} of `A-Z`, `a-z`, `0-9`, `.`, `_`, `/`, `-` and `*`"
)]
pub struct LabelGlobError(String);

impl LabelGlob {
    /// Whether the pattern matches a key.
    pub fn matches(&self, key: &str) -> bool {
        glob_matches(&self.0, key)
    }
}

fn is_label_glob(text: &str) -> bool {
    is_valid_with(&text.to_ascii_lowercase(), MAX_KEY_BYTES, b"/")
}

/// The text is not a valid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a pattern over names: 1 to 100 of `a-z`, `0-9`, `.`, `_`, `-` and `*`, such as `shop-*`")]
pub struct NameGlobError(String);

impl NameGlob {
    /// The pattern of all names.
    pub fn any() -> Self {
        "*".parse().expect("a star is a pattern")
    }

    /// Whether the pattern matches a name. Takes at most the product of both lengths in steps.
    pub fn matches(&self, name: &str) -> bool {
        glob_matches(&self.0, name)
    }
}

impl EdgeGlob {
    /// Whether the pattern matches a name.
    pub fn matches(&self, name: &str) -> bool {
        glob_matches(&self.0, name)
    }
}

/// Whether a text matches a pattern in which `*` stands for any text.
pub(crate) fn glob_matches(pattern: &str, text: &str) -> bool {
    let Some((prefix, rest)) = pattern.split_once('*') else { return pattern == text };
    let (parts, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
    let inner = text.strip_prefix(prefix).and_then(|text| text.strip_suffix(suffix));
    let Some(mut text) = inner.map(str::as_bytes) else { return false };
    // The first place of each part is enough: a later one leaves less text for the rest.
    for part in parts.split('*').filter(|part| !part.is_empty()) {
        let Some(at) = text.windows(part.len()).position(|window| window == part.as_bytes()) else { return false };
        text = &text[at + part.len()..];
    }
    true
}

fn is_valid(text: &str) -> bool {
    is_valid_with(text, MAX_NAME_LENGTH, b"")
}

fn is_valid_with(text: &str, most: usize, more: &[u8]) -> bool {
    let is_of_names = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-' | b'*');
    (1..=most).contains(&text.len()) && text.bytes().all(|b| is_of_names(b) || more.contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, in exponential time.
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

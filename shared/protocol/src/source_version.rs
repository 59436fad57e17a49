//! Versions of charts and artifacts, as their source writes them.

use crate::text_type::{checked_text, truncated};

/// The longest version, in bytes.
pub const MAX_SOURCE_VERSION_BYTES: usize = 128;

checked_text! {
    /// The version of a chart, or the tag of an artifact.
    SourceVersion, is_valid, SourceVersionError, |text| SourceVersionError(truncated(text))
}

/// The text is not a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a version: expected `A-Z`, `a-z`, `0-9`, `.`, `_`, `+`, `-`, at most {MAX_SOURCE_VERSION_BYTES} bytes"
)]
pub struct SourceVersionError(String);

fn is_valid(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'+' | b'-');
    (1..=MAX_SOURCE_VERSION_BYTES).contains(&text.len()) && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_tags_are_accepted_and_nothing_that_a_header_or_a_shell_would_split() {
        for text in ["1.2.3", "v1.0.0-rc.1+build.7", "stable", "1.0.0_up1.2"] {
            assert_eq!(text.parse::<SourceVersion>().unwrap().as_str(), text);
        }
        for text in ["", "1 2", "1\n", "a/b", "$(x)", "ä", &"1".repeat(MAX_SOURCE_VERSION_BYTES + 1)] {
            assert!(text.parse::<SourceVersion>().is_err(), "{text}");
        }
    }
}

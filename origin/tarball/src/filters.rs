//! Selects the files of a folder by glob patterns.

use gix::bstr::ByteSlice;
use gix::glob::Pattern;

use crate::glob::Matcher;

/// Include and exclude globs: gitignore patterns, relative to the folder.
///
/// A file is included if an include pattern matches it or one of its directories, or if there are no include
/// patterns. Exclude patterns work the same way and take precedence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    include: Vec<Glob>,
    exclude: Vec<Glob>,
}

/// A pattern is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pattern `{pattern}` cannot be used: {reason}")]
pub struct FilterError {
    pattern: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Glob {
    text: String,
    pattern: Pattern,
}

/// The filters' decision for a directory, which its entries inherit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inclusion {
    /// No include pattern has matched yet; one may match below.
    Undecided,
    /// Everything below is included, unless an exclude pattern matches.
    Included,
    /// Nothing below is included.
    Excluded,
}

impl Filters {
    /// Parses the patterns.
    ///
    /// # Errors
    /// Names a pattern that is empty, negated (`!`), a comment (`#`), or contains a line break.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Self, FilterError> {
        let read = |patterns: &[String]| patterns.iter().map(|text| Glob::new(text)).collect::<Result<Vec<_>, _>>();
        Ok(Self { include: read(include)?, exclude: read(exclude)? })
    }

    /// Validates a pattern.
    ///
    /// # Errors
    /// Those of [`Filters::new`], or the pattern can never match.
    pub fn check(pattern: &str) -> Result<(), FilterError> {
        match never_matches(pattern.as_bytes()) {
            Some(reason) => Err(FilterError { pattern: abbreviated(pattern), reason }),
            None => Glob::new(pattern).map(drop),
        }
    }

    /// The include and exclude patterns as written.
    pub fn texts(&self) -> [Vec<&str>; 2] {
        [&self.include, &self.exclude].map(|globs| globs.iter().map(|glob| glob.text.as_str()).collect())
    }

    /// The decision for the folder itself. Patterns are relative to it, so none can match it.
    pub fn root(&self) -> Inclusion {
        if self.include.is_empty() { Inclusion::Included } else { Inclusion::Undecided }
    }

    /// The decision for a path inside a directory, whose own decision is `parent`.
    pub fn descend(&self, parent: Inclusion, path: &[u8], is_directory: bool, matcher: &mut Matcher) -> Inclusion {
        let mut matches = |globs: &[Glob]| globs.iter().any(|glob| matcher.matches(&glob.pattern, path, is_directory));
        match parent {
            Inclusion::Excluded => Inclusion::Excluded,
            _ if matches(&self.exclude) => Inclusion::Excluded,
            Inclusion::Undecided if !matches(&self.include) => Inclusion::Undecided,
            _ => Inclusion::Included,
        }
    }
}

impl Glob {
    fn new(text: &str) -> Result<Self, FilterError> {
        let error = |reason| FilterError { pattern: abbreviated(text), reason };
        if text.starts_with('!') {
            return Err(error(
                "negation is not supported, list it under `exclude` or `include` (a name that starts with `!` is written `\\!`)",
            ));
        }
        if text.starts_with('#') {
            return Err(error("it would be a comment (a name that starts with `#` is written `\\#`)"));
        }
        if text.contains(['\n', '\r', '\0']) {
            return Err(error("it holds a line break or a NUL"));
        }
        let trimmed = trim_trailing_spaces(text);
        let pattern = Pattern::from_bytes(trimmed.as_bytes()).filter(|pattern| !pattern.text.is_empty());
        Ok(Self { text: text.to_owned(), pattern: pattern.ok_or_else(|| error("it is empty"))? })
    }
}

/// A pattern, shortened for an error.
fn abbreviated(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Why a pattern never matches. Git accepts such patterns silently.
fn never_matches(text: &[u8]) -> Option<&'static str> {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += match byte {
            b'\\' if at + 1 == text.len() => return Some("it ends in the middle of an escape (`\\`)"),
            b'\\' => 2,
            b'[' => match class_length(&text[at + 1..]) {
                Some(length) => 1 + length,
                None => return Some("a `[` has no `]` (a name that holds one is written `\\[`)"),
            },
            _ => 1,
        };
    }
    None
}

/// The length of the rest of a character class after its `[`, if it is closed.
fn class_length(rest: &[u8]) -> Option<usize> {
    let first = usize::from(matches!(rest.first(), Some(b'!' | b'^')));
    let mut at = first;
    loop {
        at += match rest.get(at)? {
            // A `]` in the first position is an ordinary character.
            b']' if at > first => return Some(at + 1),
            b'\\' => 2,
            // A named class such as `[:alpha:]`.
            b'[' if rest[at + 1..].starts_with(b":") => rest[at + 2..].find(b":]").map_or(1, |length| length + 4),
            _ => 1,
        };
    }
}

/// Removes trailing spaces that no backslash protects, as in a gitignore file.
fn trim_trailing_spaces(text: &str) -> &str {
    let trimmed = text.trim_end_matches(' ');
    let backslashes = trimmed.bytes().rev().take_while(|byte| *byte == b'\\').count();
    if trimmed.len() < text.len() && backslashes % 2 == 1 { &text[..=trimmed.len()] } else { trimmed }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a file is included, evaluated directory by directory as in a walk.
    fn is_in(include: &[&str], exclude: &[&str], path: &str) -> bool {
        let owned = |patterns: &[&str]| patterns.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let filters = Filters::new(&owned(include), &owned(exclude)).unwrap();
        let (mut state, mut matcher) = (filters.root(), Matcher::default());
        for (slash, _) in path.match_indices('/') {
            state = filters.descend(state, &path.as_bytes()[..slash], true, &mut matcher);
        }
        filters.descend(state, path.as_bytes(), false, &mut matcher) == Inclusion::Included
    }

    #[test]
    fn without_patterns_everything_is_in() {
        assert!(is_in(&[], &[], "a/b/c"));
    }

    #[test]
    fn a_pattern_matches_files_and_everything_below_directories() {
        for (pattern, path, expected) in [
            ("*.yaml", "a.yaml", true),
            ("*.yaml", "a/b/c.yaml", true),
            ("*.yaml", "a/b/c.json", false),
            ("**/*.yaml", "c.yaml", true),
            ("**/*.yaml", "a/b/c.yaml", true),
            ("prod", "prod/a/b", true),
            ("prod", "x/prod/a", true),
            ("/prod", "x/prod/a", false),
            ("prod/", "prod", false),
            ("prod/", "prod/a", true),
            ("a/b", "a/b/c/d", true),
            ("a/b", "x/a/b/c", false),
            ("a/*", "a/b/c", true),
            ("a/**", "a/b/c", true),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("[ab].txt", "b.txt", true),
            ("?.txt", "ab.txt", false),
            ("\\!x", "!x", true),
            ("\\#x", "#x", true),
            ("x  ", "x", true),
            ("x\\ ", "x ", true),
            ("A", "a", false),
        ] {
            assert_eq!(is_in(&[pattern], &[], path), expected, "include {pattern} {path}");
            assert_eq!(!is_in(&[], &[pattern], path), expected, "exclude {pattern} {path}");
        }
    }

    #[test]
    fn exclude_wins() {
        assert!(!is_in(&["*.yaml"], &["secret"], "secret/a.yaml"));
        assert!(!is_in(&["secret/a.yaml"], &["secret"], "secret/a.yaml"));
        assert!(is_in(&["*.yaml"], &["secret"], "open/a.yaml"));
    }

    #[test]
    fn an_invalid_pattern_is_named() {
        for pattern in ["!a", "#a", "", "  ", "/", "a\nb"] {
            let error = Filters::new(&[], &[pattern.to_owned()]).unwrap_err();
            assert!(error.to_string().contains(&format!("`{pattern}`")), "{error}");
        }
    }
    #[test]
    fn a_pattern_that_never_matches_is_refused() {
        for pattern in ["[", "a[b", "[]", "[!]", "[a\\]", "x\\", "[[:alpha:]"] {
            let error = Filters::check(pattern).unwrap_err();
            assert!(error.to_string().contains(&format!("`{pattern}`")), "{error}");
            assert!(!is_in(&[pattern], &[], "a") && !is_in(&[pattern], &[], pattern), "{pattern}");
        }
        for (pattern, path) in [
            ("[ab]", "a"),
            ("[]]", "]"),
            ("[!]]", "x"),
            ("\\[", "["),
            ("]", "]"),
            ("[[:alpha:]]", "q"),
            ("[a\\]]", "]"),
        ] {
            Filters::check(pattern).unwrap();
            assert!(is_in(&[pattern], &[], path), "{pattern} {path}");
        }
    }
}

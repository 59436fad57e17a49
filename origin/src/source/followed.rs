//! What a service follows, by the kind of its repository.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::git::revision::Revision;

/// The longest `ref`, in bytes.
const MAX_REF_BYTES: usize = 256;

/// The kind of a repository: `git`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SourceKind(KindName);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KindName {
    #[default]
    Git,
}

impl SourceKind {
    /// For documents: earlier versions do not know the key.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The `ref` of a service as it is written. The kind of its repository says what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefText(Box<str>);

/// The text cannot be a `ref` of any kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a `ref` has 1 to {MAX_REF_BYTES} bytes, without control characters, and without white space at its ends")]
pub struct RefTextError;

/// `HEAD`: what the source itself names first. Of Git the default branch.
impl Default for RefText {
    fn default() -> Self {
        Self("HEAD".into())
    }
}

impl FromStr for RefText {
    type Err = RefTextError;

    fn from_str(text: &str) -> Result<Self, RefTextError> {
        let fits = (1..=MAX_REF_BYTES).contains(&text.len()) && text.trim() == text;
        if fits && !text.contains(char::is_control) { Ok(Self(text.into())) } else { Err(RefTextError) }
    }
}

impl fmt::Display for RefText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

weir_protocol::serde_as_text!(RefText);

/// What a service follows in its repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Followed(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Git(Revision),
}

impl Followed {
    /// Reads a `ref` for a repository of this kind.
    ///
    /// # Errors
    /// It has no meaning for the kind, with the reason for whoever wrote it.
    pub(crate) fn parse(SourceKind(kind): SourceKind, text: &RefText) -> Result<Self, String> {
        match kind {
            KindName::Git => {
                text.0.parse().map(|revision| Self(Kind::Git(revision))).map_err(|error| error.to_string())
            }
        }
    }

    /// Whether a change of the upstream's ref with this full name may change what is followed. True if unknown.
    pub(crate) fn may_follow(&self, moved: &str) -> bool {
        match &self.0 {
            Kind::Git(revision) => revision.may_follow(moved),
        }
    }

    /// What it is in a Git repository.
    pub(super) fn revision(&self) -> &Revision {
        match &self.0 {
            Kind::Git(revision) => revision,
        }
    }
}

impl fmt::Display for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Git(revision) => revision.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_ref_is_a_short_line_and_its_meaning_is_that_of_the_kind() {
        let long = "x".repeat(MAX_REF_BYTES + 1);
        for text in ["", " main", "main ", "a\nb", "a\u{7f}", &long] {
            assert_eq!(text.parse::<RefText>(), Err(RefTextError), "{text:?}");
        }
        let followed = |text: &str| Followed::parse(SourceKind::default(), &text.parse().unwrap());
        assert_eq!(followed("HEAD").unwrap(), Followed::parse(SourceKind::default(), &RefText::default()).unwrap());
        assert_eq!(followed("semver: ^1").unwrap().to_string(), "semver:^1");
        for (text, reason) in [("refs/replace/x", "replacement objects"), ("a..b", "is not a branch")] {
            assert!(followed(text).unwrap_err().contains(reason), "{text}");
        }
    }

    #[test]
    fn git_is_the_only_kind_and_the_default() {
        assert_eq!(serde_json::from_str::<SourceKind>("\"git\"").unwrap(), SourceKind::default());
        let error = serde_json::from_str::<SourceKind>("\"svn\"").unwrap_err().to_string();
        assert!(error.contains("`svn`") && error.contains("`git`"), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_followed_is_written_as_it_is_read(text in "\\PC{1,40}") {
            let read = |text: &str| Followed::parse(SourceKind::default(), &text.parse().ok()?).ok();
            if let Some(followed) = read(&text) {
                prop_assert_eq!(read(&followed.to_string()), Some(followed));
            }
        }
    }
}

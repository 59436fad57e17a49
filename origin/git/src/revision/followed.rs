//! What a service follows in a Git repository: a branch, a tag, a range of versions, or a commit.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use gix::bstr::{BStr, ByteSlice};
use weir_protocol::commit_id::CommitId;
use weir_upstream::{SEMVER, VersionRange, VersionRangeError};

/// The mirror's ref for the commit of the upstream's `HEAD`.
pub(crate) const DEFAULT_BRANCH_REF: &str = "refs/weir/HEAD";

/// The namespace of the mirror's own refs. No ref of an upstream is stored there.
pub(crate) const OWN_REFS: &str = "refs/weir/";

/// Git's namespace for replacement objects. A mirror neither uses nor fetches them.
const REPLACEMENTS: &str = "refs/replace/";

/// What a service follows in its repository: its `ref`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Revision {
    /// The upstream's `HEAD`.
    #[default]
    DefaultBranch,
    /// A full ref name (`refs/heads/main`, `refs/pull/7/head`), or a short one, for which a branch takes precedence
    /// over a tag.
    Named(String),
    /// The tag with the highest version in a range: `semver:^1.2`.
    Version(VersionRange),
    /// One commit, as long as it is reachable from a branch or a tag.
    Commit(CommitId),
}

/// The text of a `ref` is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevisionParseError {
    /// The text has none of the valid forms.
    #[error("ref = `{0}` is not a branch, a tag, `semver:` with a range of versions, or a full commit id")]
    Name(String),
    /// A range of versions without its prefix.
    #[error("ref = `{0}` is not a valid branch or tag name: write a range of versions as `semver:{0}`")]
    UnmarkedRange(String),
    /// The range is invalid.
    #[error("ref = `semver:…`: {0}")]
    Range(#[from] VersionRangeError),
    /// The name is in the mirror's own namespace.
    #[error("ref = `{0}`: names below `refs/weir/` are reserved")]
    OwnRef(String),
    /// The name is that of a replacement object.
    #[error("ref = `{0}`: replacement objects (`refs/replace/`) are not supported")]
    Replacement(String),
}

impl FromStr for Revision {
    type Err = RevisionParseError;

    fn from_str(text: &str) -> Result<Self, RevisionParseError> {
        if text == "HEAD" {
            return Ok(Self::DefaultBranch);
        }
        if let Some(range) = text.strip_prefix(SEMVER) {
            return Ok(Self::Version(range.trim().parse()?));
        }
        if let Ok(commit) = text.parse::<CommitId>() {
            return Ok(Self::Commit(commit));
        }
        let shown = || text.chars().take(120).collect();
        let full = if text.starts_with("refs/") { text.to_owned() } else { format!("refs/heads/{text}") };
        let is_name = !text.is_empty() && gix::validate::reference::name(full.as_bytes().into()).is_ok();
        // `>=1` is a valid branch name, but its author means a range.
        if !text.is_empty() && (!is_name || text.starts_with(['<', '>', '='])) && text.parse::<VersionRange>().is_ok() {
            return Err(RevisionParseError::UnmarkedRange(shown()));
        }
        if !is_name {
            return Err(RevisionParseError::Name(shown()));
        }
        if full.starts_with(OWN_REFS) {
            return Err(RevisionParseError::OwnRef(shown()));
        }
        if full.starts_with(REPLACEMENTS) {
            return Err(RevisionParseError::Replacement(shown()));
        }
        Ok(Self::Named(text.to_owned()))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultBranch => f.write_str("HEAD"),
            Self::Named(name) => f.write_str(name),
            Self::Version(range) => write!(f, "{SEMVER}{range}"),
            Self::Commit(commit) => f.write_str(commit.as_str()),
        }
    }
}

weir_protocol::serde_as_text!(Revision);

impl Revision {
    /// The name of a ref that a fetch has to list, because it is neither a branch nor a tag.
    pub(super) fn explicit_ref(&self) -> Option<&str> {
        match self {
            Self::Named(name)
                if name.starts_with("refs/") && !name.starts_with("refs/heads/") && !name.starts_with("refs/tags/") =>
            {
                Some(name)
            }
            _ => None,
        }
    }

    /// The commit of a revision that is a commit id.
    pub fn commit(&self) -> Option<gix::ObjectId> {
        match self {
            Self::Commit(commit) => gix::ObjectId::from_hex(commit.as_str().as_bytes()).ok(),
            _ => None,
        }
    }

    /// Whether it follows the ref with this name in the mirror. A pinned commit follows none.
    pub fn follows(&self, name: &str) -> bool {
        match self {
            Self::DefaultBranch => name == DEFAULT_BRANCH_REF,
            Self::Named(own) if own.starts_with("refs/") => own == name,
            Self::Named(_) | Self::Version(_) => self.may_follow(name),
            Self::Commit(_) => false,
        }
    }

    /// Whether a change of the upstream's ref with this full name may change what the revision resolves to. True if
    /// unknown.
    pub fn may_follow(&self, moved: &str) -> bool {
        let is_branch = moved.starts_with("refs/heads/");
        match self {
            // Only the upstream knows which branch that is.
            Self::DefaultBranch => is_branch,
            // Refs of the provider, such as the merge of a pull request, change with other refs and are not announced.
            _ if self.explicit_ref().is_some() => true,
            Self::Named(name) if name.starts_with("refs/") => name == moved,
            Self::Named(name) => {
                ["refs/heads/", "refs/tags/"].iter().any(|kind| moved.strip_prefix(kind) == Some(name))
            }
            Self::Version(range) => moved.strip_prefix("refs/tags/").is_some_and(|tag| range.version(tag).is_some()),
            // Any push may make it reachable or unreachable.
            Self::Commit(_) => is_branch || moved.starts_with("refs/tags/"),
        }
    }
}

/// The refs besides branches and tags that a fetch has to list for these revisions.
pub fn further_refs<'a>(revisions: impl IntoIterator<Item = &'a Revision>) -> BTreeSet<String> {
    revisions.into_iter().filter_map(Revision::explicit_ref).map(str::to_owned).collect()
}

/// Whether one of these revisions follows the ref with this name in the mirror.
pub(crate) fn follows<'a>(revisions: impl IntoIterator<Item = &'a Revision>, name: &BStr) -> bool {
    name.to_str().is_ok_and(|name| revisions.into_iter().any(|revision| revision.follows(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_the_default_branch_a_name_or_a_full_id() {
        assert_eq!("HEAD".parse(), Ok(Revision::DefaultBranch));
        for name in ["main", "feature/x", "v1.0", "refs/tags/v1", "abc123"] {
            assert_eq!(name.parse(), Ok(Revision::Named(name.to_owned())));
        }
        for length in [40, 64] {
            let id = "a".repeat(length);
            assert_eq!(id.parse(), Ok(Revision::Commit(id.parse().unwrap())));
            assert_eq!(id.parse::<Revision>().unwrap().to_string(), id);
        }
    }

    #[test]
    fn an_invalid_ref_name_is_refused() {
        for text in ["", "a..b", "a b", "a~1", "main^", "refs/heads/", "x.lock", "a:b", "/main", "main/", "a\nb"] {
            assert!(matches!(text.parse::<Revision>(), Err(RevisionParseError::Name(_))), "{text:?}");
        }
        for text in ["refs/weir/HEAD", "refs/weir/x"] {
            assert!(matches!(text.parse::<Revision>(), Err(RevisionParseError::OwnRef(_))), "{text:?}");
        }
        let replacement = format!("refs/replace/{}", "a".repeat(40));
        assert!(matches!(replacement.parse::<Revision>(), Err(RevisionParseError::Replacement(_))));
        assert!("refs/replaced".parse::<Revision>().is_ok());
    }

    #[test]
    fn a_range_of_versions_needs_its_prefix() {
        for text in ["semver:^1.2", "semver:api/v1.*", "semver:>=1.0 <2"] {
            let revision: Revision = text.parse().unwrap();
            assert!(matches!(revision, Revision::Version(_)));
            assert_eq!(revision.to_string(), text);
        }
        // Argo CD takes these for ranges, and they are invalid ref names.
        for text in ["^1.2", "v1.*", "api/1.*", ">=1.0", ">=1.0 <2", "*"] {
            let error = text.parse::<Revision>().unwrap_err();
            assert_eq!(error, RevisionParseError::UnmarkedRange(text.to_owned()));
            assert!(error.to_string().contains(&format!("semver:{text}")), "{error}");
        }
        // These could be ranges, and are valid names of branches and tags.
        for text in ["1.2.3", "v1.x", "1"] {
            assert_eq!(text.parse(), Ok(Revision::Named(text.to_owned())));
        }
        let error = "semver:newest".parse::<Revision>().unwrap_err().to_string();
        assert!(error.contains("newest") && error.contains("^1.2"), "{error}");
    }

    #[test]
    fn only_refs_that_are_neither_branches_nor_tags_are_listed_explicitly() {
        let revisions =
            ["HEAD", "main", "refs/heads/x", "refs/tags/x", "semver:*", "refs/pull/7/head", "refs/changes/1"];
        let revisions: Vec<Revision> = revisions.iter().map(|text| text.parse().unwrap()).collect();
        let twice = revisions.iter().chain(&revisions);
        assert_eq!(further_refs(twice).into_iter().collect::<Vec<_>>(), ["refs/changes/1", "refs/pull/7/head"]);
    }

    #[test]
    fn a_changed_ref_may_concern_the_services_that_follow_it() {
        let commit = "a".repeat(40);
        for (revision, concerned, not) in [
            ("HEAD", &["refs/heads/main", "refs/heads/x"][..], &["refs/tags/v1", "refs/pull/7/head"][..]),
            ("main", &["refs/heads/main", "refs/tags/main"], &["refs/heads/main2", "refs/pull/main"]),
            ("refs/tags/v1", &["refs/tags/v1"], &["refs/heads/v1", "refs/tags/v11"]),
            ("refs/pull/7/merge", &["refs/pull/7/merge", "refs/pull/7/head", "refs/heads/main"], &[]),
            ("semver:api/^1", &["refs/tags/api/v1.2.0"], &["refs/tags/v1.2.0", "refs/tags/api/v2.0.0", "refs/heads/x"]),
            (&commit, &["refs/heads/any", "refs/tags/any"], &["refs/pull/7/head"]),
        ] {
            let revision: Revision = revision.parse().unwrap();
            assert!(concerned.iter().all(|name| revision.may_follow(name)), "{revision}");
            assert!(!not.iter().any(|name| revision.may_follow(name)), "{revision}");
        }
    }
}

//! Revisions: what a service follows (a branch, a tag, a range of versions, a commit), and the commit that this
//! resolves to.

mod reachability;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;

use gix::bstr::{BStr, ByteSlice};
use weir_protocol::commit_id::{CommitId, CommitIdError};

use crate::source::range::{SEMVER, VersionRange, VersionRangeError};

pub(crate) use reachability::ReachabilityCache;
use reachability::ReachabilityError;

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

/// Why a revision resolves to no commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevisionError {
    /// The upstream's `HEAD` points to no branch.
    #[error("the upstream has no default branch (its HEAD points nowhere): name a `ref`")]
    NoDefaultBranch,
    /// The upstream has no such branch or tag.
    #[error("the upstream has no {kind} `{name}`{more}", kind = kind_of_ref(.0), name = .0, more = missing_ref_hint(.0))]
    RefMissing(String),
    /// No tag is a version in the range.
    #[error("no tag of the upstream is a version in `semver:{0}`")]
    NoVersion(VersionRange),
    /// The commit is not in the mirror.
    #[error("commit {0} is not on any branch or tag of the upstream")]
    CommitMissing(CommitId),
    /// The commit is not in the mirror, whose upstream is a shallow clone.
    #[error(
        "commit {0} is not in the upstream, which is a shallow clone: deepen that (`git fetch --unshallow`), or mirror the \
         repository that it was cloned from"
    )]
    CommitTooDeep(CommitId),
    /// The commit is in the mirror, but no branch or tag reaches it: its branch was deleted or forced elsewhere, or it
    /// came with another kind of ref.
    #[error(
        "commit {0} is on no branch or tag of the upstream: its branch was deleted or forced elsewhere, or it came with \
         another ref"
    )]
    CommitUnreachable(CommitId),
    /// The id has another object format than the repository.
    #[error("commit {commit} is a {} id, but the repository uses {repository}", object_format(.commit))]
    OtherFormat {
        /// The requested commit.
        commit: CommitId,
        /// The repository's object format.
        repository: gix::hash::Kind,
    },
    /// The ref points to another kind of object, such as a tagged file.
    #[error("`{0}` does not point to a commit")]
    NotACommit(String),
    /// The mirror is damaged.
    #[error("`{revision}` cannot be read from the mirror: {cause}")]
    Unreadable {
        /// The requested revision.
        revision: String,
        /// The error of the object database.
        cause: String,
    },
    /// `stop` was set.
    #[error("resolving the revision was interrupted")]
    Interrupted,
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
    fn explicit_ref(&self) -> Option<&str> {
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
    pub(crate) fn commit(&self) -> Option<gix::ObjectId> {
        match self {
            Self::Commit(commit) => gix::ObjectId::from_hex(commit.as_str().as_bytes()).ok(),
            _ => None,
        }
    }

    /// Whether it follows the ref with this name in the mirror. A pinned commit follows none.
    pub(crate) fn follows(&self, name: &str) -> bool {
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

/// A resolved revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tip {
    /// The full name of the followed ref; none for a commit id.
    pub(crate) reference: Option<String>,
    /// The object that the ref points to: a commit, or a tag of one.
    pub(crate) object: gix::ObjectId,
    /// The commit.
    pub(crate) commit: CommitId,
}

/// Resolves a revision to a commit. Annotated tags are peeled.
///
/// # Errors
/// The ref or commit does not exist, or is no commit.
pub fn resolve(repo: &gix::Repository, revision: &Revision) -> Result<CommitId, RevisionError> {
    tip(repo, revision, &mut ReachabilityCache::default(), &AtomicBool::new(false)).map(|tip| tip.commit)
}

/// The same with the ref and its object, and with cached reachability. Ends when `stop` is set.
pub(crate) fn tip(
    repo: &gix::Repository,
    revision: &Revision,
    reachability: &mut ReachabilityCache,
    stop: &AtomicBool,
) -> Result<Tip, RevisionError> {
    let unreadable = |cause: &dyn fmt::Display| RevisionError::Unreadable {
        revision: revision.to_string(),
        cause: cause.to_string(),
    };
    let (name, id) = match revision {
        Revision::Commit(commit) => {
            let id = find_commit(repo, commit).map_err(|error| match error {
                RevisionError::CommitMissing(commit) if repo.is_shallow().unwrap_or_default() => {
                    RevisionError::CommitTooDeep(commit)
                }
                other => other,
            })?;
            return match reachability.is_reachable(repo, id, stop) {
                Ok(true) => Ok(Tip { reference: None, object: id, commit: commit.clone() }),
                Ok(false) => Err(RevisionError::CommitUnreachable(commit.clone())),
                Err(ReachabilityError::Interrupted) => Err(RevisionError::Interrupted),
                Err(ReachabilityError::Unreadable(error)) => Err(unreadable(&error)),
            };
        }
        Revision::DefaultBranch => find_ref(repo, &[DEFAULT_BRANCH_REF.to_owned()])
            .map_err(|e| unreadable(&e))?
            .ok_or(RevisionError::NoDefaultBranch)?,
        Revision::Named(name) => {
            let candidates = if name.starts_with("refs/") {
                vec![name.clone()]
            } else {
                vec![format!("refs/heads/{name}"), format!("refs/tags/{name}")]
            };
            find_ref(repo, &candidates)
                .map_err(|e| unreadable(&e))?
                .ok_or_else(|| RevisionError::RefMissing(name.clone()))?
        }
        Revision::Version(range) => find_highest(repo, range)
            .map_err(|e| unreadable(&e))?
            .ok_or_else(|| RevisionError::NoVersion(range.clone()))?,
    };
    let object = repo.find_object(id).map_err(|e| unreadable(&e))?.peel_tags_to_end().map_err(|e| unreadable(&e))?;
    if object.kind != gix::object::Kind::Commit {
        return Err(RevisionError::NotACommit(revision.to_string()));
    }
    let commit = object.id.to_hex().to_string().parse().map_err(|e: CommitIdError| unreadable(&e))?;
    Ok(Tip { reference: Some(name), object: id, commit })
}

/// Finds a commit in the mirror, whether it is reachable or not.
///
/// # Errors
/// There is no such commit.
pub(crate) fn find_commit(repo: &gix::Repository, commit: &CommitId) -> Result<gix::ObjectId, RevisionError> {
    let unreadable =
        |cause: &dyn fmt::Display| RevisionError::Unreadable { revision: commit.to_string(), cause: cause.to_string() };
    let id = gix::ObjectId::from_hex(commit.as_str().as_bytes()).map_err(|e| unreadable(&e))?;
    if id.kind() != repo.object_hash() {
        let (commit, repository) = (commit.clone(), repo.object_hash());
        return Err(RevisionError::OtherFormat { commit, repository });
    }
    match repo.try_find_header(id).map_err(|e| unreadable(&e))? {
        None => Err(RevisionError::CommitMissing(commit.clone())),
        Some(header) if header.kind() == gix::object::Kind::Commit => Ok(id),
        Some(_) => Err(RevisionError::NotACommit(commit.to_string())),
    }
}

/// The tag with the highest version in a range.
fn find_highest(repo: &gix::Repository, range: &VersionRange) -> Result<Option<RefTarget>, gix::Error> {
    let mut tags = Vec::new();
    for reference in repo.references()?.prefixed(format!("refs/tags/{}", range.prefix()).as_str())? {
        let reference = reference?;
        if let Some(tag) = reference.name().as_bstr().strip_prefix(b"refs/tags/")
            && let (Ok(tag), Some(id)) = (tag.to_str(), reference.try_id())
        {
            tags.push((tag.to_owned(), id.detach()));
        }
    }
    let highest = range.highest(tags.iter().map(|(tag, _)| tag.as_str()));
    let found = tags.iter().find(|(tag, _)| Some(tag.as_str()) == highest);
    Ok(found.map(|(tag, id)| (format!("refs/tags/{tag}"), *id)))
}

fn kind_of_ref(name: &str) -> &'static str {
    if name.starts_with("refs/") { "ref" } else { "branch or tag" }
}

fn missing_ref_hint(name: &str) -> &'static str {
    let is_part_of_an_id = (4..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    match Revision::Named(name.to_owned()).explicit_ref() {
        None if is_part_of_an_id => {
            ": check the spelling, or push it; a commit id has all 40 or 64 digits, in lower case"
        }
        None => ": check the spelling, or push it",
        Some(_) => ": check the spelling, or wait for the next poll, which requests it for the first time",
    }
}

fn object_format(commit: &CommitId) -> gix::hash::Kind {
    if commit.as_str().len() == gix::hash::Kind::Sha1.len_in_hex() {
        gix::hash::Kind::Sha1
    } else {
        gix::hash::Kind::Sha256
    }
}

/// A full ref name, and the id that it points to, unpeeled.
type RefTarget = (String, gix::ObjectId);

/// The first existing ref of several full names.
fn find_ref(repo: &gix::Repository, candidates: &[String]) -> Result<Option<RefTarget>, gix::Error> {
    for name in candidates {
        // The only symbolic ref of a mirror is a default branch that does not exist.
        if let Some(reference) = repo.try_find_reference(name.as_str())?
            && let Some(id) = reference.try_id()
        {
            return Ok(Some((name.clone(), id.detach())));
        }
    }
    Ok(None)
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
    fn the_error_for_a_missing_ref_says_what_to_do() {
        let upper_case = "A".repeat(40);
        for (name, words, is_id) in [
            ("mian", "branch or tag `mian`: check the spelling", false),
            ("refs/pull/1/head", "next poll", false),
            ("156efeb", "`156efeb`: check the spelling, or push it; a commit id has all 40", true),
            (&upper_case, "in lower case", true),
        ] {
            let error = RevisionError::RefMissing(name.to_owned()).to_string();
            assert!(error.contains(words) && error.contains("commit id") == is_id, "{error}");
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

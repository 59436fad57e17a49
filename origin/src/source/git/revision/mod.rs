//! From what a service follows to the commit it is at.

mod reachability;
mod version_range;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;

use gix::bstr::ByteSlice;
use weir_protocol::commit_id::{CommitId, CommitIdError};

pub(crate) use reachability::ReachabilityCache;
use reachability::ReachabilityError;
pub use version_range::{VersionRange, VersionRangeError};

/// Where the mirror keeps the commit that the upstream's `HEAD` is at.
pub(crate) const DEFAULT_BRANCH_REF: &str = "refs/weir/HEAD";

/// What the mirror keeps for itself; no upstream's ref goes there.
pub(crate) const OWN_REFS: &str = "refs/weir/";

/// Where Git looks for objects that stand in for others. A mirror heeds none of them, and fetches none.
const REPLACEMENTS: &str = "refs/replace/";

/// What stands before a range of versions. No ref's name can hold a colon.
const SEMVER: &str = "semver:";

/// What a service follows in its repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Revision {
    /// Whatever the upstream's `HEAD` is at.
    #[default]
    DefaultBranch,
    /// A full ref name (`refs/heads/main`, `refs/pull/7/head`), or a short one: a branch of that name wins over a tag.
    Named(String),
    /// The tag with the highest version in a range: `semver:^1.2`.
    Version(VersionRange),
    /// One commit, for as long as a branch or a tag leads to it.
    Commit(CommitId),
}

/// The text cannot name a branch, a tag, a range of versions or a commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevisionParseError {
    /// It is nothing of the kind.
    #[error("ref = `{0}` is not a branch, a tag, `semver:` with a range of versions, or a full commit id")]
    Name(String),
    /// It would be a range of versions if it said so.
    #[error("ref = `{0}` is not a branch or a tag: a range of versions is written `semver:{0}`")]
    UnmarkedRange(String),
    /// The range is none.
    #[error("ref = `semver:…`: {0}")]
    Range(#[from] VersionRangeError),
    /// It names what the mirror keeps for itself.
    #[error("ref = `{0}`: names below `refs/weir/` are the mirror's own")]
    OwnRef(String),
    /// It names what stands in for another object.
    #[error("ref = `{0}`: what is below `refs/replace/` stands in for other objects, and is not followed")]
    Replacement(String),
}

/// Why a revision is not at any commit just now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevisionError {
    /// The upstream names no branch as its default.
    #[error("the upstream has no default branch (its HEAD points nowhere): name a `ref`")]
    NoDefaultBranch,
    /// The upstream has no such branch or tag, or no longer.
    #[error("the upstream has no {kind} `{name}`{more}", kind = kind_of_ref(.0), name = .0, more = missing_ref_hint(.0))]
    RefMissing(String),
    /// No tag is a version in the range.
    #[error("no tag of the upstream is a version in `semver:{0}`")]
    NoVersion(VersionRange),
    /// The commit is not in the mirror.
    #[error("commit {0} is not on any branch or tag of the upstream")]
    CommitMissing(CommitId),
    /// The commit is in the mirror, but nothing that counts leads to it: its branch was deleted or forced elsewhere, or
    /// it came with a ref that is neither a branch nor a tag.
    #[error(
        "commit {0} is on no branch or tag of the upstream now: it was deleted there, or replaced by a forced push"
    )]
    CommitUnreachable(CommitId),
    /// The id is of another format than the repository's.
    #[error("commit {commit} is an id of {}, and the repository is of {repository}", object_format(.commit))]
    OtherFormat {
        /// What was asked for.
        commit: CommitId,
        /// The repository's format.
        repository: gix::hash::Kind,
    },
    /// It is there but leads to something else, such as a tagged file.
    #[error("`{0}` does not lead to a commit")]
    NotACommit(String),
    /// The mirror is damaged.
    #[error("`{revision}` cannot be read from the mirror: {cause}")]
    Unreadable {
        /// What was asked for.
        revision: String,
        /// What the object database said.
        cause: String,
    },
    /// Somebody asked to stop.
    #[error("looking for the commit was interrupted")]
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
        // `>=1` could be a branch, and never is: who writes it means a range.
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
    /// The ref that has to be asked for by its name, because it is neither a branch nor a tag.
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

    /// The commit that is named by its id.
    pub(crate) fn commit(&self) -> Option<gix::ObjectId> {
        match self {
            Self::Commit(commit) => gix::ObjectId::from_hex(commit.as_str().as_bytes()).ok(),
            _ => None,
        }
    }

    /// Whether a ref of the upstream that moved, came or went, by its full name, may concern who follows this. In doubt
    /// it may.
    pub fn may_follow(&self, moved: &str) -> bool {
        let is_branch = moved.starts_with("refs/heads/");
        match self {
            // Which branch that is only the upstream knows.
            Self::DefaultBranch => is_branch,
            // What a provider makes itself, such as the merge of a request, moves with other refs and is not told.
            _ if self.explicit_ref().is_some() => true,
            Self::Named(name) if name.starts_with("refs/") => name == moved,
            Self::Named(name) => {
                ["refs/heads/", "refs/tags/"].iter().any(|kind| moved.strip_prefix(kind) == Some(name))
            }
            Self::Version(range) => moved.strip_prefix("refs/tags/").is_some_and(|tag| range.version(tag).is_some()),
            // Any push may bring it, or leave it behind.
            Self::Commit(_) => is_branch || moved.starts_with("refs/tags/"),
        }
    }
}

/// The refs beyond branches and tags that an upstream has to be asked for so that these can be followed.
pub fn further_refs<'a>(revisions: impl IntoIterator<Item = &'a Revision>) -> BTreeSet<String> {
    revisions.into_iter().filter_map(Revision::explicit_ref).map(str::to_owned).collect()
}

/// Where a revision is at in the mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tip {
    /// The ref that is followed, by its full name; none for a commit that is named by its id.
    pub(crate) reference: Option<String>,
    /// What that points at: a commit, or a tag that leads to one.
    pub(crate) object: gix::ObjectId,
    /// The commit.
    pub(crate) commit: CommitId,
}

/// The commit a revision is at in the mirror; annotated tags are followed to what they tag.
///
/// # Errors
/// When there is no such ref or commit, or when it leads to something that is not a commit.
pub fn resolve(repo: &gix::Repository, revision: &Revision) -> Result<CommitId, RevisionError> {
    tip(repo, revision, &mut ReachabilityCache::default(), &AtomicBool::new(false)).map(|tip| tip.commit)
}

/// The same with the way to the commit, and with what is remembered of the commits that were looked for before. `stop` ends
/// it.
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
            let id = find_commit(repo, commit)?;
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

/// The id of a commit that is in the mirror, whatever leads to it.
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

/// The tag with the highest version in a range, by its full name, and what it points at, unpeeled.
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

/// What a name may be of.
fn kind_of_ref(name: &str) -> &'static str {
    if name.starts_with("refs/") { "ref" } else { "branch or tag" }
}

/// What else may be the reason that a ref is not here.
fn missing_ref_hint(name: &str) -> &'static str {
    match Revision::Named(name.to_owned()).explicit_ref() {
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

/// A ref by its full name, and what it points at, unpeeled.
type RefTarget = (String, gix::ObjectId);

/// The first of these full ref names that exists.
fn find_ref(repo: &gix::Repository, candidates: &[String]) -> Result<Option<RefTarget>, gix::Error> {
    for name in candidates {
        // The only symbolic ref of a mirror is a default branch that the upstream names and does not have.
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
    fn a_ref_that_is_missing_says_what_to_do_and_not_that_it_was_there() {
        for (name, words) in [("mian", "branch or tag `mian`: check the spelling"), ("refs/pull/1/head", "next poll")] {
            let error = RevisionError::RefMissing(name.to_owned()).to_string();
            assert!(error.contains(words) && !error.contains("any more"), "{error}");
        }
    }

    #[test]
    fn what_no_ref_can_be_called_is_refused() {
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
    fn a_range_of_versions_says_that_it_is_one() {
        for text in ["semver:^1.2", "semver:api/v1.*", "semver:>=1.0 <2"] {
            let revision: Revision = text.parse().unwrap();
            assert!(matches!(revision, Revision::Version(_)));
            assert_eq!(revision.to_string(), text);
        }
        // What Argo CD would take for a range, and no ref can be called.
        for text in ["^1.2", "v1.*", "api/1.*", ">=1.0", ">=1.0 <2", "*"] {
            let error = text.parse::<Revision>().unwrap_err();
            assert_eq!(error, RevisionParseError::UnmarkedRange(text.to_owned()));
            assert!(error.to_string().contains(&format!("semver:{text}")), "{error}");
        }
        // What could be one, and could be a branch too, is a branch or a tag: there is a way to say the other.
        for text in ["1.2.3", "v1.x", "1"] {
            assert_eq!(text.parse(), Ok(Revision::Named(text.to_owned())));
        }
        let error = "semver:newest".parse::<Revision>().unwrap_err().to_string();
        assert!(error.contains("newest") && error.contains("^1.2"), "{error}");
    }

    #[test]
    fn only_refs_that_are_neither_branch_nor_tag_are_asked_for_by_name() {
        let revisions =
            ["HEAD", "main", "refs/heads/x", "refs/tags/x", "semver:*", "refs/pull/7/head", "refs/changes/1"];
        let revisions: Vec<Revision> = revisions.iter().map(|text| text.parse().unwrap()).collect();
        let twice = revisions.iter().chain(&revisions);
        assert_eq!(further_refs(twice).into_iter().collect::<Vec<_>>(), ["refs/changes/1", "refs/pull/7/head"]);
    }

    #[test]
    fn a_moved_ref_concerns_who_follows_it_and_in_doubt_who_may() {
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

//! The commit that a revision resolves to.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use gix::bstr::ByteSlice;
use weir_protocol::commit_id::{CommitId, CommitIdError};
use weir_upstream::VersionRange;

use super::followed::{DEFAULT_BRANCH_REF, Revision};
use super::reachability::{ReachabilityCache, ReachabilityError};
use crate::commit::Commit;

/// Its beginning, in seconds since 1970: RFC 3339 has four digits for a year.
const YEAR_10000: u64 = 253_402_300_800;

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

/// A resolved revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tip {
    /// The full name of the followed ref; none for a commit id.
    pub reference: Option<String>,
    /// The object that the ref points to: a commit, or a tag of one.
    pub object: gix::ObjectId,
    /// The commit.
    pub commit: CommitId,
}

/// Resolves a revision to a commit. Annotated tags are peeled.
///
/// # Errors
/// The ref or commit does not exist, or is no commit.
pub fn resolve(repo: &gix::Repository, revision: &Revision) -> Result<CommitId, RevisionError> {
    tip(repo, revision, &mut ReachabilityCache::default(), &AtomicBool::new(false)).map(|tip| tip.commit)
}

/// The same with the ref and its object, and with cached reachability. Ends when `stop` is set.
pub fn tip(
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

/// When a commit was made, as it says. `None`: it cannot be read, or says no time of the years 1970 to 9999.
pub fn committed_at(repo: &gix::Repository, commit: &CommitId) -> Option<SystemTime> {
    let id = gix::ObjectId::from_hex(commit.as_str().as_bytes()).ok()?;
    let seconds = u64::try_from(Commit::read(&repo.objects, id).ok()?.time).ok()?;
    (1..YEAR_10000).contains(&seconds).then(|| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Finds a commit in the mirror, whether it is reachable or not.
///
/// # Errors
/// There is no such commit.
pub fn find_commit(repo: &gix::Repository, commit: &CommitId) -> Result<gix::ObjectId, RevisionError> {
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

/// Whether a commit has this id, or one that begins so. `None`: that cannot be told.
pub fn has_commit(repo: &gix::Repository, name: &str) -> Option<bool> {
    let Ok(prefix) = gix::hash::Prefix::from_hex(name) else { return Some(false) };
    match repo.objects.lookup_prefix(prefix, None).ok()? {
        None => Some(false),
        Some(Ok(id)) => Some(repo.find_header(id).ok()?.kind() == gix::object::Kind::Commit),
        // Several objects.
        Some(Err(())) => None,
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
}

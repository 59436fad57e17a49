//! From what a service follows to the commit it is at.

use std::fmt;
use std::str::FromStr;

use weir_shared::commit_id::{CommitId, CommitIdError};

/// Where the mirror keeps the commit that the upstream's `HEAD` is at.
pub(crate) const DEFAULT_BRANCH_REF: &str = "refs/weir/HEAD";

/// What a service follows in its repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Revision {
    /// Whatever the upstream's `HEAD` is at.
    #[default]
    DefaultBranch,
    /// A full ref name (`refs/heads/main`), or a short one: a branch of that name wins over a tag.
    Named(String),
    /// One commit for good.
    Commit(CommitId),
}

/// The text cannot name a branch, a tag or a commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a branch, a tag or a full commit id")]
pub struct RevisionParseError(String);

/// Why a revision is not at any commit just now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevisionError {
    /// The upstream names no branch as its default.
    #[error("the upstream has no default branch (its HEAD points nowhere): name a `ref`")]
    NoDefaultBranch,
    /// The upstream has no such branch or tag, or no longer.
    #[error("the upstream has no branch or tag `{0}` (any more)")]
    RefMissing(String),
    /// The commit is not in the mirror.
    #[error("commit {0} is not on any branch or tag of the upstream")]
    CommitMissing(CommitId),
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
}

impl FromStr for Revision {
    type Err = RevisionParseError;

    fn from_str(text: &str) -> Result<Self, RevisionParseError> {
        if text == "HEAD" {
            return Ok(Self::DefaultBranch);
        }
        if let Ok(commit) = text.parse::<CommitId>() {
            return Ok(Self::Commit(commit));
        }
        let error = || RevisionParseError(text.chars().take(120).collect());
        let full = if text.starts_with("refs/") { text.to_owned() } else { format!("refs/heads/{text}") };
        if text.is_empty() || gix::validate::reference::name(full.as_bytes().into()).is_err() {
            return Err(error());
        }
        Ok(Self::Named(text.to_owned()))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultBranch => f.write_str("HEAD"),
            Self::Named(name) => f.write_str(name),
            Self::Commit(commit) => f.write_str(commit.as_str()),
        }
    }
}

weir_shared::serde_as_text!(Revision);

/// The commit a revision is at in the mirror; annotated tags are followed to what they tag.
///
/// # Errors
/// When there is no such ref or commit (any more), or when it leads to something that is not a commit.
pub fn resolve(repo: &gix::Repository, revision: &Revision) -> Result<CommitId, RevisionError> {
    let unreadable = |cause: &dyn fmt::Display| RevisionError::Unreadable {
        revision: revision.to_string(),
        cause: cause.to_string(),
    };
    let id = match revision {
        Revision::Commit(commit) => {
            let id = gix::ObjectId::from_hex(commit.as_str().as_bytes()).map_err(|e| unreadable(&e))?;
            match repo.try_find_header(id).map_err(|e| unreadable(&e))? {
                None => return Err(RevisionError::CommitMissing(commit.clone())),
                Some(header) if header.kind() != gix::object::Kind::Commit => {
                    return Err(RevisionError::NotACommit(revision.to_string()));
                }
                Some(_) => return Ok(commit.clone()),
            }
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
    };
    let object = repo.find_object(id).map_err(|e| unreadable(&e))?.peel_tags_to_end().map_err(|e| unreadable(&e))?;
    if object.kind != gix::object::Kind::Commit {
        return Err(RevisionError::NotACommit(revision.to_string()));
    }
    object.id.to_hex().to_string().parse().map_err(|e: CommitIdError| unreadable(&e))
}

/// What the first of these full ref names that exists points at, unpeeled.
fn find_ref(repo: &gix::Repository, candidates: &[String]) -> Result<Option<gix::ObjectId>, gix::Error> {
    for name in candidates {
        // The only symbolic ref of a mirror is a default branch that the upstream names and does not have.
        if let Some(reference) = repo.try_find_reference(name.as_str())?
            && let Some(id) = reference.try_id()
        {
            return Ok(Some(id.detach()));
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
    fn what_no_ref_can_be_called_is_refused() {
        for text in ["", "a..b", "a b", "a~1", "main^", "refs/heads/", "x.lock", "a:b", "/main", "main/", "a\nb"] {
            assert!(text.parse::<Revision>().is_err(), "{text:?}");
        }
    }
}

//! Which refs of the mirror differ from the upstream's, and deleting those that are gone.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use gix::bstr::BString;
use gix::refs::FullName;
use gix::refs::transaction::{Change, PreviousValue, RefEdit, RefLog};
use gix::remote::fetch::RefMap;
use gix::{ObjectId, Repository};

use super::MirrorError;
use super::leftovers::remove_empty_directories;
use crate::revision::{DEFAULT_BRANCH_REF, OWN_REFS};

/// What is asked for: branches and tags as they are, moved by force; the default branch's commit under a name of our own;
/// and what is followed beside them, by its name.
pub(super) fn refspecs(further_refs: &BTreeSet<String>) -> Vec<String> {
    let always = ["+refs/heads/*:refs/heads/*".to_owned(), "+refs/tags/*:refs/tags/*".to_owned()];
    let default_branch = std::iter::once(format!("+HEAD:{DEFAULT_BRANCH_REF}"));
    always.into_iter().chain(default_branch).chain(further_refs.iter().map(|name| format!("+{name}:{name}"))).collect()
}

/// The refs that follow the upstream, by name, with what they point at.
pub(super) type Refs = HashMap<BString, ObjectId>;

/// What is to be done to make the mirror equal to the upstream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Refs to be deleted.
    pub(super) gone: Vec<BString>,
    /// Whether any ref is new or points elsewhere.
    pub(super) moved: bool,
}

impl Difference {
    pub(super) fn between(mirrored: &Refs, advertised: &Refs) -> Self {
        let gone = mirrored.keys().filter(|name| !advertised.contains_key(*name)).cloned().collect();
        let moved = advertised.iter().any(|(name, id)| mirrored.get(name) != Some(id));
        Self { gone, moved }
    }

    pub(super) fn is_none(&self) -> bool {
        self.gone.is_empty() && !self.moved
    }
}

/// What the upstream names, under the names of the mirror. A `HEAD` without a commit is not counted.
pub(super) fn advertised(refs: &RefMap) -> Refs {
    let mappings = refs.mappings.iter();
    mappings.filter_map(|mapping| Some((mapping.local.clone()?, mapping.remote.as_id()?.to_owned()))).collect()
}

/// What the mirror has that follows the upstream, also what is not asked for any more. A symbolic ref is one that an
/// unborn `HEAD` left, and does not count either.
pub(super) fn mirrored(repo: &Repository) -> Result<Refs, MirrorError> {
    let read = || -> gix::Result<Refs> {
        let mut refs = Refs::new();
        for reference in repo.references()?.all()? {
            let reference = reference?;
            let name = reference.name().as_bstr();
            let follows = name == DEFAULT_BRANCH_REF || !name.starts_with(OWN_REFS.as_bytes());
            if follows && let Some(id) = reference.try_id() {
                refs.insert(name.to_owned(), id.detach());
            }
        }
        Ok(refs)
    };
    read().map_err(MirrorError::mirror("list its refs"))
}

/// Deletes refs, and clears the way for a branch that has the name of a folder of branches that are no more.
pub(super) fn delete(repo: &Repository, gone: Vec<BString>) -> Result<(), MirrorError> {
    let delete = || -> gix::Result<()> {
        let mut edits = Vec::new();
        for name in gone {
            let change = Change::Delete { expected: PreviousValue::Any, log: RefLog::AndReference };
            let name = FullName::try_from(name).map_err(gix::Error::from_error)?;
            edits.push(RefEdit { change, name, deref: false });
        }
        if !edits.is_empty() {
            repo.edit_references(edits)?;
        }
        Ok(())
    };
    delete().map_err(MirrorError::mirror("delete refs"))?;
    remove_empty_ref_directories(repo.git_dir())
}

/// Removes what is left of the names of refs that were deleted or only locked.
pub(super) fn remove_empty_ref_directories(repository: &Path) -> Result<(), MirrorError> {
    let remove = || {
        for kind in fs::read_dir(repository.join("refs"))? {
            remove_empty_directories(&kind?.path())?;
        }
        Ok(())
    };
    remove().map_err(MirrorError::local("remove empty ref directories"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refs(names: &[(&str, u8)]) -> Refs {
        names.iter().map(|(name, id)| ((*name).into(), ObjectId::from_bytes_or_panic(&[*id; 20]))).collect()
    }

    #[test]
    fn equal_refs_have_no_difference() {
        let both = refs(&[("refs/heads/a", 1), ("refs/tags/b", 2)]);
        assert!(Difference::between(&both, &both).is_none());
    }

    #[test]
    fn new_moved_and_gone_are_told_apart() {
        let mirrored = refs(&[("refs/heads/a", 1), ("refs/heads/b", 2)]);
        let expect = |advertised: &[(&str, u8)], gone: &[&str], moved| {
            let gone = gone.iter().map(|name| (*name).into()).collect();
            assert_eq!(Difference::between(&mirrored, &refs(advertised)), Difference { gone, moved });
        };
        expect(&[("refs/heads/a", 1)], &["refs/heads/b"], false);
        expect(&[("refs/heads/a", 9), ("refs/heads/b", 2)], &[], true);
        expect(&[("refs/heads/a", 1), ("refs/heads/b", 2), ("refs/tags/c", 3)], &[], true);
        expect(&[("refs/heads/b/1", 2), ("refs/heads/a", 1)], &["refs/heads/b"], true);
    }
}

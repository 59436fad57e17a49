//! Which refs of the mirror differ from the upstream's; deleting those that are gone, and moving the others.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use gix::bstr::{BString, ByteSlice};
use gix::lock::acquire::Fail;
use gix::refs::file::transaction::PackedRefs;
use gix::refs::transaction::{Change, PreviousValue, RefEdit, RefLog};
use gix::refs::{FullName, Target};
use gix::refspec::RefSpec;
use gix::refspec::parse::Operation;
use gix::remote::fetch::RefMap;
use gix::{ObjectId, Repository};

use super::MirrorError;
use super::broken_refs::BrokenRefs;
use super::peeling::Peeling;
use super::stale_files::remove_empty_directories;
use crate::source::git::revision::{DEFAULT_BRANCH_REF, OWN_REFS};

/// What is asked for: branches and tags as they are, moved by force; the default branch's commit under a name of our own;
/// and what is followed beside them, by its name.
pub(super) fn refspecs(further_refs: &BTreeSet<String>) -> Result<Vec<RefSpec>, MirrorError> {
    let always = ["+refs/heads/*:refs/heads/*".to_owned(), "+refs/tags/*:refs/tags/*".to_owned()];
    let default_branch = std::iter::once(format!("+HEAD:{DEFAULT_BRANCH_REF}"));
    let further = further_refs.iter().map(|name| format!("+{name}:{name}"));
    let parse = |spec: String| Ok(gix::refspec::parse(spec.as_str().into(), Operation::Fetch)?.to_owned());
    let parsed = always.into_iter().chain(default_branch).chain(further).map(parse).collect::<gix::Result<_>>();
    parsed.map_err(MirrorError::mirror("ask for the refs that it follows"))
}

/// The refs that follow the upstream, by name, with what they point at.
pub(super) type Refs = HashMap<BString, ObjectId>;

/// What is to be done to make the mirror equal to the upstream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Refs to be deleted.
    pub(super) gone: Vec<BString>,
    /// Whether any ref that can be followed is new or points elsewhere.
    pub(super) moved: bool,
}

impl Difference {
    pub(super) fn between(mirrored: &Refs, advertised: &Refs, broken: &BrokenRefs) -> Self {
        let gone = mirrored.keys().filter(|name| !advertised.contains_key(*name)).cloned().collect();
        let moved = advertised.iter().any(|(name, id)| mirrored.get(name) != Some(id) && !broken.has(name, id));
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
    // What upkeep names for a while may go between the listing of its name and its reading.
    read().or_else(|_| read()).or_else(|_| read()).map_err(MirrorError::mirror("list its refs"))
}

/// Deletes refs, and clears the way for a branch that has the name of a folder of branches that are no more. Where such a
/// folder goes together with its branches, they go first: their locks lie in it.
pub(super) fn delete(repo: &Repository, gone: Vec<BString>) -> Result<(), MirrorError> {
    let delete = |names: BTreeSet<BString>| -> gix::Result<()> {
        let mut edits = Vec::new();
        for name in names {
            let change = Change::Delete { expected: PreviousValue::Any, log: RefLog::AndReference };
            let name = FullName::try_from(name).map_err(gix::Error::from_error)?;
            edits.push(RefEdit { change, name, deref: false });
        }
        if !edits.is_empty() {
            repo.edit_references(edits)?;
        }
        Ok(())
    };
    let mut gone: BTreeSet<BString> = gone.into_iter().collect();
    loop {
        let (folders, others) = folders_and_others(&gone);
        delete(others).map_err(MirrorError::mirror("delete refs"))?;
        remove_empty_ref_directories(repo.git_dir())?;
        if folders.is_empty() {
            return Ok(());
        }
        gone = folders;
    }
}

/// Those of some names that others of them lie in, and the rest. The rest has one name at least.
fn folders_and_others(names: &BTreeSet<BString>) -> (BTreeSet<BString>, BTreeSet<BString>) {
    let is_folder = |name: &BString| {
        let within = BString::from([name.as_slice(), b"/"].concat());
        names.range(within.clone()..).next().is_some_and(|next| next.starts_with(&within))
    };
    names.iter().cloned().partition(is_folder)
}

/// Lets refs of the mirror point where the upstream's do, once `admit` has let in what those that move point at. Those that
/// lead nowhere keep none of the others back, and stay as they are.
pub(super) fn follow(
    repo: &Repository,
    advertised: &Refs,
    interrupt: &AtomicBool,
    admit: impl FnOnce(&BTreeSet<ObjectId>) -> Result<(), MirrorError>,
) -> Result<BrokenRefs, MirrorError> {
    let failed = |error| {
        if interrupt.load(Ordering::Relaxed) {
            MirrorError::Interrupted
        } else {
            MirrorError::mirror("update its refs")(error)
        }
    };
    let mirrored = mirrored(repo)?;
    let peeling = Peeling { objects: &repo.objects, interrupt };
    let (mut broken, mut edits, mut tips) = (BrokenRefs::default(), Vec::new(), BTreeSet::new());
    let mut look = || -> gix::Result<()> {
        for (name, id) in advertised {
            let stays = mirrored.get(name) == Some(id);
            // What stays was looked at when it came.
            let leads_on = stays && repo.has_object(*id);
            if !leads_on && let Some(how) = peeling.check(*id)? {
                broken.add(name, *id, how);
            } else if !stays {
                let name = FullName::try_from(name.as_bstr()).map_err(gix::Error::from_error)?;
                edits.push(RefEdit::update(name, Target::Object(*id), PreviousValue::Any, "fetch"));
                tips.insert(*id);
            }
        }
        Ok(())
    };
    look().map_err(failed)?;
    admit(&tips)?;
    let follow = || -> gix::Result<()> {
        // One file for all, rather than one for each.
        let packed = PackedRefs::DeletionsAndNonSymbolicUpdatesRemoveLooseSourceReference(Box::new(peeling));
        let transaction = repo.refs.transaction().packed_refs(packed);
        transaction.prepare(edits, Fail::Immediately, Fail::Immediately)?.commit(None)?;
        Ok(())
    };
    follow().map_err(failed)?;
    remove_empty_ref_directories(repo.git_dir())?;
    Ok(broken)
}

/// Removes what is left of the names of refs that were deleted or only locked.
fn remove_empty_ref_directories(repository: &Path) -> Result<(), MirrorError> {
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
    fn what_nobody_can_ask_for_is_not_the_upstream_s_fault() {
        assert_eq!(refspecs(&["refs/notes/a".to_owned()].into()).unwrap().len(), 4);
        assert_eq!(refspecs(&["refs/notes/a b".to_owned()].into()).unwrap_err().kind(), "local");
    }

    #[test]
    fn names_that_lie_in_others_go_before_them() {
        let set = |names: &[&str]| names.iter().map(|name| BString::from(*name)).collect::<BTreeSet<_>>();
        let all = set(&["a", "a-b", "a/b", "a/b/c", "ab/c", "b"]);
        let (folders, others) = folders_and_others(&all);
        assert_eq!((&folders, others), (&set(&["a", "a/b"]), set(&["a-b", "a/b/c", "ab/c", "b"])));
        assert_eq!(folders_and_others(&folders), (set(&["a"]), set(&["a/b"])));
        assert_eq!(folders_and_others(&set(&[])), (set(&[]), set(&[])));
    }

    #[test]
    fn equal_refs_have_no_difference() {
        let both = refs(&[("refs/heads/a", 1), ("refs/tags/b", 2)]);
        assert!(Difference::between(&both, &both, &BrokenRefs::default()).is_none());
    }

    #[test]
    fn new_moved_and_gone_are_told_apart() {
        let mirrored = refs(&[("refs/heads/a", 1), ("refs/heads/b", 2)]);
        let expect = |advertised: &[(&str, u8)], gone: &[&str], moved| {
            let gone = gone.iter().map(|name| (*name).into()).collect();
            let found = Difference::between(&mirrored, &refs(advertised), &BrokenRefs::default());
            assert_eq!(found, Difference { gone, moved });
        };
        expect(&[("refs/heads/a", 1)], &["refs/heads/b"], false);
        expect(&[("refs/heads/a", 9), ("refs/heads/b", 2)], &[], true);
        expect(&[("refs/heads/a", 1), ("refs/heads/b", 2), ("refs/tags/c", 3)], &[], true);
        expect(&[("refs/heads/b/1", 2), ("refs/heads/a", 1)], &["refs/heads/b"], true);
    }
}

//! Compares the refs of the mirror with the upstream's, deletes some and updates others.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use gix::bstr::{BString, ByteSlice};
use gix::lock::acquire::Fail;
use gix::refs::file::transaction::PackedRefs;
use gix::refs::transaction::{Change, PreviousValue, RefEdit, RefLog};
use gix::refs::{FullName, Target};
use gix::remote::fetch::RefMap;
use gix::{ObjectId, Repository};

use super::MirrorError;
use super::broken_refs::BrokenRefs;
use super::peeling::Peeling;
use super::stale_files::remove_empty_directories;
use crate::source::git::revision::{DEFAULT_BRANCH_REF, OWN_REFS};

/// Object ids by the name of the ref, without the mirror's own refs.
pub(super) type Refs = HashMap<BString, ObjectId>;

/// The difference between the mirror and its upstream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Refs to delete.
    pub(super) deleted: Vec<BString>,
    /// Whether any unbroken ref is new or changed.
    pub(super) changed: bool,
}

impl Difference {
    pub(super) fn between(mirrored: &Refs, advertised: &Refs, broken: &BrokenRefs) -> Self {
        let deleted = mirrored.keys().filter(|name| !advertised.contains_key(*name)).cloned().collect();
        let changed = advertised.iter().any(|(name, id)| mirrored.get(name) != Some(id) && !broken.has(name, id));
        Self { deleted, changed }
    }

    pub(super) fn is_none(&self) -> bool {
        self.deleted.is_empty() && !self.changed
    }
}

/// The upstream's refs by their names in the mirror. A `HEAD` without a commit is skipped.
pub(super) fn advertised(refs: &RefMap) -> Refs {
    let mappings = refs.mappings.iter();
    mappings.filter_map(|mapping| Some((mapping.local.clone()?, mapping.remote.as_id()?.to_owned()))).collect()
}

/// The mirror's refs that follow the upstream, whether they are still configured or not. Symbolic refs stem from an
/// unborn `HEAD` and are skipped.
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
    // The retained refs of maintenance may be deleted between being listed and being read.
    read().or_else(|_| read()).or_else(|_| read()).map_err(MirrorError::local_gix("list its refs"))
}

/// Deletes refs and empty directories, which would prevent a branch with the name of a former directory. A ref in a
/// directory that is a ref itself goes first, because its lock is in that directory.
pub(super) fn delete(repo: &Repository, deleted: Vec<BString>) -> Result<(), MirrorError> {
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
    let mut deleted: BTreeSet<BString> = deleted.into_iter().collect();
    loop {
        let (directories, others) = split_directories(&deleted);
        delete(others).map_err(MirrorError::local_gix("delete refs"))?;
        remove_empty_ref_directories(repo.git_dir())?;
        if directories.is_empty() {
            return Ok(());
        }
        deleted = directories;
    }
}

/// Splits names into those that are directories of others, and the rest, which is never empty.
fn split_directories(names: &BTreeSet<BString>) -> (BTreeSet<BString>, BTreeSet<BString>) {
    let is_directory = |name: &BString| {
        let within = BString::from([name.as_slice(), b"/"].concat());
        names.range(within.clone()..).next().is_some_and(|next| next.starts_with(&within))
    };
    names.iter().cloned().partition(is_directory)
}

/// Updates refs to the advertised ids, after `admit` has let their objects into the mirror. Broken refs keep their
/// former ids and do not prevent the others.
pub(super) fn update(
    repo: &Repository,
    advertised: &Refs,
    interrupt: &AtomicBool,
    admit: impl FnOnce(&BTreeSet<ObjectId>) -> Result<(), MirrorError>,
) -> Result<BrokenRefs, MirrorError> {
    let failed = |error| {
        if interrupt.load(Ordering::Relaxed) {
            MirrorError::Interrupted
        } else {
            MirrorError::local_gix("update its refs")(error)
        }
    };
    let mirrored = mirrored(repo)?;
    let peeling = Peeling { objects: &repo.objects, interrupt };
    let (mut broken, mut edits, mut tips) = (BrokenRefs::default(), Vec::new(), BTreeSet::new());
    let mut prepare = || -> gix::Result<()> {
        for (name, id) in advertised {
            let unchanged = mirrored.get(name) == Some(id);
            // Unchanged refs were checked when they were fetched.
            let is_known = unchanged && repo.has_object(*id);
            if !is_known && let Some(error) = peeling.check(*id)? {
                broken.add(name, *id, error);
            } else if !unchanged {
                let name = FullName::try_from(name.as_bstr()).map_err(gix::Error::from_error)?;
                edits.push(RefEdit::update(name, Target::Object(*id), PreviousValue::Any, "fetch"));
                tips.insert(*id);
            }
        }
        Ok(())
    };
    prepare().map_err(failed)?;
    admit(&tips)?;
    let commit = || -> gix::Result<()> {
        // All refs go into the file `packed-refs`.
        let packed = PackedRefs::DeletionsAndNonSymbolicUpdatesRemoveLooseSourceReference(Box::new(peeling));
        let transaction = repo.refs.transaction().packed_refs(packed);
        transaction.prepare(edits, Fail::Immediately, Fail::Immediately)?.commit(None)?;
        Ok(())
    };
    commit().map_err(failed)?;
    remove_empty_ref_directories(repo.git_dir())?;
    Ok(broken)
}

/// Removes empty directories of deleted refs and locks.
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
    fn refs_in_a_directory_are_deleted_before_the_ref_of_its_name() {
        let set = |names: &[&str]| names.iter().map(|name| BString::from(*name)).collect::<BTreeSet<_>>();
        let all = set(&["a", "a-b", "a/b", "a/b/c", "ab/c", "b"]);
        let (directories, others) = split_directories(&all);
        assert_eq!((&directories, others), (&set(&["a", "a/b"]), set(&["a-b", "a/b/c", "ab/c", "b"])));
        assert_eq!(split_directories(&directories), (set(&["a"]), set(&["a/b"])));
        assert_eq!(split_directories(&set(&[])), (set(&[]), set(&[])));
    }

    #[test]
    fn equal_refs_have_no_difference() {
        let both = refs(&[("refs/heads/a", 1), ("refs/tags/b", 2)]);
        assert!(Difference::between(&both, &both, &BrokenRefs::default()).is_none());
    }

    #[test]
    fn new_changed_and_deleted_refs_are_distinguished() {
        let mirrored = refs(&[("refs/heads/a", 1), ("refs/heads/b", 2)]);
        let expect = |advertised: &[(&str, u8)], deleted: &[&str], changed| {
            let deleted = deleted.iter().map(|name| (*name).into()).collect();
            let found = Difference::between(&mirrored, &refs(advertised), &BrokenRefs::default());
            assert_eq!(found, Difference { deleted, changed });
        };
        expect(&[("refs/heads/a", 1)], &["refs/heads/b"], false);
        expect(&[("refs/heads/a", 9), ("refs/heads/b", 2)], &[], true);
        expect(&[("refs/heads/a", 1), ("refs/heads/b", 2), ("refs/tags/c", 3)], &[], true);
        expect(&[("refs/heads/b/1", 2), ("refs/heads/a", 1)], &["refs/heads/b"], true);
    }
}

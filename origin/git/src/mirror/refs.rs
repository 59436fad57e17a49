//! Compares the refs of the mirror with the upstream's, deletes some and updates others.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use gix::bstr::{BString, ByteSlice};
use gix::lock::acquire::Fail;
use gix::refs::file::transaction::PackedRefs;
use gix::refs::transaction::{Change, PreviousValue, RefEdit, RefLog};
use gix::refs::{FullName, Target};
use gix::{ObjectId, Repository};
use weir_upstream::UpstreamError;

use super::MirrorError;
use super::left_out::LeftOut;
use super::peeling::{Peeling, RefError};
use super::stale_files::remove_empty_directories;
use crate::revision::{DEFAULT_BRANCH_REF, OWN_REFS};

/// Object ids by the name of the ref, without the mirror's own refs.
pub(super) type Refs = HashMap<BString, ObjectId>;

/// The difference between the mirror and its upstream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Refs to delete.
    pub(super) deleted: Vec<BString>,
    /// New and changed refs to fetch now.
    pub(super) wanted: Refs,
    /// Mirrored refs whose place the wanted ones need.
    pub(super) in_the_way: Vec<BString>,
}

impl Difference {
    pub(super) fn between(
        mirrored: &Refs,
        advertised: &Refs,
        left_out: &LeftOut,
        is_followed: impl Fn(&BString) -> bool,
        now: Instant,
    ) -> Self {
        let changed = || advertised.iter().filter(|(name, id)| mirrored.get(*name) != Some(id));
        // By the object, because several refs may point to it.
        let due = changed().filter(|(name, _)| !left_out.must_wait(name, &is_followed, now));
        let due: HashSet<_> = due.map(|(_, id)| *id).collect();
        let wanted = changed().filter(|(_, id)| due.contains(*id)).map(|(name, id)| (name.clone(), *id)).collect();
        let gone = mirrored.keys().filter(|name| !advertised.contains_key(*name)).cloned();
        // A mirrored ref that is left out is retained, unless one that was fetched needs its place.
        let (unusable, deleted): (Vec<_>, Vec<_>) = gone.partition(|name| left_out.is_unusable(name));
        let in_the_way = unusable.into_iter().filter(|name| conflicts(name, &wanted)).collect();
        Self { deleted, wanted, in_the_way }
    }
}

/// Whether one of the refs is in the folder of this name, or this name in the folder of one.
fn conflicts(name: &BString, refs: &Refs) -> bool {
    let within = BString::from([name.as_slice(), b"/"].concat());
    refs.keys().any(|other| other.starts_with(&within))
        || name.rfind_iter("/").any(|at| refs.contains_key(&BString::from(&name[..at])))
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

/// Updates refs to these ids, after `admit` has let their objects into the mirror. Returns the refs that cannot be
/// peeled. They keep their former ids and do not prevent the others.
pub(super) fn update(
    repo: &Repository,
    wanted: &Refs,
    interrupt: &AtomicBool,
    admit: impl FnOnce(&BTreeSet<ObjectId>) -> Result<(), MirrorError>,
) -> Result<Vec<(BString, RefError)>, MirrorError> {
    let failed = |error| {
        if interrupt.load(Ordering::Relaxed) {
            UpstreamError::Interrupted.into()
        } else {
            MirrorError::local_gix("update its refs")(error)
        }
    };
    let mirrored = mirrored(repo)?;
    let peeling = Peeling { objects: &repo.objects, interrupt };
    let (mut broken, mut edits, mut tips) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut prepare = || -> gix::Result<()> {
        for (name, id) in wanted {
            let unchanged = mirrored.get(name) == Some(id);
            // Unchanged refs were checked when they were fetched.
            let is_known = unchanged && repo.has_object(*id);
            if !is_known && let Some(error) = peeling.check(*id)? {
                broken.push((name.clone(), error));
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
    fn new_changed_deleted_and_left_out_refs_are_distinguished() {
        let (mirrored, now) = (refs(&[("refs/heads/a", 1), ("refs/heads/b", 2)]), Instant::now());
        let mut left_out = LeftOut::default();
        let expect = |advertised: &[(&str, u8)], left_out: &LeftOut, deleted: &[&str], wanted: &[(&str, u8)]| {
            let deleted = deleted.iter().map(|name| (*name).into()).collect();
            let found = Difference::between(&mirrored, &refs(advertised), left_out, |_| false, now);
            assert_eq!((found.deleted, found.wanted), (deleted, refs(wanted)));
        };
        expect(&[("refs/heads/a", 1), ("refs/heads/b", 2)], &left_out, &[], &[]);
        expect(&[("refs/heads/a", 1)], &left_out, &["refs/heads/b"], &[]);
        expect(&[("refs/heads/a", 9), ("refs/heads/b", 2)], &left_out, &[], &[("refs/heads/a", 9)]);
        let new = [("refs/heads/b/1", 2), ("refs/heads/a", 1)];
        expect(&new, &left_out, &["refs/heads/b"], &new[..1]);
        // The listing has `b`, but not in a form that can be stored.
        let unusable = MirrorError::NotFollowed { reference: String::new(), reason: "" };
        left_out.listed(&refs(&new), [("refs/heads/b".into(), unusable.clone())].into());
        expect(&new, &left_out, &[], &new[..1]);
        let found = Difference::between(&mirrored, &refs(&new), &left_out, |_| false, now);
        assert_eq!(found.in_the_way, ["refs/heads/b"], "its place is needed once the other one was fetched");
        left_out.add(&"refs/heads/b/1".into(), refs(&new)[&BString::from("refs/heads/b/1")], unusable, None);
        expect(&new, &left_out, &[], &[]);
    }
}

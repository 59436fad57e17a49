//! Whether a commit is on a branch or a tag.
//!
//! Being in the mirror is not enough: a commit that was pushed away lies there still, and one from a fork may have come
//! with a ref such as `refs/pull/7/head`. Nobody who could push a branch or a tag has stood up for those.

use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gix::{ObjectId, Repository};

use super::DEFAULT_BRANCH_REF;

/// Commits whose answers are remembered at the most, besides those that are looked for together.
const MOST_REMEMBERED: usize = 4096;

/// What is remembered of commits that were looked for, so that a push costs a look at what was pushed, and not at the
/// whole history again.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// As they were at the last look.
    tips: Arc<HashSet<ObjectId>>,
    known: HashMap<ObjectId, Known>,
}

#[derive(Debug)]
enum Known {
    /// This tip led to it.
    From(ObjectId),
    /// None of these tips did. Those who were looked for together share them.
    FromNone(Arc<HashSet<ObjectId>>),
}

/// Whether a commit counts cannot be said.
#[derive(Debug)]
pub(crate) enum ReachError {
    /// Somebody asked to stop.
    Interrupted,
    /// The mirror is damaged.
    Unreadable(gix::Error),
}

impl From<gix::Error> for ReachError {
    fn from(error: gix::Error) -> Self {
        Self::Unreadable(error)
    }
}

impl Reach {
    /// Looks for commits together: from the newest commits back, at most once through the whole history for those that were
    /// never looked for, and once through what is new for those that nothing led to before. `stop`
    /// ends it.
    pub(crate) fn look(
        &mut self,
        repo: &Repository,
        commits: &HashSet<ObjectId>,
        stop: &AtomicBool,
    ) -> Result<(), ReachError> {
        let tips = tips(repo)?;
        if tips != *self.tips {
            self.tips = Arc::new(tips);
        }
        let mut walks: Vec<Walk> = Vec::new();
        for commit in commits.iter().filter(|commit| self.known_now(commit).is_none()) {
            let (dead, proof) = match self.known.get(commit) {
                Some(Known::FromNone(tips)) => (Some(tips), None),
                Some(Known::From(tip)) => (None, Some(*tip)),
                None => (None, None),
            };
            let same = |walk: &Walk| walk.dead.as_ref().map(Arc::as_ptr) == dead.map(Arc::as_ptr);
            let at = walks.iter().position(same).unwrap_or_else(|| {
                walks.push(Walk { dead: dead.cloned(), ..Walk::default() });
                walks.len() - 1
            });
            walks[at].look_for(*commit, proof);
        }
        if self.known.len() > MOST_REMEMBERED {
            self.known.retain(|commit, _| commits.contains(commit));
        }
        for mut walk in walks {
            let found = walk.run(repo, &self.tips, stop)?;
            self.known.extend(found.into_iter().map(|(commit, tip)| (commit, Known::From(tip))));
            self.known.extend(walk.open.into_iter().map(|commit| (commit, Known::FromNone(self.tips.clone()))));
        }
        Ok(())
    }

    /// Whether a branch, a tag or the default branch led to a commit at the last look; it is looked for if it was not then.
    pub(super) fn leads_to(
        &mut self,
        repo: &Repository,
        commit: ObjectId,
        stop: &AtomicBool,
    ) -> Result<bool, ReachError> {
        if let Some(leads) = self.known_now(&commit) {
            return Ok(leads);
        }
        self.look(repo, &HashSet::from([commit]), stop)?;
        Ok(self.known_now(&commit).unwrap_or_default())
    }

    /// What is known of a commit that the tips of the last look have not changed.
    fn known_now(&self, commit: &ObjectId) -> Option<bool> {
        match self.known.get(commit)? {
            Known::From(tip) => self.tips.contains(tip).then_some(true),
            Known::FromNone(tips) => Arc::ptr_eq(tips, &self.tips).then_some(false),
        }
    }
}

/// A walk from all tips back, for several commits.
#[derive(Default)]
struct Walk {
    /// Those that were not come upon yet.
    open: HashSet<ObjectId>,
    /// By the commit that proves it, those that are led to: itself, or a tip that led to it once.
    proofs: HashMap<ObjectId, Vec<ObjectId>>,
    /// Tips that are known to lead to none of them.
    dead: Option<Arc<HashSet<ObjectId>>>,
}

impl Walk {
    fn look_for(&mut self, commit: ObjectId, also: Option<ObjectId>) {
        self.open.insert(commit);
        for proof in [Some(commit), also].into_iter().flatten() {
            self.proofs.entry(proof).or_default().push(commit);
        }
    }

    /// Which of them are led to, each with a tip that does. The others stay open.
    fn run(
        &mut self,
        repo: &Repository,
        tips: &HashSet<ObjectId>,
        stop: &AtomicBool,
    ) -> Result<Vec<(ObjectId, ObjectId)>, ReachError> {
        let shallow = repo.shallow_commits()?;
        let ends_at = |id: &ObjectId| shallow.as_ref().is_some_and(|commits| commits.contains(id));
        let mut found = Vec::new();
        let mut seen: HashSet<ObjectId> = HashSet::new();
        let mut queue = BinaryHeap::new();
        let dead = self.dead.take();
        let reach = |id: ObjectId, tip: ObjectId, queue: &mut BinaryHeap<_>, seen: &mut HashSet<_>| -> gix::Result {
            let leads_nowhere = dead.as_ref().is_some_and(|tips| tips.contains(&id));
            if !leads_nowhere && seen.insert(id) {
                // Only the order depends on it, so a broken date does no harm.
                let seconds = repo.find_commit(id)?.time().map_or(0, |time| time.seconds);
                queue.push((seconds, id, tip));
            }
            Ok(())
        };
        for tip in tips {
            reach(*tip, *tip, &mut queue, &mut seen)?;
        }
        while let Some((_, id, tip)) = queue.pop() {
            if stop.load(Ordering::Relaxed) {
                return Err(ReachError::Interrupted);
            }
            for commit in self.proofs.remove(&id).unwrap_or_default() {
                if self.open.remove(&commit) {
                    found.push((commit, tip));
                }
            }
            if self.open.is_empty() {
                break;
            }
            if !ends_at(&id) {
                for parent in repo.find_commit(id)?.parent_ids() {
                    reach(parent.detach(), tip, &mut queue, &mut seen)?;
                }
            }
        }
        Ok(found)
    }
}

/// The commits that branches, tags and the default branch are at.
fn tips(repo: &Repository) -> gix::Result<HashSet<ObjectId>> {
    let mut tips = HashSet::new();
    let references = repo.references()?;
    for prefix in ["refs/heads/", "refs/tags/", DEFAULT_BRANCH_REF] {
        for reference in references.prefixed(prefix)? {
            let mut reference = reference?;
            // A default branch that the upstream names and does not have, and tags of other things, lead nowhere.
            if reference.try_id().is_some()
                && let Ok(id) = reference.peel_to_id()
                && repo.find_header(id)?.kind() == gix::object::Kind::Commit
            {
                tips.insert(id.detach());
            }
        }
    }
    Ok(tips)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gix::refs::transaction::PreviousValue;
    use proptest::prelude::*;

    /// A commit of an empty tree, at a time of its own.
    fn commit(repo: &Repository, number: usize, parents: Vec<ObjectId>) -> ObjectId {
        let time = gix::date::Time::new(1_700_000_000 + i64::try_from(number).unwrap(), 0);
        let by = gix::actor::Signature { name: "a".into(), email: "a@b".into(), time };
        let tree = repo.write_object(gix::objs::Tree::empty()).unwrap().detach();
        let message = format!("{number}").into();
        let (author, committer) = (by.clone(), by);
        let parents = parents.into();
        let commit =
            gix::objs::Commit { tree, parents, author, committer, encoding: None, message, extra_headers: Vec::new() };
        repo.write_object(commit).unwrap().detach()
    }

    /// All that a tip leads to.
    fn reachable(parents: &[Vec<usize>], tips: &[usize]) -> HashSet<usize> {
        let (mut reached, mut queue) = (HashSet::new(), tips.to_vec());
        while let Some(at) = queue.pop() {
            if reached.insert(at) {
                queue.extend(&parents[at]);
            }
        }
        reached
    }

    #[test]
    fn a_walk_ends_when_it_is_told_to_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let repo = gix::init_bare(dir.path()).unwrap();
        let first = commit(&repo, 0, Vec::new());
        let last = (1..10).fold(first, |before, number| commit(&repo, number, vec![before]));
        repo.reference("refs/heads/main", last, PreviousValue::Any, "").unwrap();
        let mut reach = Reach::default();
        let stopped = reach.leads_to(&repo, first, &AtomicBool::new(true));
        assert!(matches!(stopped, Err(ReachError::Interrupted)));
        assert!(reach.known.is_empty());
        assert!(reach.leads_to(&repo, first, &AtomicBool::new(false)).unwrap());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Whatever moves in between, and whatever is remembered of it.
        #[test]
        fn what_is_looked_for_together_is_what_the_tips_lead_to(
            links in prop::collection::vec(prop::collection::vec(0usize..100, 0..3), 1..20),
            looks in prop::collection::vec(
                (prop::collection::vec(0usize..100, 0..4), prop::collection::vec(0usize..100, 0..8), any::<bool>()), 1..6
            ),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let repo = gix::init_bare(dir.path()).unwrap();
            let (mut ids, mut parents) = (Vec::new(), Vec::new());
            for (number, links) in links.into_iter().enumerate() {
                let of: Vec<usize> = links.iter().filter(|_| number > 0).map(|link| link % number.max(1)).collect();
                ids.push(commit(&repo, number, of.iter().map(|at| ids[*at]).collect()));
                parents.push(of);
            }
            let (mut reach, stop) = (Reach::default(), AtomicBool::new(false));
            for (tips, wanted, together) in looks {
                let tips: Vec<usize> = tips.into_iter().map(|tip| tip % ids.len()).collect();
                for old in repo.references().unwrap().prefixed("refs/heads/").unwrap() {
                    old.unwrap().delete().unwrap();
                }
                for (number, tip) in tips.iter().enumerate() {
                    let name = format!("refs/heads/{number}");
                    repo.reference(name, ids[*tip], PreviousValue::Any, "").unwrap();
                }
                let expected = reachable(&parents, &tips);
                let wanted: HashSet<usize> = wanted.into_iter().map(|at| at % ids.len()).collect();
                let all = wanted.iter().map(|at| ids[*at]).collect();
                // One by one after a look for nothing, which sees that the tips have moved.
                reach.look(&repo, &if together { all } else { HashSet::new() }, &stop).unwrap();
                for at in wanted {
                    prop_assert_eq!(reach.leads_to(&repo, ids[at], &stop).unwrap(), expected.contains(&at));
                }
            }
        }
    }
}

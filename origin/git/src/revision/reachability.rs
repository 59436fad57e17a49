//! Whether a commit is reachable from a branch or a tag.
//!
//! Its presence in the mirror is not enough: it may be left over from a forced push, or come from a fork with a ref
//! such as `refs/pull/7/head`. Nobody with permission to push a branch or a tag approved such commits.

use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gix::{ObjectId, Repository};

use super::followed::DEFAULT_BRANCH_REF;
use crate::commit::Commit;

/// The most cached commits, besides those of the current search.
const MAX_CACHED: usize = 4096;

/// Caches which commits are reachable, so that a push needs a walk over the new commits only, and not over the whole
/// history.
#[derive(Debug, Default)]
pub struct ReachabilityCache {
    /// The commits of all branches and tags at the last search.
    tips: Arc<HashSet<ObjectId>>,
    known: HashMap<ObjectId, Known>,
}

#[derive(Debug)]
enum Known {
    /// The commit is reachable from this tip.
    ReachableFrom(ObjectId),
    /// The commit is reachable from none of these tips, which commits of one search share.
    Unreachable(Arc<HashSet<ObjectId>>),
}

/// The reachability of a commit is unknown.
#[derive(Debug)]
pub enum ReachabilityError {
    /// `stop` was set.
    Interrupted,
    /// The mirror is damaged.
    Unreadable(gix::Error),
}

impl From<gix::Error> for ReachabilityError {
    fn from(error: gix::Error) -> Self {
        Self::Unreadable(error)
    }
}

impl ReachabilityCache {
    /// Searches for commits in one walk per group, newest commits first. Commits without a cache entry cost at most one
    /// walk over the whole history; those that were unreachable cost one walk over the new commits.
    pub fn search(
        &mut self,
        repo: &Repository,
        commits: &HashSet<ObjectId>,
        stop: &AtomicBool,
    ) -> Result<(), ReachabilityError> {
        let tips = tips(repo)?;
        if tips != *self.tips {
            self.tips = Arc::new(tips);
        }
        let mut walks: Vec<Walk> = Vec::new();
        for commit in commits.iter().filter(|commit| self.cached(commit).is_none()) {
            let (excluded, proof) = match self.known.get(commit) {
                Some(Known::Unreachable(tips)) => (Some(tips), None),
                Some(Known::ReachableFrom(tip)) => (None, Some(*tip)),
                None => (None, None),
            };
            let same = |walk: &Walk| walk.excluded.as_ref().map(Arc::as_ptr) == excluded.map(Arc::as_ptr);
            let at = walks.iter().position(same).unwrap_or_else(|| {
                walks.push(Walk { excluded: excluded.cloned(), ..Walk::default() });
                walks.len() - 1
            });
            walks[at].add(*commit, proof);
        }
        if self.known.len() > MAX_CACHED {
            self.known.retain(|commit, _| commits.contains(commit));
        }
        for mut walk in walks {
            let found = walk.run(repo, &self.tips, stop)?;
            self.known.extend(found.into_iter().map(|(commit, tip)| (commit, Known::ReachableFrom(tip))));
            self.known.extend(walk.pending.into_iter().map(|commit| (commit, Known::Unreachable(self.tips.clone()))));
        }
        Ok(())
    }

    /// Whether a commit is reachable from a branch, a tag or the default branch at the last search. A commit without a
    /// valid cache entry is searched now.
    pub(super) fn is_reachable(
        &mut self,
        repo: &Repository,
        commit: ObjectId,
        stop: &AtomicBool,
    ) -> Result<bool, ReachabilityError> {
        if let Some(leads) = self.cached(&commit) {
            return Ok(leads);
        }
        self.search(repo, &HashSet::from([commit]), stop)?;
        Ok(self.cached(&commit).unwrap_or_default())
    }

    /// The cached result for a commit, if the tips of the last search did not invalidate it.
    fn cached(&self, commit: &ObjectId) -> Option<bool> {
        match self.known.get(commit)? {
            Known::ReachableFrom(tip) => self.tips.contains(tip).then_some(true),
            Known::Unreachable(tips) => Arc::ptr_eq(tips, &self.tips).then_some(false),
        }
    }
}

/// A walk from all tips towards the roots, in search of several commits.
#[derive(Default)]
struct Walk {
    /// The commits that are not found yet.
    pending: HashSet<ObjectId>,
    /// The commits by what proves that they are reachable: themselves, or a tip that once reached them.
    proofs: HashMap<ObjectId, Vec<ObjectId>>,
    /// Tips known to reach none of the commits.
    excluded: Option<Arc<HashSet<ObjectId>>>,
}

impl Walk {
    fn add(&mut self, commit: ObjectId, also: Option<ObjectId>) {
        self.pending.insert(commit);
        for proof in [Some(commit), also].into_iter().flatten() {
            self.proofs.entry(proof).or_default().push(commit);
        }
    }

    /// Returns the reachable commits, each with a tip that reaches it. The others stay in `pending`.
    fn run(
        &mut self,
        repo: &Repository,
        tips: &HashSet<ObjectId>,
        stop: &AtomicBool,
    ) -> Result<Vec<(ObjectId, ObjectId)>, ReachabilityError> {
        let shallow = repo.shallow_commits()?;
        let ends_at = |id: &ObjectId| shallow.as_ref().is_some_and(|commits| commits.contains(id));
        let mut found = Vec::new();
        let mut seen: HashSet<ObjectId> = HashSet::new();
        let mut queue = BinaryHeap::new();
        let excluded = self.excluded.take();
        let reach = |id: ObjectId, tip: ObjectId, queue: &mut BinaryHeap<_>, seen: &mut HashSet<_>| -> gix::Result {
            let is_excluded = excluded.as_ref().is_some_and(|tips| tips.contains(&id));
            if !is_excluded && seen.insert(id) {
                // Only the order depends on it, so a wrong date is harmless.
                queue.push((Commit::read(&repo.objects, id)?.time, id, tip));
            }
            Ok(())
        };
        for tip in tips {
            reach(*tip, *tip, &mut queue, &mut seen)?;
        }
        while let Some((_, id, tip)) = queue.pop() {
            if stop.load(Ordering::Relaxed) {
                return Err(ReachabilityError::Interrupted);
            }
            for commit in self.proofs.remove(&id).unwrap_or_default() {
                if self.pending.remove(&commit) {
                    found.push((commit, tip));
                }
            }
            if self.pending.is_empty() {
                break;
            }
            if !ends_at(&id) {
                for parent in Commit::read(&repo.objects, id)?.parents {
                    reach(parent, tip, &mut queue, &mut seen)?;
                }
            }
        }
        Ok(found)
    }
}

/// The commits of all branches, tags and the default branch.
fn tips(repo: &Repository) -> gix::Result<HashSet<ObjectId>> {
    let mut tips = HashSet::new();
    let references = repo.references()?;
    for prefix in ["refs/heads/", "refs/tags/", DEFAULT_BRANCH_REF] {
        for reference in references.prefixed(prefix)? {
            let mut reference = reference?;
            // A missing default branch, and tags of other objects, reach no commit.
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
    use super::super::is_ancestor;
    use super::*;
    use gix::refs::transaction::PreviousValue;
    use proptest::prelude::*;

    /// A commit with an empty tree and its own time.
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

    /// All commits that the tips reach.
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
    fn an_interrupted_walk_caches_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let repo = gix::init_bare(dir.path()).unwrap();
        let first = commit(&repo, 0, Vec::new());
        let last = (1..10).fold(first, |before, number| commit(&repo, number, vec![before]));
        repo.reference("refs/heads/main", last, PreviousValue::Any, "").unwrap();
        let mut reach = ReachabilityCache::default();
        let stopped = reach.is_reachable(&repo, first, &AtomicBool::new(true));
        assert!(matches!(stopped, Err(ReachabilityError::Interrupted)));
        assert!(reach.known.is_empty());
        assert!(reach.is_reachable(&repo, first, &AtomicBool::new(false)).unwrap());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Whatever changes between searches, and whatever is cached.
        #[test]
        fn a_joint_search_finds_the_commits_reachable_from_the_tips(
            links in prop::collection::vec(prop::collection::vec(0usize..100, 0..3), 1..20),
            searches in prop::collection::vec(
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
            let (mut reach, stop) = (ReachabilityCache::default(), AtomicBool::new(false));
            for (tips, commits, together) in searches {
                let tips: Vec<usize> = tips.into_iter().map(|tip| tip % ids.len()).collect();
                for old in repo.references().unwrap().prefixed("refs/heads/").unwrap() {
                    old.unwrap().delete().unwrap();
                }
                for (number, tip) in tips.iter().enumerate() {
                    let name = format!("refs/heads/{number}");
                    repo.reference(name, ids[*tip], PreviousValue::Any, "").unwrap();
                }
                let expected = reachable(&parents, &tips);
                let commits: HashSet<usize> = commits.into_iter().map(|at| at % ids.len()).collect();
                let all = commits.iter().map(|at| ids[*at]).collect();
                // One by one after an empty search, which notices the changed tips.
                reach.search(&repo, &if together { all } else { HashSet::new() }, &stop).unwrap();
                for at in commits {
                    let id = |at: usize| ids[at].to_hex().to_string().parse().unwrap();
                    for tip in &tips {
                        let expected = at != *tip && reachable(&parents, &[*tip]).contains(&at);
                        prop_assert_eq!(is_ancestor(&repo, &id(at), &id(*tip), &stop), expected);
                    }
                    prop_assert_eq!(reach.is_reachable(&repo, ids[at], &stop).unwrap(), expected.contains(&at));
                }
            }
        }
    }
}

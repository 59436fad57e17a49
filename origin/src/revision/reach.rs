//! Whether a commit is on a branch or a tag.
//!
//! Being in the mirror is not enough: a commit that was pushed away lies there still, and one from a fork may have come
//! with a ref such as `refs/pull/7/head`. Nobody who could push a branch or a tag has stood up for those.

use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use gix::{ObjectId, Repository};

use super::DEFAULT_BRANCH_REF;

/// Commits whose answers are remembered at the most; then all are forgotten and looked for again.
const MOST_REMEMBERED: usize = 4096;

/// What is remembered of commits that were looked for, so that a push costs a look at what was pushed, and not at the
/// whole history again.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    known: HashMap<ObjectId, Known>,
}

#[derive(Debug)]
enum Known {
    /// This tip led to it.
    From(ObjectId),
    /// None of these tips did.
    FromNone(HashSet<ObjectId>),
}

/// Whether a commit counts cannot be said.
#[derive(Debug)]
pub(super) enum ReachError {
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
    /// Whether a branch, a tag or the default branch leads to a commit just now. Walks from the newest commits back, at
    /// most through the whole history; `stop` ends it.
    pub(super) fn leads_to(
        &mut self,
        repo: &Repository,
        commit: ObjectId,
        stop: &AtomicBool,
    ) -> Result<bool, ReachError> {
        let tips = tips(repo)?;
        let known = self.known.get(&commit);
        if let Some(Known::From(tip)) = known
            && tips.contains(tip)
        {
            return Ok(true);
        }
        let found = walk(repo, &tips, commit, known, stop)?;
        if self.known.len() >= MOST_REMEMBERED {
            self.known.clear();
        }
        self.known.insert(commit, found.map_or(Known::FromNone(tips), Known::From));
        Ok(found.is_some())
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

/// Which tip leads to the commit, newest commits first.
fn walk(
    repo: &Repository,
    tips: &HashSet<ObjectId>,
    commit: ObjectId,
    known: Option<&Known>,
    stop: &AtomicBool,
) -> Result<Option<ObjectId>, ReachError> {
    let shallow = repo.shallow_commits()?;
    let ends_at = |id: &ObjectId| shallow.as_ref().is_some_and(|commits| commits.contains(id));
    let mut seen: HashSet<ObjectId> = HashSet::new();
    let mut queue = BinaryHeap::new();
    let reach = |id: ObjectId, tip: ObjectId, queue: &mut BinaryHeap<_>, seen: &mut HashSet<_>| -> gix::Result {
        let leads_nowhere = matches!(known, Some(Known::FromNone(tips)) if tips.contains(&id));
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
        if id == commit || matches!(known, Some(Known::From(known)) if *known == id) {
            return Ok(Some(tip));
        }
        if !ends_at(&id) {
            for parent in repo.find_commit(id)?.parent_ids() {
                reach(parent.detach(), tip, &mut queue, &mut seen)?;
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_ends_when_it_is_told_to_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let repo = gix::open_opts(gix::init_bare(dir.path()).unwrap().path(), gix::open::Options::isolated()).unwrap();
        let tree = repo.write_object(gix::objs::Tree::empty()).unwrap().detach();
        let who = gix::actor::SignatureRef { name: "a".into(), email: "a@example.com".into(), time: "1 +0000" };
        let mut commits = Vec::new();
        for number in 0..10 {
            let parents = commits.last().copied();
            let id = repo.commit_as(who, who, "refs/heads/main", number.to_string(), tree, parents).unwrap();
            commits.push(id.detach());
        }
        let mut reach = Reach::default();
        let stopped = reach.leads_to(&repo, commits[0], &AtomicBool::new(true));
        assert!(matches!(stopped, Err(ReachError::Interrupted)));
        assert!(reach.known.is_empty());
        assert!(reach.leads_to(&repo, commits[0], &AtomicBool::new(false)).unwrap());
    }
}

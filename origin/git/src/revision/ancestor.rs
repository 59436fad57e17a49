//! Whether a commit is an ancestor of another one, as far as a walk within bounds tells.

use std::collections::{BinaryHeap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use gix::{ObjectId, Repository};
use weir_protocol::commit_id::CommitId;

use super::find_commit;
use crate::commit::Commit;

/// The most commits to read: a copy of an upstream does not lag by more.
const MAX_COMMITS: usize = 10_000;

/// How far clocks of committers may differ, in seconds. Older commits are not read, so that a push costs few of them.
const MAX_SKEW: i64 = 24 * 60 * 60;

/// Whether `commit` is an ancestor of `of`, and another commit. False if the mirror does not tell: it may lack commits.
pub fn is_ancestor(repository: &Repository, commit: &CommitId, of: &CommitId, stop: &AtomicBool) -> bool {
    let find = |commit| find_commit(repository, commit).ok();
    let Some((wanted, start)) = find(commit).zip(find(of)).filter(|(wanted, start)| wanted != start) else {
        return false;
    };
    let read = |id: ObjectId| Commit::read(&repository.objects, id).ok();
    let oldest = read(wanted).map_or(0, |commit| commit.time.saturating_sub(MAX_SKEW));
    let (mut seen, mut queue) = (HashSet::from([start]), BinaryHeap::from([(i64::MAX, start)]));
    while let Some((_, id)) = queue.pop().filter(|_| seen.len() < MAX_COMMITS && !stop.load(Ordering::Relaxed)) {
        for parent in read(id).into_iter().flat_map(|commit| commit.parents) {
            if parent == wanted {
                return true;
            }
            if let Some(commit) = Some(parent).filter(|parent| seen.insert(*parent)).and_then(read)
                && commit.time >= oldest
            {
                queue.push((commit.time, parent));
            }
        }
    }
    false
}

//! The newest revision of each ref, as origins announce it. In memory only.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use weir_protocol::event::{RevisionSeen, Upstream};
use weir_protocol::name::RepositoryName;
use weir_protocol::revision_id::RevisionId;

/// The most refs per origin. Further ones are dropped.
pub(super) const MAX_REFS: usize = 50_000;

/// The longest ref, in bytes.
const MAX_REF_BYTES: usize = 1024;

/// The revision status of a ref that a service follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RevisionStatus {
    /// The published content is current as of this revision.
    pub(crate) revision_id: RevisionId,
    /// Since when the upstream does not answer; `None` while it does.
    pub(crate) upstream_unreachable_since: Option<SystemTime>,
}

/// The announced revisions of all origins, by their ids.
#[derive(Debug)]
pub(crate) struct Revisions {
    origins: Vec<RwLock<OriginRevisions>>,
    /// Of each repository whose upstream could once not be reached.
    upstreams: Mutex<HashMap<RepositoryName, Upstream>>,
}

#[derive(Debug, Default)]
struct OriginRevisions {
    /// With the number of the last snapshot that contained each.
    refs: HashMap<RepositoryName, HashMap<String, (RevisionSeen, u64)>>,
    count: usize,
    /// The number of the current snapshot.
    snapshot: u64,
}

impl Revisions {
    pub(super) fn new(origins: usize) -> Self {
        Self { origins: (0..origins).map(|_| RwLock::default()).collect(), upstreams: Mutex::default() }
    }

    /// Records whether the upstream of a repository can be reached. False: that is no news. All are taken for reachable at first.
    pub(super) fn record_upstream(&self, seen: &RevisionSeen) -> bool {
        let mut upstreams = self.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = upstreams.get_mut(&seen.repository) {
            return std::mem::replace(known, seen.upstream) != seen.upstream;
        }
        let is_news = !seen.upstream.reachable && upstreams.len() < MAX_REFS;
        if is_news {
            upstreams.insert(seen.repository.clone(), seen.upstream);
        }
        is_news
    }

    /// The upstreams that could once not be reached.
    pub(crate) fn upstreams(&self) -> HashMap<RepositoryName, Upstream> {
        self.upstreams.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records an announced revision. False: the bound is reached.
    pub(crate) fn record(&self, origin: usize, seen: &RevisionSeen) -> bool {
        let mut all = self.origins[origin].write().unwrap_or_else(PoisonError::into_inner);
        let snapshot = all.snapshot;
        let known = all.refs.get_mut(&seen.repository).and_then(|refs| refs.get_mut(&seen.followed_ref));
        if let Some(known) = known {
            *known = (seen.clone(), snapshot);
            return true;
        }
        if all.count >= MAX_REFS || seen.followed_ref.len() > MAX_REF_BYTES {
            return false;
        }
        let refs = all.refs.entry(seen.repository.clone()).or_default();
        refs.insert(seen.followed_ref.clone(), (seen.clone(), snapshot));
        all.count += 1;
        true
    }

    /// The revisions of all refs.
    pub(crate) fn all(&self) -> Vec<RevisionSeen> {
        let of_origin = |origin: &RwLock<OriginRevisions>| {
            let all = origin.read().unwrap_or_else(PoisonError::into_inner);
            all.refs.values().flat_map(HashMap::values).map(|(seen, _)| seen.clone()).collect::<Vec<_>>()
        };
        self.origins.iter().flat_map(of_origin).collect()
    }

    /// Removes the refs of a repository that the origin released.
    pub(super) fn release(&self, origin: usize, repository: &RepositoryName) {
        let mut all = self.origins[origin].write().unwrap_or_else(PoisonError::into_inner);
        let released = all.refs.remove(repository).map_or(0, |refs| refs.len());
        all.count -= released;
    }

    pub(crate) fn snapshot_begun(&self, origin: usize) {
        self.origins[origin].write().unwrap_or_else(PoisonError::into_inner).snapshot += 1;
    }

    /// Removes refs that the snapshot did not contain.
    pub(crate) fn snapshot_ended(&self, origin: usize) {
        let mut all = self.origins[origin].write().unwrap_or_else(PoisonError::into_inner);
        let snapshot = all.snapshot;
        all.refs.retain(|_, refs| {
            refs.retain(|_, (_, named_in)| *named_in == snapshot);
            !refs.is_empty()
        });
        all.count = all.refs.values().map(HashMap::len).sum();
    }

    pub(super) fn get(&self, origin: usize, repository: &RepositoryName, followed_ref: &str) -> Option<RevisionStatus> {
        let all = self.origins[origin].read().unwrap_or_else(PoisonError::into_inner);
        all.refs.get(repository)?.get(followed_ref).map(|(seen, _)| RevisionStatus {
            revision_id: seen.revision_id.clone(),
            upstream_unreachable_since: (!seen.upstream.reachable).then_some(seen.upstream.since),
        })
    }

    /// The number of refs of the origin that has most, and the most.
    pub(super) fn fill_level(&self) -> (u64, u64) {
        let count =
            |origin: &RwLock<OriginRevisions>| origin.read().unwrap_or_else(PoisonError::into_inner).count as u64;
        (self.origins.iter().map(count).max().unwrap_or_default(), MAX_REFS as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};
    use weir_protocol::event::Upstream;

    fn seen(followed_ref: &str, revision: &str, reachable: bool) -> RevisionSeen {
        let since = UNIX_EPOCH + Duration::from_secs(60);
        RevisionSeen {
            repository: "shop".parse().unwrap(),
            followed_ref: followed_ref.to_owned(),
            revision_id: revision.parse().unwrap(),
            seen_at: UNIX_EPOCH,
            upstream: Upstream { reachable, since },
        }
    }

    #[test]
    fn a_snapshot_replaces_the_revisions_of_one_origin() {
        let (revisions, shop) = (Revisions::new(2), "shop".parse().unwrap());
        for origin in 0..2 {
            assert!(revisions.record(origin, &seen("main", "sha1:aa", true)));
            assert!(revisions.record(origin, &seen("semver:1.x", "sha1:bb", false)));
        }
        revisions.snapshot_begun(0);
        assert!(revisions.record(0, &seen("main", "sha1:cc", false)));
        assert!(revisions.get(0, &shop, "semver:1.x").is_some(), "it may still be named");
        revisions.snapshot_ended(0);
        assert_eq!(revisions.get(0, &shop, "semver:1.x"), None);
        let main = revisions.get(0, &shop, "main").unwrap();
        assert_eq!(main.revision_id.as_str(), "sha1:cc");
        assert_eq!(main.upstream_unreachable_since, Some(UNIX_EPOCH + Duration::from_secs(60)));
        assert_eq!(revisions.get(1, &shop, "main").unwrap().upstream_unreachable_since, None);
        assert_eq!(revisions.fill_level().0, 2);
        revisions.release(1, &shop);
        assert_eq!((revisions.get(1, &shop, "main"), revisions.fill_level().0), (None, 1));
    }

    #[test]
    fn only_what_changes_of_an_upstream_is_news() {
        let revisions = Revisions::new(1);
        let said = |reachable| revisions.record_upstream(&seen("main", "sha1:aa", reachable));
        assert_eq!([true, false, false, true, true, false].map(said), [false, true, false, true, false, true]);
        assert_eq!(revisions.upstreams().len(), 1);
    }

    #[test]
    fn the_number_of_refs_and_their_length_are_bounded() {
        let revisions = Revisions::new(1);
        assert!(!revisions.record(0, &seen(&"x".repeat(MAX_REF_BYTES + 1), "sha1:aa", true)));
        for number in 0..MAX_REFS {
            assert!(revisions.record(0, &seen(&format!("r{number}"), "sha1:aa", true)));
        }
        assert!(!revisions.record(0, &seen("one-more", "sha1:aa", true)));
        assert!(revisions.record(0, &seen("r0", "sha1:bb", true)), "a known ref can change");
    }
}

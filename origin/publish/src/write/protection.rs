//! Protects objects that no record references yet: those that attempts are storing.
//!
//! An object is deleted if two marks, a grace period apart, found it unreferenced and nothing stored it in between.
//! If an attempt ends during a collection, its objects stay protected until that collection ends, because its record
//! may be newer than the mark.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use weir_protocol::digest::ObjectDigest;

/// The most unreferenced objects to track in a repository; more wait for a later collection.
const MAX_CANDIDATES: usize = 1_000_000;

/// The protected objects of a repository.
#[derive(Debug, Default)]
pub(crate) struct Protected {
    state: Mutex<State>,
    deletion_ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// How many attempts store each object.
    attempts: HashMap<ObjectDigest, usize>,
    /// Released since the running collection began.
    released: Option<HashSet<ObjectDigest>>,
    deleting: HashSet<ObjectDigest>,
    /// Since when every mark has found the object unreferenced.
    unreferenced_since: HashMap<ObjectDigest, Instant>,
    /// An attempt has ended since the last mark began: nothing may reference its objects.
    has_ended: bool,
}

impl State {
    fn is_protected(&self, digest: &ObjectDigest) -> bool {
        self.attempts.contains_key(digest) || self.released.as_ref().is_some_and(|released| released.contains(digest))
    }
}

/// Protects the objects of one attempt until dropped.
#[derive(Debug)]
pub(crate) struct Protection {
    protected: Arc<Protected>,
    digests: Mutex<HashSet<ObjectDigest>>,
}

impl Protection {
    pub(crate) fn new(protected: Arc<Protected>) -> Self {
        Self { protected, digests: Mutex::default() }
    }

    /// Protects an object before it is stored. Waits if the object is being deleted.
    pub(crate) async fn add(&self, digest: ObjectDigest) {
        loop {
            let ended = self.protected.deletion_ended.notified();
            {
                let mut state = self.protected.lock();
                if !state.deleting.contains(&digest) {
                    if self.digests.lock().unwrap_or_else(PoisonError::into_inner).insert(digest) {
                        *state.attempts.entry(digest).or_default() += 1;
                    }
                    state.unreferenced_since.remove(&digest);
                    return;
                }
            }
            ended.await;
        }
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        let mut state = self.protected.lock();
        let digests = std::mem::take(self.digests.get_mut().unwrap_or_else(PoisonError::into_inner));
        state.has_ended |= !digests.is_empty();
        for digest in digests {
            if let Some(attempts) = state.attempts.get_mut(&digest) {
                *attempts -= 1;
                if *attempts == 0 {
                    state.attempts.remove(&digest);
                }
            }
            if let Some(released) = &mut state.released {
                released.insert(digest);
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Collection<'a>(&'a Protected);

impl Protected {
    /// Begins a collection; must precede reading the state to mark. One at a time.
    pub(crate) fn begin_collection(&self) -> Collection<'_> {
        let mut state = self.lock();
        (state.released, state.has_ended) = (Some(HashSet::new()), false);
        drop(state);
        Collection(self)
    }

    /// Forgets since when objects are unreferenced: another origin may have stored them again since.
    pub(crate) fn forget_unreferenced(&self) {
        self.lock().unreferenced_since.clear();
    }

    /// Whether another mark would find objects of an ended attempt, or ones that it may delete: they have been unreferenced
    /// for a grace period.
    pub(crate) fn needs_mark(&self, now: Instant, grace: Duration) -> bool {
        let state = self.lock();
        let mut since = state.unreferenced_since.values();
        state.has_ended || since.any(|since| now.saturating_duration_since(*since) >= grace)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collection<'_> {
    /// Takes the unreferenced objects of a mark. Returns how many they are, and those that may be deleted now.
    pub(crate) fn unreferenced(
        &self,
        found: impl Iterator<Item = ObjectDigest>,
        now: Instant,
        grace: Duration,
    ) -> (usize, Vec<ObjectDigest>) {
        let mut state = self.0.lock();
        let before = std::mem::take(&mut state.unreferenced_since);
        let since = found.filter(|digest| !state.is_protected(digest)).take(MAX_CANDIDATES);
        let since: HashMap<_, _> = since.map(|digest| (digest, before.get(&digest).copied().unwrap_or(now))).collect();
        // An object that is unreferenced for the first time stays, whatever the grace period is.
        let is_due = |digest: &ObjectDigest, since: Instant| {
            before.contains_key(digest) && now.saturating_duration_since(since) >= grace
        };
        let due = since.iter().filter(|(digest, since)| is_due(digest, **since)).map(|(digest, _)| *digest).collect();
        let count = since.len();
        state.unreferenced_since = since;
        (count, due)
    }

    /// Whether an object may be deleted: nothing has stored it since the mark. [`Collection::end_deletion`] must
    /// follow.
    pub(crate) fn begin_deletion(&self, digest: &ObjectDigest) -> bool {
        let mut state = self.0.lock();
        let may_go = !state.is_protected(digest) && state.unreferenced_since.contains_key(digest);
        if may_go {
            state.deleting.insert(*digest);
        }
        may_go
    }

    /// Ends a deletion. `is_gone`: it succeeded.
    pub(crate) fn end_deletion(&self, digest: &ObjectDigest, is_gone: bool) {
        let mut state = self.0.lock();
        state.deleting.remove(digest);
        if is_gone {
            state.unreferenced_since.remove(digest);
        }
        drop(state);
        self.0.deletion_ended.notify_waiters();
    }
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.released = None;
        // For a collection that was cancelled during a deletion.
        state.deleting.clear();
        drop(state);
        self.0.deletion_ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const GRACE: Duration = Duration::from_secs(100);

    fn object(number: u8) -> ObjectDigest {
        ObjectDigest::of(&[number])
    }

    /// What a collection `seconds` after `start` may delete, if these objects are unreferenced.
    fn collect(protected: &Protected, start: Instant, seconds: u64, found: &[u8]) -> Vec<ObjectDigest> {
        let found = found.iter().map(|number| object(*number));
        let mut due = protected.begin_collection().unreferenced(found, start + Duration::from_secs(seconds), GRACE).1;
        due.sort();
        due
    }

    #[test]
    fn an_object_is_deleted_after_a_grace_period_without_a_reference() {
        let (protected, start) = (Protected::default(), Instant::now());
        assert!(collect(&protected, start, 0, &[1, 2]).is_empty());
        assert!(collect(&protected, start, 60, &[2]).is_empty(), "1 is referred to again");
        assert_eq!(collect(&protected, start, 100, &[1, 2]), [object(2)]);
        assert_eq!(collect(&protected, start, 200, &[1]), [object(1)]);
    }

    #[tokio::test]
    async fn objects_of_an_attempt_are_protected_and_then_count_as_new() {
        let (protected, start) = (Arc::new(Protected::default()), Instant::now());
        assert!(collect(&protected, start, 0, &[1]).is_empty());
        let attempt = Protection::new(protected.clone());
        attempt.add(object(1)).await;
        assert!(collect(&protected, start, 150, &[1]).is_empty(), "it is being stored");
        drop(attempt);
        assert!(collect(&protected, start, 160, &[1]).is_empty(), "it was stored since");
        assert_eq!(collect(&protected, start, 260, &[1]), [object(1)]);
    }

    #[tokio::test]
    async fn an_attempt_that_ends_during_a_collection_protects_to_its_end() {
        let (protected, start) = (Arc::new(Protected::default()), Instant::now());
        assert!(collect(&protected, start, 0, &[1]).is_empty());
        let collection = protected.begin_collection();
        let attempt = Protection::new(protected.clone());
        attempt.add(object(1)).await;
        drop(attempt);
        let (count, due) = collection.unreferenced([object(1)].into_iter(), start + GRACE, GRACE);
        assert!(count == 0 && due.is_empty());
        assert!(!collection.begin_deletion(&object(1)));
    }

    #[tokio::test]
    async fn an_object_is_not_stored_while_it_is_being_deleted() {
        let (protected, start) = (Arc::new(Protected::default()), Instant::now());
        assert!(collect(&protected, start, 0, &[1]).is_empty());
        let collection = protected.begin_collection();
        assert_eq!(collection.unreferenced([object(1)].into_iter(), start + GRACE, GRACE).1, [object(1)]);
        assert!(collection.begin_deletion(&object(1)));
        let attempt = Protection::new(protected.clone());
        let mut stores = Box::pin(attempt.add(object(1)));
        assert!(stores.as_mut().now_or_never().is_none(), "it waits");
        collection.end_deletion(&object(1), true);
        stores.await;
        assert!(!collection.begin_deletion(&object(1)), "it is stored again");
    }
}

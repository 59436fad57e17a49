//! The negative cache: services and versions that do not exist or could not be queried. An entry lives for seconds, and
//! an event of the origin removes it.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::sync::Cache;

use super::error::LookupError;

/// How long a failed query is cached.
const FAILURE_TTL: Duration = Duration::from_secs(1);

/// How long an absence is cached while the event streams of all origins would announce the service.
const ABSENCE_TTL_IN_SYNC: Duration = Duration::from_secs(30);

/// The most entries.
const MAX_ENTRIES: u64 = 10_000;

/// The errors of the last queries, by service or by version.
#[derive(Clone)]
pub(super) struct NegativeCache<K> {
    answers: Cache<K, NegativeEntry>,
}

#[derive(Clone)]
struct NegativeEntry {
    error: LookupError,
    ttl: Duration,
}

struct EntryTtl;

impl<K> Expiry<K, NegativeEntry> for EntryTtl {
    fn expire_after_create(&self, _: &K, entry: &NegativeEntry, _: Instant) -> Option<Duration> {
        Some(entry.ttl)
    }

    fn expire_after_update(&self, _: &K, entry: &NegativeEntry, _: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(entry.ttl)
    }
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static> NegativeCache<K> {
    pub(super) fn new() -> Self {
        Self { answers: Cache::builder().max_capacity(MAX_ENTRIES).expire_after(EntryTtl).build() }
    }

    pub(super) fn get(&self, about: &K) -> Option<LookupError> {
        self.answers.get(about).map(|entry| entry.error)
    }

    /// All entries, without counting as a use.
    pub(super) fn all(&self) -> HashMap<K, LookupError> {
        // An iterator, unlike `get`, does not count as a use.
        let all = self.answers.iter();
        all.map(|(about, it)| (K::clone(&about), it.error)).collect()
    }

    /// The number of entries, and the most.
    pub(super) fn fill_level(&self) -> (u64, u64) {
        (self.answers.entry_count(), MAX_ENTRIES)
    }

    /// Stores the error of a query. `in_sync`: the event streams of all origins would announce the service.
    pub(super) fn insert(&self, about: K, error: LookupError, in_sync: bool) {
        let ttl = if in_sync && matches!(error, LookupError::Absent) { ABSENCE_TTL_IN_SYNC } else { FAILURE_TTL };
        self.answers.insert(about, NegativeEntry { error, ttl });
    }

    pub(super) fn remove(&self, about: &K) {
        self.answers.invalidate(about);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::name::ServiceName;

    #[test]
    fn an_absence_is_cached_longer_while_all_streams_are_in_sync() {
        let negative = NegativeCache::new();
        let service = |name: &str| -> ServiceName { name.parse().unwrap() };
        negative.insert(service("absent"), LookupError::Absent, true);
        negative.insert(service("polled"), LookupError::Absent, false);
        negative.insert(service("slow"), LookupError::TooSlow, true);
        let ttl = |name: &str| negative.answers.get(&service(name)).unwrap().ttl;
        assert_eq!((ttl("absent"), ttl("polled"), ttl("slow")), (ABSENCE_TTL_IN_SYNC, FAILURE_TTL, FAILURE_TTL));
        negative.remove(&service("absent"));
        assert!(negative.get(&service("absent")).is_none());
        assert!(matches!(negative.get(&service("polled")), Some(LookupError::Absent)));
    }
}

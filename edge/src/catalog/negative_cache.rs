//! The negative cache: services and versions that do not exist or could not be queried. An entry decides for seconds, and an
//! event of the origin removes it. A failure stays longer, for those who ask why, until a query succeeds.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant, SystemTime};

use moka::Expiry;
use moka::sync::Cache;

use super::error::LookupError;

/// How long a failed query is cached.
const FAILURE_TTL: Duration = Duration::from_secs(1);

/// How long the failure of a service explains why it is not current, if no query succeeds.
pub(super) const EXPLAINED_FOR: Duration = Duration::from_secs(3600);

/// How long an absence is cached while the event streams of all origins would announce the service.
const ABSENCE_TTL_IN_SYNC: Duration = Duration::from_secs(30);

/// The most entries.
const MAX_ENTRIES: u64 = 10_000;

/// The errors of the last queries, by service or by version.
#[derive(Clone)]
pub(super) struct NegativeCache<K> {
    answers: Cache<K, NegativeEntry>,
    explained_for: Duration,
}

/// Why a query failed, and when.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: LookupError,
    pub(crate) time: SystemTime,
}

#[derive(Clone)]
struct NegativeEntry {
    failure: Failure,
    /// Until then it answers further queries.
    decides_until: Instant,
    stays: Duration,
}

struct EntryTtl;

impl<K> Expiry<K, NegativeEntry> for EntryTtl {
    fn expire_after_create(&self, _: &K, entry: &NegativeEntry, _: Instant) -> Option<Duration> {
        Some(entry.stays)
    }

    fn expire_after_update(&self, _: &K, entry: &NegativeEntry, _: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(entry.stays)
    }
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static> NegativeCache<K> {
    /// `explained_for`: how long a failure stays among [`failures`](Self::failures), at least.
    pub(super) fn new(explained_for: Duration) -> Self {
        Self { answers: Cache::builder().max_capacity(MAX_ENTRIES).expire_after(EntryTtl).build(), explained_for }
    }

    /// The error with which a query is answered now.
    pub(super) fn get(&self, about: &K) -> Option<LookupError> {
        self.at(about, Instant::now())
    }

    fn at(&self, about: &K, now: Instant) -> Option<LookupError> {
        self.answers.get(about).filter(|entry| now < entry.decides_until).map(|entry| entry.failure.error)
    }

    /// The last failures about what is wanted, without counting as a use.
    pub(super) fn failures(&self, is_wanted: impl Fn(&K) -> bool) -> HashMap<K, Failure> {
        // An iterator, unlike `get`, does not count as a use.
        let wanted = self.answers.iter().filter(|(about, _)| is_wanted(about));
        wanted.map(|(about, it)| (K::clone(&about), it.failure)).collect()
    }

    /// The number of entries, and the most.
    pub(super) fn fill_level(&self) -> (u64, u64) {
        (self.answers.entry_count(), MAX_ENTRIES)
    }

    /// Stores the error of a query. `in_sync`: the event streams of all origins would announce the service.
    pub(super) fn insert(&self, about: K, error: LookupError, in_sync: bool) {
        let is_absent = matches!(error, LookupError::Absent);
        let ttl = if in_sync && is_absent { ABSENCE_TTL_IN_SYNC } else { FAILURE_TTL };
        // Anybody can ask for what does not exist: that explains nothing.
        let stays = if is_absent { ttl } else { ttl.max(self.explained_for) };
        let failure = Failure { error, time: SystemTime::now() };
        self.answers.insert(about, NegativeEntry { failure, decides_until: Instant::now() + ttl, stays });
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
        let negative = NegativeCache::new(Duration::ZERO);
        let service = |name: &str| -> ServiceName { name.parse().unwrap() };
        let before = Instant::now();
        negative.insert(service("absent"), LookupError::Absent, true);
        negative.insert(service("polled"), LookupError::Absent, false);
        negative.insert(service("slow"), LookupError::TooSlow, true);
        let stays = |name: &str| negative.answers.get(&service(name)).unwrap().stays;
        assert_eq!((stays("absent"), stays("polled"), stays("slow")), (ABSENCE_TTL_IN_SYNC, FAILURE_TTL, FAILURE_TTL));
        assert!(negative.at(&service("absent"), before + ABSENCE_TTL_IN_SYNC).is_some());
        negative.remove(&service("absent"));
        assert!(negative.get(&service("absent")).is_none());
        assert!(matches!(negative.at(&service("polled"), before), Some(LookupError::Absent)));
    }

    #[test]
    fn a_failure_explains_long_after_it_has_stopped_to_decide() {
        let negative = NegativeCache::new(EXPLAINED_FOR);
        let (slow, absent): (ServiceName, ServiceName) = ("slow".parse().unwrap(), "absent".parse().unwrap());
        negative.insert(slow.clone(), LookupError::TooSlow, true);
        negative.insert(absent.clone(), LookupError::Absent, true);
        let in_three_seconds = Instant::now() + Duration::from_secs(3);
        assert!(negative.at(&slow, in_three_seconds).is_none(), "the origin is asked again");
        let stays = |name| negative.answers.get(name).unwrap().stays;
        assert_eq!((stays(&slow), stays(&absent)), (EXPLAINED_FOR, ABSENCE_TTL_IN_SYNC));
        assert!(matches!(negative.failures(|_| true)[&slow].error, LookupError::TooSlow));
        negative.remove(&slow);
        assert!(!negative.failures(|_| true).contains_key(&slow), "a query has succeeded");
    }
}

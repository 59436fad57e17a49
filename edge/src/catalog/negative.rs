//! The negative cache: services and versions that do not exist or could not be queried. An entry lives for seconds, and
//! an event of the origin removes it.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::sync::Cache;

use super::error::LookupError;

/// How long a failed query is cached.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// How long an absence is cached while the event streams of all origins would announce the service.
const ABSENT_WHILE_IN_STEP: Duration = Duration::from_secs(30);

/// The most entries.
const MAX_REMEMBERED: u64 = 10_000;

/// The errors of the last queries, by service or by version.
#[derive(Clone)]
pub(super) struct Negative<K> {
    answers: Cache<K, Remembered>,
}

#[derive(Clone)]
struct Remembered {
    error: LookupError,
    pause: Duration,
}

struct Pause;

impl<K> Expiry<K, Remembered> for Pause {
    fn expire_after_create(&self, _: &K, remembered: &Remembered, _: Instant) -> Option<Duration> {
        Some(remembered.pause)
    }

    fn expire_after_update(&self, _: &K, remembered: &Remembered, _: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(remembered.pause)
    }
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static> Negative<K> {
    pub(super) fn new() -> Self {
        Self { answers: Cache::builder().max_capacity(MAX_REMEMBERED).expire_after(Pause).build() }
    }

    pub(super) fn get(&self, about: &K) -> Option<LookupError> {
        self.answers.get(about).map(|remembered| remembered.error)
    }

    /// All entries, without counting as a use.
    pub(super) fn all(&self) -> HashMap<K, LookupError> {
        // An iterator, unlike `get`, does not count as a use.
        let all = self.answers.iter();
        all.map(|(about, it)| (K::clone(&about), it.error)).collect()
    }

    /// The number of entries, and the most.
    pub(super) fn fill_level(&self) -> (u64, u64) {
        (self.answers.entry_count(), MAX_REMEMBERED)
    }

    /// Stores the error of a query. `in_step`: the event streams of all origins would announce the service.
    pub(super) fn remember(&self, about: K, error: LookupError, in_step: bool) {
        let pause = if in_step && matches!(error, LookupError::Absent) { ABSENT_WHILE_IN_STEP } else { FAILURE_PAUSE };
        self.answers.insert(about, Remembered { error, pause });
    }

    pub(super) fn forget(&self, about: &K) {
        self.answers.invalidate(about);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::name::ServiceName;

    #[test]
    fn an_absence_holds_for_longer_while_all_streams_are_in_step() {
        let negative = Negative::new();
        let service = |name: &str| -> ServiceName { name.parse().unwrap() };
        negative.remember(service("absent"), LookupError::Absent, true);
        negative.remember(service("polled"), LookupError::Absent, false);
        negative.remember(service("slow"), LookupError::TooSlow, true);
        let pause = |name: &str| negative.answers.get(&service(name)).unwrap().pause;
        assert_eq!(
            (pause("absent"), pause("polled"), pause("slow")),
            (ABSENT_WHILE_IN_STEP, FAILURE_PAUSE, FAILURE_PAUSE)
        );
        negative.forget(&service("absent"));
        assert!(negative.get(&service("absent")).is_none());
        assert!(matches!(negative.get(&service("polled")), Some(LookupError::Absent)));
    }
}

//! What was found to be not there, or could not be asked for: taken as given for a moment, so that many who ask for it
//! cost the origin one question. A word of the origin's event stream ends it at once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::sync::Cache;
use weir_shared::name::ServiceName;

use super::lookup::LookupError;

/// How long an answer is taken as given after a question that failed.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// How long "no such service" is taken as given when every origin's event stream would tell of the service.
const ABSENT_WHILE_TOLD: Duration = Duration::from_secs(30);

/// Services that are remembered.
const MAX_REMEMBERED: u64 = 10_000;

/// The services whose last question brought nothing.
#[derive(Clone)]
pub(super) struct Negative {
    answers: Cache<ServiceName, Remembered>,
}

#[derive(Clone)]
struct Remembered {
    error: LookupError,
    pause: Duration,
}

struct Pause;

impl Expiry<ServiceName, Remembered> for Pause {
    fn expire_after_create(&self, _: &ServiceName, remembered: &Remembered, _: Instant) -> Option<Duration> {
        Some(remembered.pause)
    }

    fn expire_after_update(
        &self,
        _: &ServiceName,
        remembered: &Remembered,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(remembered.pause)
    }
}

impl Negative {
    pub(super) fn new() -> Self {
        Self { answers: Cache::builder().max_capacity(MAX_REMEMBERED).expire_after(Pause).build() }
    }

    /// What is remembered of a service.
    pub(super) fn get(&self, service: &ServiceName) -> Option<LookupError> {
        self.answers.get(service).map(|remembered| remembered.error)
    }

    /// All that is remembered, and for how long from its beginning, without using any.
    pub(super) fn all(&self) -> HashMap<ServiceName, (LookupError, Duration)> {
        // An iterator, unlike `get`, does not count as a use.
        let all = self.answers.iter();
        all.map(|(service, it)| (ServiceName::clone(&service), (it.error, it.pause))).collect()
    }

    /// How many services are remembered, and at the most.
    pub(super) fn fill_level(&self) -> (u64, u64) {
        (self.answers.entry_count(), MAX_REMEMBERED)
    }

    /// A question brought nothing. `told`: should the service appear, all origins would tell of it at once.
    pub(super) fn remember(&self, service: ServiceName, error: LookupError, told: bool) {
        let pause = if told && matches!(error, LookupError::Absent) { ABSENT_WHILE_TOLD } else { FAILURE_PAUSE };
        self.answers.insert(service, Remembered { error, pause });
    }

    /// There is a word on the service.
    pub(super) fn forget(&self, service: &ServiceName) {
        self.answers.invalidate(service);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_told_of_is_remembered_for_longer_and_forgotten_at_a_word() {
        let negative = Negative::new();
        let service = |name: &str| -> ServiceName { name.parse().unwrap() };
        negative.remember(service("absent"), LookupError::Absent, true);
        negative.remember(service("untold"), LookupError::Absent, false);
        negative.remember(service("slow"), LookupError::TooSlow, true);
        let pause = |name: &str| negative.answers.get(&service(name)).unwrap().pause;
        assert_eq!(
            (pause("absent"), pause("untold"), pause("slow")),
            (ABSENT_WHILE_TOLD, FAILURE_PAUSE, FAILURE_PAUSE)
        );
        negative.forget(&service("absent"));
        assert!(negative.get(&service("absent")).is_none());
        assert!(matches!(negative.get(&service("untold")), Some(LookupError::Absent)));
    }
}

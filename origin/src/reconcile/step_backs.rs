//! Pure: which candidates wait because they are older than what their service followed. Time is an argument.
//!
//! One answer of an upstream may come from a copy that lags. An older revision is published once every poll for a time has
//! found it, so another answer in between begins anew. A poll that fails says nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;
use weir_source::{Admission, Candidate, StepBack};

use super::state::{RepositoryState, SteppingBack};

/// The candidates of a repository that wait.
#[derive(Debug, Default)]
pub(super) struct StepBacks {
    waiting: BTreeMap<ServiceName, Waiting>,
    /// What waited last, and is not logged again.
    logged: BTreeMap<ServiceName, Vec<Behind>>,
}

/// The folder of a part, empty if there are none, and its revision, which is older.
type Behind = (String, RevisionId);

/// It waits until its service follows it or another revision, or nothing is found.
#[derive(Debug)]
struct Waiting {
    /// When polls began to find each.
    found: Vec<(Behind, Instant, SystemTime)>,
    shown: SteppingBack,
}

/// What becomes of a candidate.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is published.
    Publish(Option<StepBack>),
    /// It waits. `is_new`: this was not logged.
    Wait { begins: bool, is_new: bool },
}

impl StepBacks {
    /// Decides about a candidate. `after`: how long every poll must confirm an older one; zero: no time.
    pub(super) fn decide(
        &mut self,
        candidate: &Candidate,
        admission: Admission,
        after: Duration,
        (now, clock): (Instant, SystemTime),
    ) -> Verdict {
        let Candidate { service, revision, version, age, .. } = candidate;
        let before = self.waiting.remove(&service.name).map_or_else(Vec::new, |waiting| waiting.found);
        match admission {
            Admission::Forward => return Verdict::Publish(None),
            Admission::Asked(by) => return Verdict::Publish(Some(by)),
            Admission::Back if after.is_zero() => return Verdict::Publish(Some(StepBack::Polls)),
            Admission::Back => {}
        }
        let (mut found, mut begins, mut is_confirmed) = (Vec::new(), false, true);
        for (to, revision, seen_at) in candidate.behind() {
            let behind = (to.to_owned(), revision.clone());
            let known = before.iter().find(|(known, ..)| *known == behind).cloned();
            begins |= known.is_none();
            let known = known.unwrap_or((behind, now, clock));
            is_confirmed &= seen_at.is_some_and(|seen_at| seen_at >= known.1 + after);
            found.push(known);
        }
        let since = found.iter().map(|(.., since)| *since).max().unwrap_or(clock);
        let all: Vec<Behind> = found.iter().map(|(behind, ..)| behind.clone()).collect();
        let shown = SteppingBack {
            service: service.name.clone(),
            revision_id: revision.clone(),
            version: version.clone(),
            reason: age.behind.clone().unwrap_or_default(),
            since,
            until: since + after,
        };
        // Also if it is confirmed, because its build may fail.
        self.waiting.insert(service.name.clone(), Waiting { found, shown });
        if is_confirmed {
            self.logged.remove(&service.name);
            return Verdict::Publish(Some(StepBack::Polls));
        }
        let is_new = self.logged.get(&service.name) != Some(&all);
        self.logged.insert(service.name.clone(), all);
        Verdict::Wait { begins, is_new }
    }

    /// A service follows a revision, or none can be found.
    pub(super) fn ended(&mut self, service: &ServiceName) {
        self.waiting.remove(service);
    }

    /// A service was removed or redefined.
    pub(super) fn remove(&mut self, service: &ServiceName) {
        self.waiting.remove(service);
        self.logged.remove(service);
    }

    /// Updates the observable state.
    pub(super) fn show(&self, state: &watch::Sender<RepositoryState>) {
        state.send_if_modified(|state| {
            let has_changed = !state.stepping_back.iter().eq(self.all());
            if has_changed {
                state.stepping_back = self.all().cloned().collect();
            }
            has_changed
        });
    }

    /// What waits, by service.
    pub(super) fn all(&self) -> impl Iterator<Item = &SteppingBack> {
        self.waiting.values().map(|waiting| &waiting.shown)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use weir_protocol::part::{self, Part};
    use weir_source::{Age, Service, ServiceConfig};
    use weir_tarball::ContentKey;

    use super::*;

    const AFTER: Duration = Duration::from_secs(300);

    fn candidate(service: &Arc<Service>, number: u64, seen_at: Option<Instant>) -> Candidate {
        Candidate {
            service: service.clone(),
            revision: format!("sha1:{number:040x}").parse().unwrap(),
            version: None,
            parts: Vec::new(),
            key: ContentKey::from_bytes([0; 32]),
            age: Box::new(Age { seen_at, ..Age::default() }),
            stepped_back: None,
        }
    }

    proptest! {
        /// Polls find revisions, of which a lower one is older; or they fail, and what was found is read again.
        #[test]
        fn an_older_revision_is_published_once_every_poll_for_a_time_has_found_it(
            polls in prop::collection::vec((prop::option::of(0u64..3), 1u64..200), 1..60)
        ) {
            let config = ServiceConfig::new("a".parse().unwrap(), "shop".parse().unwrap());
            let service = Arc::new(Service::new(&config, |_| None, None).unwrap());
            let (mut backs, mut now, clock) = (StepBacks::default(), Instant::now(), SystemTime::UNIX_EPOCH);
            let (mut published, mut found, mut polled_at) = (1, 1, None);
            // Since when every poll has found this.
            let mut first: Option<(u64, Instant)> = None;
            for (poll, pause) in polls {
                let began = now;
                now += Duration::from_secs(1);
                if let Some(answer) = poll {
                    (found, polled_at) = (answer, Some(began));
                    if first.is_none_or(|(of, _)| of != answer) {
                        first = Some((answer, now));
                    }
                }
                let admission = if found < published { Admission::Back } else { Admission::Forward };
                let verdict = backs.decide(&candidate(&service, found, polled_at), admission, AFTER, (now, clock));
                let is_confirmed = first.is_some_and(|(_, at)| polled_at.is_some_and(|polled| polled >= at + AFTER));
                let expected = match (found < published, is_confirmed) {
                    (false, _) => Some(None),
                    (true, true) => Some(Some(StepBack::Polls)),
                    (true, false) => None,
                };
                match verdict {
                    Verdict::Publish(by) => {
                        prop_assert_eq!(Some(by), expected);
                        published = found;
                        backs.ended(&service.name);
                        // The same revision is no step back any more.
                        first = Some((found, now));
                        prop_assert_eq!(backs.all().count(), 0);
                    }
                    Verdict::Wait { .. } => {
                        prop_assert_eq!(None, expected);
                        prop_assert_eq!(backs.all().count(), 1);
                    }
                }
                now += Duration::from_secs(pause);
            }
        }
    }

    #[test]
    fn one_that_flaps_is_logged_once_and_without_a_time_nothing_waits() {
        let config = ServiceConfig::new("a".parse().unwrap(), "shop".parse().unwrap());
        let service = Arc::new(Service::new(&config, |_| None, None).unwrap());
        let (mut backs, times) = (StepBacks::default(), (Instant::now(), SystemTime::UNIX_EPOCH));
        let mut decide = |number, admission, after| {
            backs.decide(&candidate(&service, number, Some(times.0)), admission, after, times)
        };
        assert_eq!(decide(1, Admission::Back, AFTER), Verdict::Wait { begins: true, is_new: true });
        assert_eq!(decide(1, Admission::Back, AFTER), Verdict::Wait { begins: false, is_new: false });
        assert_eq!(decide(2, Admission::Forward, AFTER), Verdict::Publish(None));
        assert_eq!(decide(1, Admission::Back, AFTER), Verdict::Wait { begins: true, is_new: false });
        assert_eq!(decide(0, Admission::Back, AFTER), Verdict::Wait { begins: true, is_new: true });
        let asked = Admission::Asked(StepBack::Webhook);
        assert_eq!(decide(0, asked, AFTER), Verdict::Publish(Some(StepBack::Webhook)));
        assert_eq!(decide(0, Admission::Back, Duration::ZERO), Verdict::Publish(Some(StepBack::Polls)));
    }

    /// The parts `a` and `b`, of which some are behind.
    fn composed(service: &Arc<Service>, numbers: [u64; 2], are_behind: [bool; 2], seen_at: Instant) -> Candidate {
        let mut candidate = candidate(service, 0, None);
        for ((to, number), is_behind) in ["a", "b"].into_iter().zip(numbers).zip(are_behind) {
            let revision_id = format!("sha1:{number:040x}").parse().unwrap();
            candidate.parts.push(Part::of_repository(to.to_owned(), "shop".parse().unwrap(), revision_id));
            let behind = is_behind.then(|| "older".to_owned());
            candidate.age.parts.push(Age { seen_at: Some(seen_at), behind, ..Age::default() });
        }
        candidate.revision = part::revision_of(&candidate.parts);
        candidate
    }

    #[test]
    fn a_part_that_moves_on_does_not_begin_the_time_of_another_anew() {
        let config = ServiceConfig::new("a".parse().unwrap(), "shop".parse().unwrap());
        let service = Arc::new(Service::new(&config, |_| None, None).unwrap());
        let (mut backs, start, clock) = (StepBacks::default(), Instant::now(), SystemTime::UNIX_EPOCH);
        let mut decide = |numbers, are_behind, seconds| {
            let now = start + Duration::from_secs(seconds);
            let candidate = composed(&service, numbers, are_behind, now);
            backs.decide(&candidate, Admission::Back, AFTER, (now, clock))
        };
        let waits = |begins, is_new| Verdict::Wait { begins, is_new };
        assert_eq!(decide([1, 10], [true, false], 0), waits(true, true));
        assert_eq!(decide([1, 11], [true, false], 200), waits(false, false));
        assert_eq!(decide([1, 9], [true, true], 250), waits(true, true), "a copy of the other one lags too");
        assert_eq!(decide([1, 9], [true, true], 300), waits(false, false));
        let confirmed = Verdict::Publish(Some(StepBack::Polls));
        assert_eq!(decide([1, 12], [true, false], 301), confirmed);
        assert_eq!(decide([1, 12], [true, false], 302), confirmed, "its build failed");
        assert_eq!(decide([2, 12], [true, false], 303), waits(true, true));
    }
}

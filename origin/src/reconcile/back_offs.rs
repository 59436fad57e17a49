//! Contents whose build failed, and when they are tried again. Pure: time and chance are arguments.
//!
//! What is wrong with a commit itself stays wrong. A build that took all the time that it may would take it again from
//! those who wait for one of the few permits, and LFS objects that could not be had may not be there soon: both are tried
//! later each time. Whatever else went wrong is tried with the next poll.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use weir_protocol::name::ServiceName;

use super::back_off::{back_off, jittered, kept};
use crate::source::{RetryPolicy, ServiceFailure};
use crate::tarball::ContentKey;

/// Of each service, the last content that failed and is not to be tried just now.
#[derive(Debug, Default)]
pub(super) struct BackOffs(HashMap<ServiceName, Setback>);

/// A content that failed.
#[derive(Debug)]
pub(super) struct Setback {
    key: ContentKey,
    pub(super) failure: ServiceFailure,
    /// In a row.
    pub(super) attempts: u32,
    /// When the first of them failed.
    pub(super) since: SystemTime,
    /// Until when it is not tried; none: for ever.
    until: Option<Instant>,
    /// It is being tried again.
    is_tried: bool,
}

impl BackOffs {
    /// Why a content is not to be built now.
    pub(super) fn why_not(&self, service: &ServiceName, key: &ContentKey, now: Instant) -> Option<ServiceFailure> {
        let known = self.0.get(service).filter(|known| known.key == *key)?;
        known.until.is_none_or(|until| now < until).then(|| known.failure.clone())
    }

    /// A build failed. `interval`: of the repository's polls; `chance` is in `0.0..1.0`.
    pub(super) fn failed(
        &mut self,
        service: &ServiceName,
        key: ContentKey,
        failure: &ServiceFailure,
        interval: Duration,
        (now, clock): (Instant, SystemTime),
        chance: f64,
    ) {
        let before = self.0.remove(service).filter(|before| before.key == key);
        let (attempts, since) = before.map_or((0, clock), |before| (before.attempts, before.since));
        let attempts = attempts.saturating_add(1);
        let until = match failure.retry {
            RetryPolicy::NextPoll => return,
            RetryPolicy::BackOff => {
                let pause = jittered(back_off(interval, attempts), chance);
                let asked_for = failure.retry_after.map_or(Duration::ZERO, |pause| kept(pause, chance));
                Some(now + pause.max(asked_for))
            }
            RetryPolicy::Never => None,
        };
        let setback = Setback { key, failure: failure.clone(), attempts, since, until, is_tried: false };
        self.0.insert(service.clone(), setback);
    }

    /// When the next content is to be tried again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter(|setback| !setback.is_tried).filter_map(|setback| setback.until).min()
    }

    /// The services whose contents are to be tried again now, each once.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<ServiceName> {
        let is_due = |setback: &Setback| !setback.is_tried && setback.until.is_some_and(|until| until <= now);
        let due = self.0.iter_mut().filter(|(_, setback)| is_due(setback));
        due.map(|(service, setback)| {
            setback.is_tried = true;
            service.clone()
        })
        .collect()
    }

    /// The content that has failed at this step for the longest time.
    pub(super) fn first_of_step(&self, step: &str) -> Option<&Setback> {
        let failed = self.0.values().filter(|setback| setback.failure.step == step);
        failed.min_by_key(|setback| (setback.since, &setback.failure.reason))
    }

    /// Whether the content of a service is put off.
    pub(super) fn holds(&self, service: &ServiceName) -> bool {
        self.0.contains_key(service)
    }

    /// A service has no setback any more.
    pub(super) fn forget(&mut self, service: &ServiceName) {
        self.0.remove(service);
    }

    /// What was to be tried later is to be tried now: of these services.
    pub(super) fn forget_pauses(&mut self) -> Vec<ServiceName> {
        self.0.extract_if(|_, setback| setback.until.is_some()).map(|(service, _)| service).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(120);

    fn failure(retry: RetryPolicy) -> ServiceFailure {
        ServiceFailure { retry, ..ServiceFailure::transient("build", "it failed".to_owned()) }
    }

    #[test]
    fn what_took_too_long_is_tried_later_each_time_and_what_is_wrong_for_good_never() {
        let (start, service) = (Instant::now(), "shop".parse().unwrap());
        let [one, other] = [1, 2].map(|byte| ContentKey::from_bytes([byte; 32]));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut back_offs = BackOffs::default();
        let fails = |back_offs: &mut BackOffs, key, retry, seconds| {
            back_offs.failed(&service, key, &failure(retry), INTERVAL, (at(seconds), SystemTime::UNIX_EPOCH), 0.5);
        };
        let may = |back_offs: &BackOffs, key, seconds| back_offs.why_not(&service, &key, at(seconds)).is_none();
        assert!(may(&back_offs, one, 0));
        fails(&mut back_offs, one, RetryPolicy::BackOff, 0);
        assert_eq!([0, 4, 5].map(|seconds| may(&back_offs, one, seconds)), [false, false, true]);
        fails(&mut back_offs, one, RetryPolicy::BackOff, 5);
        assert_eq!([14, 15].map(|seconds| may(&back_offs, one, seconds)), [false, true]);
        assert!(may(&back_offs, other, 6), "another content may be smaller");
        assert_eq!((back_offs.next(), back_offs.take_due(at(14)).len()), (Some(at(15)), 0));
        assert_eq!((back_offs.take_due(at(15)), back_offs.next()), (vec![service.clone()], None));
        assert_eq!(back_offs.forget_pauses(), std::slice::from_ref(&service));
        assert!(may(&back_offs, one, 6));

        fails(&mut back_offs, other, RetryPolicy::BackOff, 20);
        assert_eq!([24, 25].map(|seconds| may(&back_offs, other, seconds)), [false, true], "it begins anew");
        fails(&mut back_offs, other, RetryPolicy::Never, 25);
        back_offs.forget_pauses();
        assert!(!may(&back_offs, other, 1_000_000));
        fails(&mut back_offs, other, RetryPolicy::NextPoll, 26);
        assert!(may(&back_offs, other, 26));
    }
}

//! Contents whose build failed, and when they are tried again. Pure: time and chance are arguments.
//!
//! What is wrong with a commit itself stays wrong. A build that took all the time that it may would take it again, from the
//! other services of its repository and from those who wait for one of the few places: so it is tried later each time.
//! Whatever else went wrong is tried with the next poll.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weir_shared::name::ServiceName;

use super::back_off::{back_off, jittered};
use super::build::{Again, ServiceFailure};
use crate::tarball::ContentKey;

/// Of each service, the last content that failed and is not to be tried just now.
#[derive(Debug, Default)]
pub(super) struct BackOffs(HashMap<ServiceName, Setback>);

#[derive(Debug)]
struct Setback {
    key: ContentKey,
    failure: ServiceFailure,
    attempts: u32,
    /// Until when it is not tried; none: for ever.
    until: Option<Instant>,
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
        now: Instant,
        chance: f64,
    ) {
        let before = self.0.remove(service).filter(|before| before.key == key);
        let attempts = before.map_or(0, |before| before.attempts).saturating_add(1);
        let until = match failure.again {
            Again::Soon => return,
            Again::Later => Some(now + jittered(back_off(interval, attempts), chance)),
            Again::Never => None,
        };
        let setback = Setback { key, failure: failure.clone(), attempts, until };
        self.0.insert(service.clone(), setback);
    }

    /// A service has no setback any more.
    pub(super) fn forget(&mut self, service: &ServiceName) {
        self.0.remove(service);
    }

    /// What was to be tried later may be tried now.
    pub(super) fn forget_pauses(&mut self) {
        self.0.retain(|_, setback| setback.until.is_none());
    }

    /// Forgets services of which that is not so.
    pub(super) fn retain(&mut self, keep: impl Fn(&ServiceName) -> bool) {
        self.0.retain(|service, _| keep(service));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(120);

    fn failure(again: Again) -> ServiceFailure {
        ServiceFailure { step: "build", reason: "it failed".to_owned(), again }
    }

    #[test]
    fn what_took_too_long_is_tried_later_each_time_and_what_is_wrong_for_good_never() {
        let (start, service) = (Instant::now(), "shop".parse().unwrap());
        let [one, other] = [1, 2].map(|byte| ContentKey::from_bytes([byte; 32]));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut back_offs = BackOffs::default();
        let fails = |back_offs: &mut BackOffs, key, again, seconds| {
            back_offs.failed(&service, key, &failure(again), INTERVAL, at(seconds), 0.5);
        };
        let may = |back_offs: &BackOffs, key, seconds| back_offs.why_not(&service, &key, at(seconds)).is_none();
        assert!(may(&back_offs, one, 0));
        fails(&mut back_offs, one, Again::Later, 0);
        assert_eq!([0, 4, 5].map(|seconds| may(&back_offs, one, seconds)), [false, false, true]);
        fails(&mut back_offs, one, Again::Later, 5);
        assert_eq!([14, 15].map(|seconds| may(&back_offs, one, seconds)), [false, true]);
        assert!(may(&back_offs, other, 6), "another content may be smaller");
        back_offs.forget_pauses();
        assert!(may(&back_offs, one, 6));

        fails(&mut back_offs, other, Again::Later, 20);
        assert_eq!([24, 25].map(|seconds| may(&back_offs, other, seconds)), [false, true], "it begins anew");
        fails(&mut back_offs, other, Again::Never, 25);
        back_offs.forget_pauses();
        assert!(!may(&back_offs, other, 1_000_000));
        fails(&mut back_offs, other, Again::Soon, 26);
        assert!(may(&back_offs, other, 26));
    }
}

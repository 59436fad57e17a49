//! Pure: contents whose build failed, and when they are tried again. Time and chance are arguments.
//!
//! An invalid content is never tried again. A build that reached its deadline, and a failed LFS fetch, back off, because they
//! would take permits from others. All other failures are tried again with the next poll, and are not stored here.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use weir_protocol::name::ServiceName;
use weir_source::{RetryPolicy, ServiceFailure};
use weir_tarball::ContentKey;

use weir_model::back_off::{back_off, bounded_retry_after, jittered};

/// The last failed content of each service, while it must not be tried.
#[derive(Debug, Default)]
pub(super) struct BackOffs(HashMap<ServiceName, FailedContent>);

/// A content whose build failed.
#[derive(Debug)]
pub(super) struct FailedContent {
    key: ContentKey,
    pub(super) failure: ServiceFailure,
    /// Consecutive failed attempts.
    pub(super) attempts: u32,
    /// When the first attempt failed.
    pub(super) since: SystemTime,
    /// When it is tried again. `None`: never.
    until: Option<Instant>,
    /// Whether it was returned by [`BackOffs::take_due`].
    is_taken: bool,
}

impl BackOffs {
    /// Returns the last failure of a content if it must not be built now.
    pub(super) fn blocked_by(&self, service: &ServiceName, key: &ContentKey, now: Instant) -> Option<ServiceFailure> {
        let known = self.0.get(service).filter(|known| known.key == *key)?;
        known.until.is_none_or(|until| now < until).then(|| known.failure.clone())
    }

    /// Records a failed build. `interval` is the poll interval, `chance` is in `0.0..1.0`.
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
                let delay = jittered(back_off(interval, attempts), chance);
                let retry_after =
                    failure.retry_after.map_or(Duration::ZERO, |delay| bounded_retry_after(delay, chance));
                Some(now + delay.max(retry_after))
            }
            RetryPolicy::Never => None,
        };
        let failed = FailedContent { key, failure: failure.clone(), attempts, since, until, is_taken: false };
        self.0.insert(service.clone(), failed);
    }

    /// When the next content is tried again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter(|failed| !failed.is_taken).filter_map(|failed| failed.until).min()
    }

    /// Returns the services whose contents must be tried again now, each once.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<ServiceName> {
        let is_due = |failed: &FailedContent| !failed.is_taken && failed.until.is_some_and(|until| until <= now);
        let due = self.0.iter_mut().filter(|(_, failed)| is_due(failed));
        due.map(|(service, failed)| {
            failed.is_taken = true;
            service.clone()
        })
        .collect()
    }

    /// The content that has failed at a step for the longest time.
    pub(super) fn oldest_of_step(&self, step: &str) -> Option<&FailedContent> {
        let of_step = self.0.values().filter(|failed| failed.failure.step == step);
        of_step.min_by_key(|failed| (failed.since, &failed.failure.reason))
    }

    /// Whether a content that failed is tried again with the next poll.
    pub(super) fn waits_for_poll(&self, service: &ServiceName, retry: RetryPolicy) -> bool {
        match retry {
            RetryPolicy::NextPoll => true,
            RetryPolicy::BackOff => !self.0.contains_key(service),
            RetryPolicy::Never => false,
        }
    }

    /// Forgets the failed content of a service.
    pub(super) fn remove(&mut self, service: &ServiceName) {
        self.0.remove(service);
    }

    /// Ends all back-offs, and returns their services.
    pub(super) fn reset(&mut self) -> Vec<ServiceName> {
        self.0.extract_if(|_, failed| failed.until.is_some()).map(|(service, _)| service).collect()
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
    fn slow_builds_back_off_and_invalid_contents_are_never_tried_again() {
        let (start, service) = (Instant::now(), "shop".parse().unwrap());
        let [one, other] = [1, 2].map(|byte| ContentKey::from_bytes([byte; 32]));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut back_offs = BackOffs::default();
        let fails = |back_offs: &mut BackOffs, key, retry, seconds| {
            back_offs.failed(&service, key, &failure(retry), INTERVAL, (at(seconds), SystemTime::UNIX_EPOCH), 0.5);
        };
        let may = |back_offs: &BackOffs, key, seconds| back_offs.blocked_by(&service, &key, at(seconds)).is_none();
        assert!(may(&back_offs, one, 0));
        fails(&mut back_offs, one, RetryPolicy::BackOff, 0);
        assert_eq!([0, 4, 5].map(|seconds| may(&back_offs, one, seconds)), [false, false, true]);
        fails(&mut back_offs, one, RetryPolicy::BackOff, 5);
        assert_eq!([14, 15].map(|seconds| may(&back_offs, one, seconds)), [false, true]);
        assert!(may(&back_offs, other, 6), "another content may be built");
        assert_eq!((back_offs.next(), back_offs.take_due(at(14)).len()), (Some(at(15)), 0));
        assert_eq!((back_offs.take_due(at(15)), back_offs.next()), (vec![service.clone()], None));
        assert_eq!(back_offs.reset(), std::slice::from_ref(&service));
        assert!(may(&back_offs, one, 6));

        fails(&mut back_offs, other, RetryPolicy::BackOff, 20);
        assert_eq!(
            [24, 25].map(|seconds| may(&back_offs, other, seconds)),
            [false, true],
            "its back-off starts from the first"
        );
        fails(&mut back_offs, other, RetryPolicy::Never, 25);
        back_offs.reset();
        assert!(!may(&back_offs, other, 1_000_000));
        fails(&mut back_offs, other, RetryPolicy::NextPoll, 26);
        assert!(may(&back_offs, other, 26));
    }
}

//! The freshness lease: an origin's event stream validates all its services at once.
//!
//! While the stream is followed without a gap, an entry that was validated since the stream began is current, because a
//! change would have been sent before the next heartbeat. So each heartbeat validates all of them. When the stream
//! breaks off, they age from its last heartbeat; when it is resumed at its cursor, the lease is renewed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::{AtomicMoment, Moment};

/// The freshness lease of one origin.
#[derive(Debug)]
pub(crate) struct FreshnessLease {
    /// The lease covers entries that were validated since then.
    since: AtomicMoment,
    /// The last heartbeat.
    at: AtomicMoment,
    /// The stream is open, and all its events are applied.
    in_step: AtomicBool,
}

impl Default for FreshnessLease {
    /// The lease of a stream that never began.
    fn default() -> Self {
        Self {
            since: AtomicMoment::new(Moment::LATEST),
            at: AtomicMoment::new(Moment::EARLIEST),
            in_step: AtomicBool::new(false),
        }
    }
}

impl FreshnessLease {
    /// The last validation of an entry, by itself or by the lease.
    pub(crate) fn validated(&self, by_itself: Moment) -> Moment {
        if self.covers(by_itself) { by_itself.max(self.at.get()) } else { by_itself }
    }

    /// Whether the lease covers an entry with this last validation of its own.
    pub(crate) fn covers(&self, by_itself: Moment) -> bool {
        by_itself >= self.since.get()
    }

    /// A new snapshot begins. Validations of the old lease must have been copied to the entries.
    pub(crate) fn begin(&self, now: Moment) {
        self.since.set(now);
    }

    /// The snapshot is complete.
    pub(crate) fn in_step(&self) {
        self.in_step.store(true, Ordering::Relaxed);
    }

    /// All events up to now were received.
    pub(crate) fn heartbeat(&self, now: Moment) {
        self.at.advance(now);
        self.in_step();
    }

    /// The stream broke off or ended.
    pub(crate) fn out_of_step(&self) {
        self.in_step.store(false, Ordering::Relaxed);
    }

    pub(crate) fn last_heartbeat(&self) -> Option<Moment> {
        Some(self.at.get()).filter(|at| *at > Moment::EARLIEST)
    }

    pub(crate) fn is_in_step(&self) -> bool {
        self.in_step.load(Ordering::Relaxed)
    }
}

/// The last validation of a tombstone. Another origin may publish the service, so the leases of all origins must cover
/// it.
pub(super) fn absence_validated(leases: &[FreshnessLease], by_itself: Moment) -> Moment {
    leases.iter().map(|lease| lease.validated(by_itself)).min().unwrap_or(by_itself)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn absence_needs_the_leases_of_all_origins() {
        let begun = Clock::begin().now();
        let later = |seconds| begun.after(Duration::from_secs(seconds));
        let leases = [FreshnessLease::default(), FreshnessLease::default()];
        leases[0].begin(later(1));
        leases[0].heartbeat(later(9));
        assert_eq!(absence_validated(&leases, later(2)), later(2), "one of them is silent");
        leases[1].begin(later(3));
        leases[1].heartbeat(later(8));
        assert_eq!(absence_validated(&leases, later(2)), later(2), "it may have appeared before that stream began");
        assert_eq!(absence_validated(&leases, later(4)), later(8));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Begin,
        Heartbeat,
        Break,
    }

    proptest! {
        #[test]
        fn it_covers_what_was_validated_since_it_began_and_never_beyond_its_last_heartbeat(
            steps in proptest::collection::vec(
                (prop_oneof![Just(Step::Begin), Just(Step::Heartbeat), Just(Step::Break)], 1u64..5_000), 1..40,
            ),
            validated_after in 0usize..40,
        ) {
            let lease = FreshnessLease::default();
            let mut now = Clock::begin().now();
            let (mut began, mut heartbeat, mut by_itself) = (None, None, now);
            for (number, (step, wait)) in steps.into_iter().enumerate() {
                now = now.after(Duration::from_millis(wait));
                match step {
                    Step::Begin => { lease.begin(now); began = Some(now); }
                    Step::Heartbeat => { lease.heartbeat(now); heartbeat = Some(now); }
                    Step::Break => lease.out_of_step(),
                }
                if number == validated_after {
                    by_itself = now;
                }
                let expected = match (began, heartbeat) {
                    (Some(began), Some(heartbeat)) if by_itself >= began => by_itself.max(heartbeat),
                    _ => by_itself,
                };
                prop_assert_eq!(lease.validated(by_itself), expected);
                prop_assert!(lease.validated(by_itself) <= now);
            }
        }
    }
}

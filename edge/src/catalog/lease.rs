//! The freshness lease: an origin's event stream validates all its services at once.
//!
//! While the stream is followed without a gap, an entry that it announced since it began is current, because a change
//! would have been sent before the next heartbeat. So each heartbeat validates all of them, until the origin says that it
//! has released their repository. When the stream breaks off, they age from its last heartbeat; when it is resumed at its
//! cursor, the lease is renewed.

use std::sync::atomic::{AtomicBool, Ordering};

use weir_cache::clock::{AtomicMoment, Moment};

/// The freshness lease of one origin.
#[derive(Debug)]
pub(crate) struct FreshnessLease {
    /// The lease covers entries that the stream announced since then.
    since: AtomicMoment,
    /// The last heartbeat.
    at: AtomicMoment,
    /// The stream is open, and all its events are applied.
    in_sync: AtomicBool,
}

impl Default for FreshnessLease {
    /// The lease of a stream that never began.
    fn default() -> Self {
        Self {
            since: AtomicMoment::new(Moment::LATEST),
            at: AtomicMoment::new(Moment::EARLIEST),
            in_sync: AtomicBool::new(false),
        }
    }
}

impl FreshnessLease {
    /// The last validation of an entry, by itself or by the lease. `announced`: when the stream announced it last.
    pub(crate) fn validated(&self, own: Moment, announced: Moment) -> Moment {
        if self.covers(announced) { own.max(self.at.get()) } else { own }
    }

    /// Whether the lease covers an entry that the stream announced at this time.
    pub(crate) fn covers(&self, announced: Moment) -> bool {
        announced >= self.since.get()
    }

    /// A new snapshot begins. Validations of the old lease must have been copied to the entries.
    pub(crate) fn begin(&self, now: Moment) {
        self.since.set(now);
    }

    /// The origin has left. Validations must have been copied to the entries. Another one may get the lease.
    pub(crate) fn end(&self) {
        self.since.set(Moment::LATEST);
        self.at.set(Moment::EARLIEST);
        self.lost_sync();
    }

    /// The snapshot is complete.
    pub(crate) fn in_sync(&self) {
        self.in_sync.store(true, Ordering::Relaxed);
    }

    /// All events up to now were received.
    pub(crate) fn heartbeat(&self, now: Moment) {
        self.at.advance(now);
        self.in_sync();
    }

    /// The stream broke off or ended.
    pub(crate) fn lost_sync(&self) {
        self.in_sync.store(false, Ordering::Relaxed);
    }

    pub(crate) fn last_heartbeat(&self) -> Option<Moment> {
        Some(self.at.get()).filter(|at| *at > Moment::EARLIEST)
    }

    pub(crate) fn is_in_sync(&self) -> bool {
        self.in_sync.load(Ordering::Relaxed)
    }
}

/// The last validation of a tombstone. Another origin may publish the service, so the leases of all origins must cover
/// it: each would announce it.
pub(super) fn tombstone_validated<'a>(leases: impl Iterator<Item = &'a FreshnessLease>, own: Moment) -> Moment {
    leases.map(|lease| lease.validated(own, own)).min().unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;
    use weir_cache::clock::Clock;

    #[test]
    fn absence_needs_the_leases_of_all_origins() {
        let started = Clock::start().now();
        let later = |seconds| started.after(Duration::from_secs(seconds));
        let leases = [FreshnessLease::default(), FreshnessLease::default()];
        leases[0].begin(later(1));
        leases[0].heartbeat(later(9));
        assert_eq!(tombstone_validated(leases.iter(), later(2)), later(2), "one of them is silent");
        leases[1].begin(later(3));
        leases[1].heartbeat(later(8));
        assert_eq!(
            tombstone_validated(leases.iter(), later(2)),
            later(2),
            "it may have appeared before that stream began"
        );
        assert_eq!(tombstone_validated(leases.iter(), later(4)), later(8));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Begin,
        Heartbeat,
        Break,
    }

    proptest! {
        #[test]
        fn a_lease_covers_validations_since_its_start_up_to_the_last_heartbeat(
            steps in proptest::collection::vec(
                (prop_oneof![Just(Step::Begin), Just(Step::Heartbeat), Just(Step::Break)], 1u64..5_000), 1..40,
            ),
            validated_after in 0usize..40,
        ) {
            let lease = FreshnessLease::default();
            let mut now = Clock::start().now();
            let (mut began, mut heartbeat, mut own) = (None, None, now);
            for (number, (step, wait)) in steps.into_iter().enumerate() {
                now = now.after(Duration::from_millis(wait));
                match step {
                    Step::Begin => { lease.begin(now); began = Some(now); }
                    Step::Heartbeat => { lease.heartbeat(now); heartbeat = Some(now); }
                    Step::Break => lease.lost_sync(),
                }
                if number == validated_after {
                    own = now;
                }
                let expected = match (began, heartbeat) {
                    (Some(began), Some(heartbeat)) if own >= began => own.max(heartbeat),
                    _ => own,
                };
                prop_assert_eq!(lease.validated(own, own), expected);
                prop_assert!(lease.validated(own, own) <= now);
            }
        }
    }
}

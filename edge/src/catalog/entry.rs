//! What the catalog knows of one service.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_protocol::descriptor::Generation;

use super::freshness::{Freshness, FreshnessPolicy};
use crate::clock::{AtomicMoment, Moment};
use crate::origin_client::OriginId;
use crate::version::Version;

/// What an entry takes in memory besides its descriptor, about, in bytes.
const ENTRY_BYTES: u64 = 1024;

/// What orders the versions of a service: generation and revision.
pub(crate) type Order = (Generation, u64);

/// What the catalog knows of one service.
#[derive(Debug)]
pub(crate) struct Entry {
    /// What is served; `None` is a tombstone: the service is gone.
    pub(crate) version: Option<Arc<Version>>,
    /// The highest generation and revision ever seen, a tombstone's included.
    pub(crate) highest: Order,
    /// Whose it is; `None` when that origin is no longer configured.
    pub(crate) origin: Option<OriginId>,
    /// How old it may be.
    pub(crate) policy: Arc<FreshnessPolicy>,
    /// When it was requested; the same for all versions of the service.
    pub(crate) usage: Arc<Usage>,
    /// When this version, or the tombstone, was taken.
    pub(super) since: Moment,
    last_validated: AtomicMoment,
    last_queried: AtomicMoment,
    /// Up to then its origin has said that it is current, of it alone, since the process began.
    confirmed_at: AtomicMoment,
    /// Nothing that its origin said of it up to then counts.
    suspect_until: AtomicMoment,
    /// The last validation is not on disk yet.
    unwritten: AtomicBool,
    soft_purged_at: AtomicMoment,
    hard_purged_at: AtomicMoment,
    /// The generation of the last offer that was refused; 0: none was.
    refused: AtomicU64,
}

/// How far an operator's purge goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PurgeMode {
    /// What is stored is stale: it is served while the origin is asked.
    Soft,
    /// What is stored is dropped: the origin is asked before anything is served.
    Hard,
}

/// When clients requested a service.
#[derive(Debug)]
pub(crate) struct Usage {
    last: AtomicMoment,
}

impl Usage {
    /// `last`: when it was requested for the last time.
    pub(crate) fn new(last: Moment) -> Arc<Self> {
        Arc::new(Self { last: AtomicMoment::new(last) })
    }

    /// A client requests it.
    pub(crate) fn requested(&self, now: Moment) {
        self.last.advance(now);
    }

    /// When a client requested it for the last time.
    pub(super) fn last(&self) -> Moment {
        self.last.get()
    }

    /// How long ago a client requested it.
    pub(crate) fn idle(&self, now: Moment) -> Duration {
        now.since(self.last.get())
    }
}

impl Entry {
    pub(super) fn new(
        version: Option<Arc<Version>>,
        highest: Order,
        origin: Option<OriginId>,
        policy: Arc<FreshnessPolicy>,
        usage: Arc<Usage>,
        since: Moment,
    ) -> Self {
        let never = || AtomicMoment::new(Moment::EARLIEST);
        Self {
            version,
            highest,
            origin,
            policy,
            usage,
            since,
            last_validated: AtomicMoment::new(since),
            last_queried: AtomicMoment::new(since),
            confirmed_at: never(),
            suspect_until: never(),
            unwritten: AtomicBool::new(false),
            soft_purged_at: never(),
            hard_purged_at: never(),
            refused: AtomicU64::new(0),
        }
    }

    /// Its origin said so at this moment.
    pub(super) fn confirmed_when_taken(self) -> Self {
        self.confirmed_at.set(self.since);
        self
    }

    /// It was validated at this moment, before the process began.
    pub(super) fn validated_at(self, at: Moment) -> Self {
        self.last_validated.set(at);
        self.last_queried.set(at);
        self
    }

    /// The memory that it takes, about, in bytes.
    pub(super) fn weight(&self) -> u64 {
        // What is read of a descriptor takes about as much again as its bytes.
        ENTRY_BYTES + self.version.as_ref().map_or(0, |version| 2 * version.descriptor().bytes().len() as u64)
    }

    /// Whether what its origin says of all its services together holds for it.
    pub(super) fn can_be_leased(&self) -> bool {
        self.confirmed_at.get() > self.suspect_until.get()
    }

    /// Its origin has said something of it that was refused, or could not be taken: what it says of all its services does
    /// not hold for this one until it has answered a query that was put after `at`.
    pub(crate) fn suspect(&self, at: Moment) {
        self.suspect_until.advance(at);
    }

    /// When it was validated last, by itself.
    pub(crate) fn last_validated(&self) -> Moment {
        self.last_validated.get()
    }

    /// The origin has said that this was current then.
    pub(super) fn confirm(&self, at: Moment) {
        self.validate(at);
        self.confirmed_at.advance(at);
    }

    /// It was current then, by what its origin said of all its services.
    pub(super) fn validate(&self, at: Moment) {
        self.last_validated.advance(at);
        self.unwritten.store(true, Ordering::Relaxed);
    }

    /// Whether its last validation has to be written; from now on it counts as written.
    pub(super) fn take_unwritten(&self) -> bool {
        self.unwritten.swap(false, Ordering::Relaxed)
    }

    /// What to do with it at this age, after what an operator has purged since its last validation.
    pub(crate) fn evaluate(&self, age: Duration) -> Freshness {
        let freshness = self.policy.limits.evaluate(age);
        let validated = self.last_validated.get();
        if self.hard_purged_at.get() >= validated {
            freshness.max(Freshness::Revalidate)
        } else if self.soft_purged_at.get() >= validated {
            freshness.max(Freshness::StaleWhileRevalidate)
        } else {
            freshness
        }
    }

    /// What the origin has said until now counts no longer, of this service or of all of them. The highest generation is
    /// not forgotten.
    pub(super) fn purge(&self, mode: PurgeMode, now: Moment) {
        match mode {
            PurgeMode::Soft => self.soft_purged_at.advance(now),
            PurgeMode::Hard => self.hard_purged_at.advance(now),
        };
        self.suspect(now);
    }

    /// The hard purge that its origin has not answered since.
    pub(super) fn hard_purge(&self) -> Option<Moment> {
        Some(self.hard_purged_at.get()).filter(|at| *at > Moment::EARLIEST && *at >= self.last_validated.get())
    }

    /// What an operator purged of `earlier` stays purged, until the origin has spoken after it.
    pub(super) fn inherit_purges(&self, earlier: &Entry) {
        self.soft_purged_at.advance(earlier.soft_purged_at.get());
        self.hard_purged_at.advance(earlier.hard_purged_at.get());
        self.suspect(self.soft_purged_at.get().max(self.hard_purged_at.get()));
    }

    /// An offer of the origin was refused, because a newer one was seen before.
    pub(super) fn refuse(&self, offered: Generation) {
        self.refused.store(offered, Ordering::Relaxed);
    }

    /// The generation of the last offer that was refused.
    pub(crate) fn refused(&self) -> Option<Generation> {
        Some(self.refused.load(Ordering::Relaxed)).filter(|generation| *generation > 0)
    }

    /// The origin is being asked about it.
    pub(super) fn queried(&self, at: Moment) {
        self.last_queried.advance(at);
    }

    /// When the origin was asked about it for the last time.
    pub(crate) fn last_queried(&self) -> Moment {
        self.last_queried.get()
    }

    /// How long ago the origin was asked about it.
    pub(crate) fn since_queried(&self, now: Moment) -> Duration {
        now.since(self.last_queried.get())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::catalog::freshness::FreshnessPolicies;
    use crate::catalog::freshness::tests::limits;
    use crate::clock::Clock;
    use weir_protocol::descriptor::{Descriptor, DescriptorFields, FORMAT, Publication, Selector};
    use weir_protocol::digest::{Sha256, TarballDigest};
    use weir_protocol::revision_id::RevisionId;

    pub(in crate::catalog) fn descriptor(service: &str, generation: u64, revision: u64, content: &[u8]) -> Descriptor {
        let commit = "c".repeat(40).parse().unwrap();
        Descriptor::new(DescriptorFields {
            publication: Publication {
                service: service.parse().unwrap(),
                repository: "shop".parse().unwrap(),
                generation,
                digest: TarballDigest::of(content),
                sha256: Sha256::from_bytes([0; 32]),
                size: content.len() as u64,
                revision_id: RevisionId::from(&commit),
                commit,
                selector: Selector,
                published_at: std::time::UNIX_EPOCH,
                format: FORMAT,
                omitted: Vec::new(),
            },
            followed_ref: "main".to_owned(),
            revision,
            representations: Vec::new(),
        })
    }

    pub(in crate::catalog) fn entry(version: Option<Descriptor>, now: Moment) -> Entry {
        let policy = FreshnessPolicies::new([], limits(15, None), false).of(&"shop".parse().unwrap()).clone();
        let version = version.map(|version| Arc::new(Version::new(version)));
        Entry::new(version, (5, 2), Some(0), policy, Usage::new(now), now)
    }

    #[test]
    fn a_purge_holds_until_the_origin_has_spoken_again() {
        let begun = Clock::begin().now();
        let later = |seconds| begun.after(Duration::from_secs(seconds));
        for (mode, expected) in
            [(PurgeMode::Soft, Freshness::StaleWhileRevalidate), (PurgeMode::Hard, Freshness::Revalidate)]
        {
            let entry = entry(None, begun).confirmed_when_taken();
            let at = |entry: &Entry, seconds| entry.evaluate(later(seconds).since(entry.last_validated()));
            assert_eq!(at(&entry, 1), Freshness::Fresh);
            entry.purge(mode, later(2));
            assert_eq!(at(&entry, 2), expected);
            assert!(!entry.can_be_leased(), "what is said of all services is not said of it");
            // The answer to a query that was put before the purge is no answer to it.
            entry.confirm(later(1));
            assert_eq!(at(&entry, 3), expected);
            assert!(!entry.can_be_leased(), "and the next heartbeat is none either");
            assert_eq!(at(&entry, 100), Freshness::Revalidate, "it ages as ever");
            assert_eq!(entry.hard_purge().is_some(), mode == PurgeMode::Hard);
            entry.confirm(later(4));
            assert_eq!(at(&entry, 4), Freshness::Fresh);
            assert!(entry.can_be_leased() && entry.hard_purge().is_none());
            assert_eq!(entry.highest, (5, 2));
        }
    }
}

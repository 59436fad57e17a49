//! The catalog's entry of one service.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_cache::OriginId;
use weir_cache::clock::{AtomicMoment, Moment};
use weir_protocol::descriptor::Generation;

use super::freshness::{Freshness, FreshnessPolicy};
use crate::version::Version;

/// The approximate memory of an entry besides its descriptor, in bytes.
const ENTRY_BYTES: u64 = 1024;

/// The order of the versions of a service: generation, then revision.
pub(crate) type VersionNumber = (Generation, u64);

/// The catalog's entry of one service.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The current version; `None` is a tombstone.
    pub(crate) version: Option<Arc<Version>>,
    /// The highest version ever seen, also before a tombstone.
    pub(crate) highest: VersionNumber,
    /// The origin whose event stream announced this version, or that answered the query for it. It is asked first. `None`
    /// when it is not known any more.
    pub(crate) origin: Option<OriginId>,
    pub(crate) policy: Arc<FreshnessPolicy>,
    /// When a client last requested it. Shared by all versions of the service.
    pub(crate) last_request: Arc<LastRequest>,
    /// When this version, or the tombstone, was stored.
    pub(super) since: Moment,
    last_validated: AtomicMoment,
    last_queried: AtomicMoment,
    /// The last time the origin confirmed this entry individually since the process started.
    confirmed_at: AtomicMoment,
    /// The last time the event stream of the origin announced this version.
    announced_at: AtomicMoment,
    /// Another origin whose event stream announced this version, and when: it vouches for the entry once `origin` releases
    /// it. The announcements of a move come in any order.
    also_announced: Mutex<Option<(OriginId, Moment)>>,
    /// Confirmations up to this time are ignored.
    suspect_until: AtomicMoment,
    /// The last validation is not on disk yet.
    dirty: AtomicBool,
    soft_purged_at: AtomicMoment,
    hard_purged_at: AtomicMoment,
    /// The generation of the last rejected update; 0 for none.
    rejected_generation: AtomicU64,
    /// The catalog has another entry of the service, or none.
    replaced: AtomicBool,
}

/// The mode of an operator's purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PurgeMode {
    /// The entry becomes stale: it is served while it is revalidated.
    Soft,
    /// The entry must be revalidated before it is served.
    Hard,
}

/// When a client last requested a service.
#[derive(Debug)]
pub(crate) struct LastRequest {
    last: AtomicMoment,
    /// When a client of registries did. Not on disk.
    last_pull: AtomicMoment,
}

impl LastRequest {
    pub(crate) fn new(last: Moment) -> Arc<Self> {
        Arc::new(Self { last: AtomicMoment::new(last), last_pull: AtomicMoment::new(Moment::EARLIEST) })
    }

    pub(crate) fn record(&self, now: Moment) {
        self.last.advance(now);
    }

    pub(super) fn record_pull(&self, now: Moment) {
        self.last_pull.advance(now);
    }

    pub(super) fn last(&self) -> Moment {
        self.last.get()
    }

    /// The time since the last request of a client of registries.
    pub(crate) fn idle_pull(&self, now: Moment) -> Duration {
        now.since(self.last_pull.get())
    }

    /// The time since the last request.
    pub(crate) fn idle(&self, now: Moment) -> Duration {
        now.since(self.last.get())
    }
}

impl Entry {
    pub(super) fn new(
        version: Option<Arc<Version>>,
        highest: VersionNumber,
        origin: Option<OriginId>,
        policy: Arc<FreshnessPolicy>,
        last_request: Arc<LastRequest>,
        since: Moment,
    ) -> Self {
        let never = || AtomicMoment::new(Moment::EARLIEST);
        Self {
            version,
            highest,
            origin,
            policy,
            last_request,
            since,
            last_validated: AtomicMoment::new(since),
            last_queried: AtomicMoment::new(since),
            confirmed_at: never(),
            announced_at: never(),
            also_announced: Mutex::default(),
            suspect_until: never(),
            dirty: AtomicBool::new(false),
            soft_purged_at: never(),
            hard_purged_at: never(),
            rejected_generation: AtomicU64::new(0),
            replaced: AtomicBool::new(false),
        }
    }

    /// Counts as confirmed at the time it was stored.
    pub(super) fn confirmed_when_stored(self) -> Self {
        self.confirmed_at.set(self.since);
        self
    }

    /// The event stream of the origin announces it: from now on each of its heartbeats vouches for the entry.
    pub(super) fn announce(&self, at: Moment) {
        self.announced_at.advance(at);
    }

    /// The origin does not vouch for the entry any longer.
    pub(super) fn release(&self) {
        self.announced_at.set(Moment::EARLIEST);
    }

    /// The entry that this one replaces is of the same version and of another origin, which vouches for it still.
    pub(super) fn remember_announcement(&self, earlier: &Self) {
        let announcement = earlier.origin.map(|origin| (origin, earlier.announced_at()));
        *self.also_announced.lock().unwrap_or_else(PoisonError::into_inner) = announcement;
    }

    /// The announcement of this version by another origin.
    pub(super) fn other_announcement(&self) -> Option<(OriginId, Moment)> {
        *self.also_announced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An origin other than that of the entry released its repository.
    pub(super) fn forget_announcement(&self, origin: OriginId) {
        let mut other = self.also_announced.lock().unwrap_or_else(PoisonError::into_inner);
        *other = other.filter(|(announced_by, _)| *announced_by != origin);
    }

    pub(super) fn announced_at(&self) -> Moment {
        self.announced_at.get()
    }

    /// Sets the last validation, of an earlier process.
    pub(super) fn validated_at(self, at: Moment) -> Self {
        self.last_validated.set(at);
        self.last_queried.set(at);
        self
    }

    /// The approximate memory of the entry, in bytes.
    pub(super) fn weight(&self) -> u64 {
        // A parsed descriptor takes about as much again as its bytes.
        let bytes = |version: &Arc<Version>| 2 * version.descriptor().bytes().len() as u64;
        ENTRY_BYTES + self.version.iter().flat_map(Version::all).map(bytes).sum::<u64>()
    }

    /// Whether the freshness lease of its origin may cover the entry.
    pub(super) fn is_leasable(&self) -> bool {
        self.confirmed_at.get() > self.suspect_until.get()
    }

    /// An update of the entry was rejected or could not be stored: the lease does not cover it until the origin answers
    /// a query sent after `at`.
    pub(crate) fn suspect(&self, at: Moment) {
        self.suspect_until.advance(at);
    }

    /// The last individual validation.
    pub(crate) fn last_validated(&self) -> Moment {
        self.last_validated.get()
    }

    /// The origin confirmed the entry at this time.
    pub(super) fn confirm(&self, at: Moment) {
        self.validate(at);
        self.confirmed_at.advance(at);
    }

    /// The lease validated the entry at this time.
    pub(super) fn validate(&self, at: Moment) {
        self.last_validated.advance(at);
        self.dirty.store(true, Ordering::Relaxed);
    }

    /// Whether the last validation has to be written; marks it as written.
    pub(super) fn take_dirty(&self) -> bool {
        self.dirty.swap(false, Ordering::Relaxed)
    }

    /// Whether another entry has the same version, or none has one: agents are told the same.
    pub(super) fn has_version_of(&self, other: &Self) -> bool {
        fn tag(entry: &Entry) -> Option<&str> {
            entry.version.as_ref().map(|version| version.values.descriptor_tag.text.as_str())
        }
        tag(self) == tag(other)
    }

    /// Evaluates the freshness at this age, with purges since the last validation.
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

    /// Purges the entry, and suspends the lease for it. The highest generation is kept.
    pub(super) fn purge(&self, mode: PurgeMode, now: Moment) {
        match mode {
            PurgeMode::Soft => self.soft_purged_at.advance(now),
            PurgeMode::Hard => self.hard_purged_at.advance(now),
        };
        self.suspect(now);
    }

    /// A hard purge that was not followed by a validation yet.
    pub(super) fn pending_hard_purge(&self) -> Option<Moment> {
        Some(self.hard_purged_at.get()).filter(|at| *at > Moment::EARLIEST && *at >= self.last_validated.get())
    }

    /// Takes over the purges of the entry that this one replaces.
    pub(super) fn inherit_purges(&self, earlier: &Entry) {
        self.soft_purged_at.advance(earlier.soft_purged_at.get());
        self.hard_purged_at.advance(earlier.hard_purged_at.get());
        self.suspect(self.soft_purged_at.get().max(self.hard_purged_at.get()));
    }

    /// Whether the catalog has another entry of the service by now, or none.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    pub(super) fn replace(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    /// Records a rejected update.
    pub(super) fn reject(&self, offered: Generation) {
        self.rejected_generation.store(offered, Ordering::Relaxed);
    }

    pub(crate) fn rejected_generation(&self) -> Option<Generation> {
        Some(self.rejected_generation.load(Ordering::Relaxed)).filter(|generation| *generation > 0)
    }

    /// Records a query to the origin.
    pub(super) fn queried(&self, at: Moment) {
        self.last_queried.advance(at);
    }

    pub(crate) fn last_queried(&self) -> Moment {
        self.last_queried.get()
    }

    pub(crate) fn since_queried(&self, now: Moment) -> Duration {
        now.since(self.last_queried.get())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::catalog::freshness::FreshnessPolicies;
    use crate::catalog::freshness::tests::limits;
    use weir_cache::clock::Clock;
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
                commit: Some(commit),
                version: None,
                parts: Vec::new(),
                selector: Selector,
                published_at: std::time::UNIX_EPOCH,
                format: FORMAT,
                omitted: Vec::new(),
            },
            followed_ref: "main".to_owned(),
            revision,
            representations: Vec::new(),
            oci: None,
            staged: None,
        })
    }

    pub(in crate::catalog) fn entry(version: Option<Descriptor>, now: Moment) -> Entry {
        let policy = FreshnessPolicies::new([], limits(15, None), false).of(&"shop".parse().unwrap()).clone();
        let version = version.map(|version| Arc::new(Version::new(version)));
        Entry::new(version, (5, 2), Some(0), policy, LastRequest::new(now), now)
    }

    #[test]
    fn a_purge_holds_until_the_next_validation() {
        let start = Clock::start().now();
        let later = |seconds| start.after(Duration::from_secs(seconds));
        for (mode, expected) in
            [(PurgeMode::Soft, Freshness::StaleWhileRevalidate), (PurgeMode::Hard, Freshness::Revalidate)]
        {
            let entry = entry(None, start).confirmed_when_stored();
            let at = |entry: &Entry, seconds| entry.evaluate(later(seconds).since(entry.last_validated()));
            assert_eq!(at(&entry, 1), Freshness::Fresh);
            entry.purge(mode, later(2));
            assert_eq!(at(&entry, 2), expected);
            assert!(!entry.is_leasable(), "the lease does not cover it");
            // The response to a query from before the purge does not lift it.
            entry.confirm(later(1));
            assert_eq!(at(&entry, 3), expected);
            assert!(!entry.is_leasable(), "and the next heartbeat is none either");
            assert_eq!(at(&entry, 100), Freshness::Revalidate, "it ages as ever");
            assert_eq!(entry.pending_hard_purge().is_some(), mode == PurgeMode::Hard);
            entry.confirm(later(4));
            assert_eq!(at(&entry, 4), Freshness::Fresh);
            assert!(entry.is_leasable() && entry.pending_hard_purge().is_none());
            assert_eq!(entry.highest, (5, 2));
        }
    }
}

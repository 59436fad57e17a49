//! The catalog: entries in memory, and a journal that survives restarts.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use weir_cache::OriginId;
use weir_cache::clock::{Clock, Moment};
use weir_protocol::descriptor::Descriptor;
use weir_protocol::event::RevisionSeen;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_runtime::directory_lock::DirectoryLock;

use super::changes::{CatalogChange, Changes};
use super::entries::{CatalogBounds, Entries, MAX_FLOORS};
use super::entry::{Entry, LastRequest, PurgeMode, VersionNumber};
use super::freshness::{Freshness, FreshnessPolicies};
use super::journal::Journal;
use super::lease::{FreshnessLease, tombstone_validated};
use super::metrics::CatalogMetrics;
use super::record::{EntryRecord, GenerationFloor, JournalContents, Record};
use super::revisions::{RevisionStatus, Revisions};
use super::update::{Update, UpdateContent, UpdateSource};
use super::write_queue::{WriteQueue, WriteState};
use crate::origin_client::{MAX_ORIGINS, Origins};
use crate::version::Version;

pub(crate) struct Catalog {
    pub(super) entries: Entries,
    pub(super) bounds: CatalogBounds,
    /// The write-behind queue and the floors of evicted services. Held while an update is decided.
    pub(super) write_queue: Mutex<WriteQueue>,
    pub(super) journal: Mutex<Journal>,
    pub(super) writes: watch::Sender<WriteState>,
    pub(super) origins: Arc<Origins>,
    /// By the ids of the origins.
    leases: Vec<FreshnessLease>,
    /// The origins of which all services are here, or were evicted: their snapshots were complete once, also before a restart.
    complete: Mutex<BTreeSet<String>>,
    pub(super) revisions: Revisions,
    pub(super) changes: Changes,
    pub(super) policies: Arc<FreshnessPolicies>,
    pub(super) clock: Clock,
    pub(super) metrics: CatalogMetrics,
}

impl Catalog {
    /// Loads the catalog from the file `path`, in a directory locked by `lock`. Unreadable records are skipped and
    /// their services queried again. Blocks.
    pub(crate) fn load(
        path: &Path,
        lock: DirectoryLock,
        bounds: CatalogBounds,
        origins: Arc<Origins>,
        policies: Arc<FreshnessPolicies>,
        clock: Clock,
        metrics: CatalogMetrics,
    ) -> Arc<Self> {
        let leases = (0..MAX_ORIGINS).map(|_| FreshnessLease::default()).collect();
        let mut journal = Journal::new(path, lock);
        let (stored, result) = journal.read();
        let catalog = Self {
            entries: Entries::default(),
            bounds,
            write_queue: Mutex::default(),
            journal: Mutex::new(journal),
            writes: watch::Sender::new(WriteState::default()),
            revisions: Revisions::new(MAX_ORIGINS),
            changes: Changes::default(),
            origins,
            leases,
            complete: Mutex::default(),
            policies,
            clock,
            metrics,
        };
        if let Err(error) = &result {
            tracing::error!(path = %path.display(), %error, "the catalog could only be read in part; the other services are queried again");
        }
        if stored.damaged > 0 {
            let lines = stored.damaged;
            tracing::error!(path = %path.display(), lines, "the catalog is damaged; undamaged entries are revalidated, the other services are queried again");
        }
        catalog.metrics.damaged_records.inc_by(stored.damaged);
        let is_whole = result.is_ok() && stored.damaged == 0;
        catalog.restore(stored, is_whole);
        catalog.metrics.writable.set(1);
        // The first change rewrites the file.
        catalog.write_queue().rewrite = true;
        Arc::new(catalog)
    }

    /// `is_whole`: no record is missing. Otherwise everything is revalidated before it is served.
    fn restore(&self, stored: JournalContents, is_whole: bool) {
        let (now, wall) = (self.clock.now(), SystemTime::now());
        let mut queue = self.write_queue();
        if is_whole {
            *self.lock_complete() = stored.complete;
        }
        stored.floors.into_iter().for_each(|(service, floor)| queue.floors.insert(service, floor));
        for (service, row) in stored.entries {
            let version = match row.descriptor.map(|bytes| Descriptor::parse(bytes.into())).transpose() {
                Ok(descriptor) => descriptor.map(|descriptor| Arc::new(Version::new(descriptor))),
                Err(error) => {
                    tracing::warn!(%service, %error, "a stored descriptor cannot be parsed; the service is queried again");
                    let floor = GenerationFloor { highest: row.highest, purged: row.purged, is_published: true };
                    queue.floors.insert(service, floor);
                    continue;
                }
            };
            let origin = self.origins.find(&row.origin);
            if let Some(version) = &version {
                Self::restore_offer(version, row.offered, origin);
            }
            let policy = self.policies.of(&service).clone();
            let unknown = now.before(policy.limits.unknown_age());
            let validated = Moment::from_unix_millis(row.validated, now, wall).unwrap_or(unknown);
            let validated = if is_whole { validated } else { validated.min(unknown) };
            let since = self.moment(row.since);
            // Entries count as requested only after a request since the restart.
            let last_request = LastRequest::new(Moment::EARLIEST);
            let entry = Entry::new(version, row.highest, origin, policy, last_request, since);
            let entry = entry.validated_at(validated);
            row.purged.into_iter().for_each(|at| entry.purge(PurgeMode::Hard, self.moment(at)));
            self.entries.insert(service, Arc::new(entry));
        }
        self.evict_excess(&mut queue);
    }

    /// The moment of a Unix time in milliseconds; now when the wall clock was set back since.
    pub(super) fn moment(&self, at: u64) -> Moment {
        let now = self.clock.now();
        Moment::from_unix_millis(at, now, SystemTime::now()).unwrap_or(now)
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn get(&self, service: &ServiceName) -> Option<Arc<Entry>> {
        self.entries.get(service)
    }

    /// The highest version of a service ever seen, if it is remembered.
    pub(super) fn highest(&self, service: &ServiceName) -> VersionNumber {
        let queue = self.write_queue();
        let entry = queue.pending.get(service).cloned().or_else(|| self.entries.get(service));
        let floor = || queue.floors.get(service).map(|floor| floor.highest);
        entry.map(|entry| entry.highest).or_else(floor).unwrap_or_default()
    }

    /// The time since the last validation of an entry, by itself or by the lease.
    pub(crate) fn age(&self, entry: &Entry, now: Moment) -> Duration {
        now.since(self.validated(entry))
    }

    /// Whether an entry is too stale to be served without an answer of its origin.
    pub(crate) fn is_expired(&self, entry: &Entry, now: Moment) -> bool {
        entry.evaluate(self.age(entry, now)) == Freshness::Expired
    }

    pub(super) fn validated(&self, entry: &Entry) -> Moment {
        let own = entry.last_validated();
        match entry.origin.and_then(|origin| self.leases.get(origin)) {
            Some(lease) if entry.is_leasable() => match entry.version {
                Some(_) => lease.validated(own, entry.announced_at()),
                None => tombstone_validated(self.origins.followed().into_iter().map(|id| self.lease(id)), own),
            },
            _ => own,
        }
    }

    /// Whether the lease validated the entry last.
    pub(crate) fn is_leased(&self, entry: &Entry) -> bool {
        self.validated(entry) > entry.last_validated()
    }

    /// The freshness lease of an origin.
    pub(crate) fn lease(&self, origin: OriginId) -> &FreshnessLease {
        &self.leases[origin]
    }

    pub(crate) fn revisions(&self) -> &Revisions {
        &self.revisions
    }

    /// Records the announced revision of a ref.
    pub(crate) fn record_revision(&self, origin: OriginId, seen: RevisionSeen) {
        if self.revisions.record_upstream(&seen) {
            self.changes.send_upstream(&seen.repository, seen.upstream);
        }
        if self.revisions.record(origin, &seen) {
            self.changes.send(|| Some(CatalogChange::Revision(seen.into())));
        } else {
            self.metrics.revisions_dropped.inc();
        }
    }

    /// The revision status of a stored version, when the event stream of its origin is followed.
    pub(crate) fn revision_status(&self, service: &ServiceName, version: &Version) -> Option<RevisionStatus> {
        let entry = self.entries.get(service)?;
        let mut current = entry.version.iter().flat_map(Version::all);
        let is_current = current.any(|current| std::ptr::eq(&**current, version));
        let origin = entry.origin.filter(|_| is_current && entry.is_leasable())?;
        let lease = &self.leases[origin];
        let holds = lease.is_in_sync() && lease.covers(entry.announced_at());
        let descriptor = version.descriptor();
        holds.then(|| self.revisions.get(origin, &descriptor.publication().repository, descriptor.followed_ref()))?
    }

    /// Whether the event stream of every origin would announce a new service.
    pub(crate) fn all_streams_in_sync(&self) -> bool {
        let followed = self.origins.followed();
        !followed.is_empty() && followed.into_iter().all(|id| self.lease(id).is_in_sync())
    }

    /// Whether the names are those of all services: each cluster's snapshots were complete once, also before a restart.
    pub(crate) fn has_all_names(&self) -> bool {
        let (clusters, complete) = (self.origins.clusters(), self.complete_origins());
        clusters.iter().all(|origins| origins.iter().any(|origin| complete.contains(origin)))
    }

    /// The origins of which all services are known.
    pub(super) fn complete_origins(&self) -> BTreeSet<String> {
        let mut complete = self.lock_complete();
        if self.all_streams_in_sync() {
            *complete = self.origins.clusters().into_iter().flatten().collect();
        }
        complete.clone()
    }

    fn lock_complete(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.complete.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the validations of a lease to the entries, before the lease is reset.
    pub(crate) fn copy_lease_validations(&self) {
        for (_, entry) in self.entries.all() {
            let validated = self.validated(&entry);
            if validated > entry.last_validated() {
                entry.validate(validated);
            }
        }
    }

    /// An origin has left its cluster: nobody vouches for its services until another announces them. Scans all entries.
    pub(crate) fn left(&self, origin: OriginId) {
        self.copy_lease_validations();
        self.lease(origin).end();
        self.revisions.snapshot_begun(origin);
        self.revisions.snapshot_ended(origin);
        self.suspected();
    }

    /// An origin released a repository: its heartbeats do not vouch for the services any longer. Returns what is to be
    /// applied: its announcements may have come after those of the new owner, which vouches now. Scans all entries.
    pub(crate) fn release(&self, origin: OriginId, repository: &RepositoryName) -> Vec<Update> {
        self.revisions.release(origin, repository);
        // First: what its new owner announces during the scan comes after it.
        self.changes.send(|| Some(CatalogChange::Released(repository.clone())));
        let (mut others, mut announced) = (Vec::new(), Vec::new());
        for (service, entry) in self.entries.all() {
            let is_in = |version: &Arc<Version>| version.descriptor().publication().repository == *repository;
            let Some(version) = entry.version.as_ref().filter(|version| is_in(version)) else { continue };
            if entry.origin == Some(origin) {
                entry.validate(self.validated(&entry));
                entry.release();
                let other = entry.other_announcement().filter(|_| entry.is_leasable());
                if let Some((owner, at)) = other.filter(|(owner, at)| self.leases[*owner].covers(*at)) {
                    let content = UpdateContent::Current(Box::new(version.descriptor().clone()));
                    announced.push(Update { origin: Some(owner), source: UpdateSource::Stream, at, content });
                }
            } else {
                entry.forget_announcement(origin);
                others.push(service);
            }
        }
        // What its new owner has announced already.
        others.into_iter().for_each(|service| self.changes.send(|| Some(CatalogChange::Service(service))));
        announced
    }

    /// The number of services for which each origin vouches. Scans all entries.
    pub(crate) fn vouched(&self) -> HashMap<OriginId, u64> {
        let mut vouched = HashMap::new();
        for (_, entry) in self.entries.all() {
            if let Some(origin) = entry.origin.filter(|id| entry.version.is_some() && !self.is_uncovered(&entry, *id)) {
                *vouched.entry(origin).or_default() += 1;
            }
        }
        vouched
    }

    /// The services of an origin that its lease does not cover, without tombstones.
    pub(crate) fn missing_from_snapshot(&self, origin: OriginId) -> Vec<ServiceName> {
        let all = self.entries.all().into_iter();
        all.filter(|(_, entry)| self.is_uncovered(entry, origin)).map(|(service, _)| service).collect()
    }

    pub(super) fn is_uncovered(&self, entry: &Entry, origin: OriginId) -> bool {
        let is_its = entry.origin == Some(origin) && entry.version.is_some();
        is_its && !(entry.is_leasable() && self.leases[origin].covers(entry.announced_at()))
    }

    /// Purges a service. A hard purge is queued for disk: see [`Catalog::durable`].
    pub(super) fn purge(self: &Arc<Self>, service: &ServiceName, mode: PurgeMode) {
        let now = self.clock.now();
        let mut queue = self.write_queue();
        let known = [queue.pending.get(service).cloned(), self.entries.get(service)];
        known.iter().flatten().for_each(|entry| entry.purge(mode, now));
        if mode == PurgeMode::Hard {
            let at = now.to_unix_millis(now, SystemTime::now());
            if known.iter().all(Option::is_none) {
                let floor = queue.floors.get(service).unwrap_or_default();
                queue.floors.insert(service.clone(), GenerationFloor { purged: Some(at), ..floor });
            }
            let service = service.clone();
            self.enqueue(&mut queue, |queue| queue.push(Record::Purged { service, at }));
        }
    }

    /// The error of the last write; `None` when it succeeded.
    pub(crate) fn write_failure(&self) -> Option<String> {
        self.writes.borrow().failure.clone()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.count() == 0
    }

    /// Those of the known services that are wanted. Known are those with an entry, and those that were evicted to make room.
    pub(crate) fn names(&self, is_wanted: impl Fn(&ServiceName) -> bool) -> Vec<ServiceName> {
        // Meanwhile nothing is evicted or comes back.
        let queue = self.write_queue();
        let mut names = self.entries.names(&is_wanted);
        names.extend(queue.floors.published().filter(|service| is_wanted(service)).cloned());
        names
    }

    /// Whether a service is published as far as is known, and was evicted to make room.
    pub(crate) fn was_evicted(&self, service: &ServiceName) -> bool {
        self.write_queue().floors.get(service).is_some_and(|floor| floor.is_published)
    }

    /// Whether a service is one of the known ones.
    pub(crate) fn has_name(&self, service: &ServiceName) -> bool {
        // Meanwhile it is neither evicted nor comes back.
        let queue = self.write_queue();
        self.entries.get(service).is_some() || queue.floors.get(service).is_some_and(|floor| floor.is_published)
    }

    /// Grows when a service appears in the catalog or goes.
    pub(crate) fn names_version(&self) -> u64 {
        self.entries.names.version()
    }

    /// The names that appeared or went since a version, with the present version. `None`: any may have.
    pub(crate) fn names_since(&self, version: u64) -> Option<(u64, Vec<ServiceName>)> {
        self.entries.names.since(version)
    }

    /// All entries, in no order.
    pub(crate) fn all(&self) -> Vec<(ServiceName, Arc<Entry>)> {
        self.entries.all()
    }

    /// The fill level of each bound.
    pub(super) fn fill_levels(&self) -> [(&'static str, u64, u64); 3] {
        [
            ("services", self.entries.count(), self.bounds.services),
            ("service_bytes", self.entries.bytes(), self.bounds.bytes),
            ("service_floors", self.write_queue().floors.len() as u64, MAX_FLOORS as u64),
        ]
    }

    pub(super) fn write_queue(&self) -> MutexGuard<'_, WriteQueue> {
        self.write_queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The journal record of an entry.
    pub(super) fn row(&self, entry: &Entry, now: Moment, wall: SystemTime) -> EntryRecord {
        let text = |version: &Arc<Version>| String::from_utf8_lossy(version.descriptor().bytes()).into_owned();
        EntryRecord {
            highest: entry.highest,
            origin: entry.origin.and_then(|id| self.origins.name(id)).unwrap_or_default(),
            since: entry.since.to_unix_millis(now, wall),
            validated: self.validated(entry).to_unix_millis(now, wall),
            descriptor: entry.version.as_ref().map(text),
            purged: entry.pending_hard_purge().map(|at| at.to_unix_millis(now, wall)),
            offered: entry.version.as_ref().and_then(|version| version.offered()),
        }
    }
}

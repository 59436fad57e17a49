//! The table: a bounded view in memory over what stands on disk.
//!
//! What changes is on disk before it is served (see `changes`); of what was never held, `undurable` tells. Last words alone are written later, all together:
//! losing some makes answers look older than they are, never younger.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::name::ServiceName;

use super::changes::Queue;
use super::entry::{Entry, Usage};
use super::rules::Rules;
use super::store::{Record, Store, StoreError};
use super::undurable::{MAX_UNDURABLE, Undurable};
use super::vouch::{self, Vouch};
use crate::clock::{Clock, Moment};
use crate::metrics::TableMetrics;
use crate::origin_client::{OriginId, Origins};
use crate::version::Version;

/// The table.
pub(crate) struct Table {
    hot: Cache<ServiceName, Arc<Entry>>,
    store: Store,
    queue: Queue,
    undurable: Undurable,
    /// One writes at a time: what it takes for the newest is.
    writing: Mutex<()>,
    origins: Arc<Origins>,
    /// Of each origin, by its place in the configuration.
    vouches: Vec<Vouch>,
    rules: Arc<Rules>,
    clock: Clock,
    metrics: TableMetrics,
    bound: u64,
    /// Why the last write failed, while it did.
    write_failure: Mutex<Option<String>>,
}

impl Table {
    /// The table over `store`, with at most `bound` services in memory; what is on disk is read. Blocks.
    pub(crate) fn load(
        store: Store,
        bound: u64,
        origins: Arc<Origins>,
        rules: Arc<Rules>,
        clock: Clock,
        metrics: TableMetrics,
    ) -> Result<Self, StoreError> {
        let hot = Cache::builder().max_capacity(bound).eviction_policy(EvictionPolicy::lru()).build();
        let vouches = origins.all().iter().map(|_| Vouch::default()).collect();
        let table = Self {
            hot,
            store,
            queue: Queue::default(),
            undurable: Undurable::default(),
            writing: Mutex::default(),
            origins,
            vouches,
            rules,
            clock,
            metrics,
            bound,
            write_failure: Mutex::default(),
        };
        for (name, record) in table.store.all(usize::try_from(bound).unwrap_or(usize::MAX))? {
            let Ok(service) = ServiceName::from_str(&name) else { continue };
            let entry = table.entry(&service, record);
            table.hot.insert(service, Arc::new(entry));
        }
        table.count();
        table.metrics.writable.set(1);
        Ok(table)
    }

    /// What is known of a service in memory. No I/O.
    pub(crate) fn hot(&self, service: &ServiceName) -> Option<Arc<Entry>> {
        self.hot.get(service)
    }

    /// What is known of a service, in memory or on disk; from now on it is in memory. Blocks.
    pub(crate) fn read(&self, service: &ServiceName) -> Result<Option<Arc<Entry>>, StoreError> {
        if let Some(entry) = self.hot.get(service) {
            return Ok(Some(entry));
        }
        let read = match self.undurable.get(service) {
            Some(entry) => entry,
            None => match self.store.get(service.as_str())? {
                Some(record) => Arc::new(self.entry(service, record)),
                None => return Ok(None),
            },
        };
        // One that was written meanwhile stays.
        let read = || read;
        Ok(Some(self.hot.entry_by_ref(service).or_insert_with(read).into_value()))
    }

    /// How long it is since an entry was known to be current: since its origin's last word on it, or on all its services.
    pub(crate) fn age(&self, entry: &Entry, now: Moment) -> Duration {
        now.since(self.word(entry))
    }

    /// The moment up to which an entry is known to be current.
    fn word(&self, entry: &Entry) -> Moment {
        match entry.origin.and_then(|origin| self.vouches.get(origin)) {
            Some(_) if !entry.can_be_vouched_for() => entry.last_word(),
            Some(_) if entry.version.is_none() => vouch::word_of_all(&self.vouches, entry.last_word()),
            Some(vouch) => vouch.word(entry.last_word()),
            None => entry.last_word(),
        }
    }

    /// Whether an origin's event stream is the last that was heard of an entry.
    pub(crate) fn is_vouched_for(&self, entry: &Entry) -> bool {
        self.word(entry) > entry.last_word()
    }

    /// What the event stream of an origin vouches for.
    pub(crate) fn vouch(&self, origin: OriginId) -> &Vouch {
        &self.vouches[origin]
    }

    /// Whether what is gone at one origin may be at another.
    pub(super) fn has_several_origins(&self) -> bool {
        self.origins.all().len() > 1
    }

    /// Whether every origin's event stream would tell at once of a service that appears.
    pub(crate) fn is_told_of_everything(&self) -> bool {
        self.vouches.iter().all(Vouch::is_in_step)
    }

    /// Gives the entries that are vouched for as their own last word what was vouched for: it outlives the voucher.
    pub(crate) fn settle(&self) {
        for (_, entry) in &self.hot {
            let word = self.word(&entry);
            if word > entry.last_word() {
                entry.settle(word);
            }
        }
    }

    /// The services of an origin that it has not spoken of since its event stream began, tombstones left out.
    pub(crate) fn silent_on(&self, origin: OriginId) -> Vec<ServiceName> {
        let vouch = self.vouch(origin);
        let silent = |entry: &Entry| {
            let known = entry.origin == Some(origin) && entry.version.is_some();
            known && (vouch.is_silent_on(entry.last_word()) || !entry.can_be_vouched_for())
        };
        let silent = self.hot.iter().filter(|(_, entry)| silent(entry));
        silent.map(|(service, _)| ServiceName::clone(&service)).collect()
    }

    /// What is known of a service, in memory or on disk, without using it: nothing is brought into memory, or kept there
    /// for longer. Blocks.
    pub(crate) fn look_at(&self, service: &ServiceName) -> Result<Option<Arc<Entry>>, StoreError> {
        // An iterator, unlike `get`, does not count as a use.
        if let Some((_, entry)) = self.hot.iter().find(|(name, _)| **name == *service) {
            return Ok(Some(entry));
        }
        if let Some(entry) = self.undurable.get(service) {
            return Ok(Some(entry));
        }
        Ok(self.store.get(service.as_str())?.map(|record| Arc::new(self.entry(service, record))))
    }

    /// Shows all services, those that are on disk alone too, without using any. Blocks.
    pub(crate) fn look_at_all(&self, mut look: impl FnMut(&ServiceName, &Entry)) -> Result<(), StoreError> {
        // What is in memory counts, and of that what serves.
        let held: HashMap<_, _> = self.undurable.all().into_iter().chain(self.snapshot()).collect();
        held.iter().for_each(|(service, entry)| look(service, entry));
        self.store.each(|name, record| {
            if let Ok(service) = ServiceName::from_str(name)
                && !held.contains_key(&service)
            {
                look(&service, &self.entry(&service, record));
            }
        })
    }

    /// Why the last write to disk failed; `None` when it did not.
    pub(crate) fn write_failure(&self) -> Option<String> {
        self.write_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For how long no write is tried, because the disk has failed. May wait for one that is under way.
    pub(crate) fn left_alone_for(&self) -> Duration {
        self.store.left_alone_for()
    }

    /// Writes records, and before them what the disk has not taken yet. The caller holds the turn to write.
    pub(super) fn put(
        &self,
        _turn: &MutexGuard<'_, ()>,
        records: Vec<(ServiceName, Record)>,
    ) -> Result<(), StoreError> {
        let late = self.undurable.all().into_iter().map(|(service, entry)| {
            let bytes = entry.version.as_ref().map(|version| version.descriptor().bytes());
            (service, self.record(entry.highest, entry.origin, bytes, entry.last_word()))
        });
        let all: Vec<_> = late.chain(records).collect();
        if all.is_empty() {
            return Ok(());
        }
        self.written(self.store.put_all(&all))?;
        self.undurable.clear();
        Ok(())
    }

    /// The turn to write.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers whether a write failed.
    fn written(&self, written: Result<(), StoreError>) -> Result<(), StoreError> {
        let failure = written.as_ref().err().map(ToString::to_string);
        self.metrics.writable.set(i64::from(failure.is_none()));
        *self.write_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        written
    }

    /// How many services are in memory, and at the most.
    pub(crate) fn fill_level(&self) -> (u64, u64) {
        (self.hot.entry_count(), self.bound)
    }

    /// How many services wait to be written, and at the most.
    pub(crate) fn undurable_level(&self) -> (u64, u64) {
        (self.undurable.len() as u64, MAX_UNDURABLE as u64)
    }

    /// Writes what is not on disk yet: services that it had not taken, and last words, in one transaction; after a failure
    /// also when there are none, to find out whether it is over. Blocks.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        self.settle();
        let turn = self.turn();
        self.put(&turn, Vec::new())?;
        let (now, wall) = (self.clock.now(), SystemTime::now());
        let unwritten: Vec<_> = self.hot.iter().filter(|(_, entry)| entry.take_unwritten()).collect();
        if unwritten.is_empty() && self.write_failure().is_none() {
            return Ok(());
        }
        let words = unwritten.iter().map(|(s, entry)| (s.as_str(), entry.last_word().on_the_wall(now, wall)));
        let words: Vec<_> = words.collect();
        let written = self.written(self.store.put_words(&words));
        if written.is_err() {
            unwritten.iter().for_each(|(_, entry)| entry.keep_unwritten());
        }
        written
    }

    /// Whether nothing is known of any service.
    pub(crate) fn is_empty(&self) -> bool {
        self.hot.iter().next().is_none()
    }

    /// What is in memory, in no order.
    pub(crate) fn snapshot(&self) -> Vec<(ServiceName, Arc<Entry>)> {
        self.hot.iter().map(|(service, entry)| (ServiceName::clone(&service), entry)).collect()
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(super) fn undurable(&self) -> &Undurable {
        &self.undurable
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Serves from now on what has been written.
    pub(super) fn show(&self, service: ServiceName, entry: Arc<Entry>) {
        self.hot.insert(service, entry);
        self.count();
    }

    /// What is written of a service. `origin` is `None` when it came from one that is no longer configured.
    pub(super) fn record(
        &self,
        highest: (Generation, u64),
        origin: Option<OriginId>,
        descriptor: Option<&Bytes>,
        at: Moment,
    ) -> Record {
        Record {
            highest,
            origin: origin.and_then(|id| self.origins.name(id)).unwrap_or_default().to_owned(),
            descriptor: descriptor.map(|bytes| bytes.to_vec()),
            last_word: at.on_the_wall(self.clock.now(), SystemTime::now()),
        }
    }

    pub(super) fn alarm(
        &self,
        service: &ServiceName,
        origin: Option<OriginId>,
        offered: &Descriptor,
        highest: (Generation, u64),
    ) {
        self.metrics.regressions.inc();
        let (generation, revision) = offered.version();
        tracing::error!(
            %service, origin = origin.and_then(|id| self.origins.name(id)), generation, revision,
            highest_generation = highest.0, highest_revision = highest.1,
            "an origin offers an older version than was seen before; it is refused and what is held stays \
             (see generation_floor in the origin's configuration)"
        );
    }

    fn entry(&self, service: &ServiceName, record: Record) -> Entry {
        let now = self.clock.now();
        let rule = self.rules.of(service).clone();
        let unknown = now.before(rule.parameters.unknown_age());
        let last_word = Moment::from_the_wall(record.last_word, now, SystemTime::now()).unwrap_or(unknown);
        let origin = self.origins.find(&record.origin);
        // Whatever is read is asked for, or was before the process began.
        let entry = |version, last_word| Entry::new(version, record.highest, origin, rule, Usage::new(now), last_word);
        let Some(bytes) = record.descriptor else { return entry(None, last_word) };
        match Descriptor::parse(Bytes::from(bytes)) {
            Ok(descriptor) => entry(Some(Arc::new(Version::new(descriptor))), last_word),
            Err(error) => {
                tracing::warn!(%service, %error, "a descriptor in the table cannot be read; the origin will be asked");
                // It is no tombstone: the origin is asked before anything is said of it.
                entry(None, unknown).unreadable()
            }
        }
    }

    fn count(&self) {
        self.hot.run_pending_tasks();
        self.metrics.entries.set(i64::try_from(self.hot.entry_count()).unwrap_or(i64::MAX));
    }

    #[cfg(test)]
    pub(super) fn regressions(&self) -> u64 {
        self.metrics.regressions.get()
    }
}

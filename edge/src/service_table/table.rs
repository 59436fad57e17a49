//! The table: a bounded view in memory over what stands on disk.
//!
//! What changes is on disk before it is served. Last words alone are written later, all together: losing some makes
//! answers look older than they are, never younger.

use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use weir_shared::descriptor::Descriptor;
use weir_shared::name::ServiceName;

use super::entry::{Entry, Offer};
use super::freshness::Parameters;
use super::store::{Record, Store, StoreError};
use crate::clock::{Clock, Moment};
use crate::metrics::TableMetrics;
use crate::origin_client::{OriginId, Origins};
use crate::version::Version;

/// The table.
pub(crate) struct Table {
    hot: Cache<ServiceName, Arc<Entry>>,
    store: Store,
    /// Held from the comparison with what is held until the result is both on disk and in memory.
    writing: Mutex<()>,
    origins: Arc<Origins>,
    parameters: Parameters,
    clock: Clock,
    metrics: TableMetrics,
}

/// A descriptor was not taken: an older one than was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Regressed;

impl Table {
    /// The table over `store`, with at most `bound` services in memory; what is on disk is read. Blocks.
    pub(crate) fn load(
        store: Store,
        bound: u64,
        origins: Arc<Origins>,
        parameters: Parameters,
        clock: Clock,
        metrics: TableMetrics,
    ) -> Result<Self, StoreError> {
        let hot = Cache::builder().max_capacity(bound).eviction_policy(EvictionPolicy::lru()).build();
        let table = Self { hot, store, writing: Mutex::default(), origins, parameters, clock, metrics };
        for (name, record) in table.store.all(usize::try_from(bound).unwrap_or(usize::MAX))? {
            let Ok(service) = ServiceName::from_str(&name) else { continue };
            let entry = table.entry(&service, record);
            table.hot.insert(service, Arc::new(entry));
        }
        table.count();
        Ok(table)
    }

    /// What is known of a service in memory. No I/O.
    pub(crate) fn hot(&self, service: &ServiceName) -> Option<Arc<Entry>> {
        self.hot.get(service)
    }

    /// What is known of a service on disk; from now on it is in memory. Blocks.
    pub(crate) fn read(&self, service: &ServiceName) -> Result<Option<Arc<Entry>>, StoreError> {
        let _writing = self.lock();
        self.read_locked(service)
    }

    /// Takes a descriptor that an origin published, unless a newer one was seen. Blocks.
    pub(crate) fn take(
        &self,
        origin: OriginId,
        descriptor: Descriptor,
        at: Moment,
    ) -> Result<Result<Arc<Entry>, Regressed>, StoreError> {
        let _writing = self.lock();
        let service = descriptor.publication().service.clone();
        let held = self.read_locked(&service)?;
        match held.as_deref().map_or(Offer::Newer, |held| held.offer(&descriptor)) {
            Offer::Same => {
                let held = held.expect("it is the same as what is held");
                held.confirmed(at);
                Ok(Ok(held))
            }
            Offer::Regressed => {
                let highest = held.map(|held| held.highest).unwrap_or_default();
                self.alarm(&service, origin, &descriptor, highest);
                Ok(Err(Regressed))
            }
            Offer::Newer => {
                let highest = descriptor.version();
                self.store.put(service.as_str(), &self.record(highest, origin, Some(descriptor.bytes()), at))?;
                tracing::info!(
                    %service, generation = highest.0, revision = highest.1,
                    digest = %descriptor.publication().digest, commit = %descriptor.publication().commit,
                    "a service has a new version"
                );
                let version = Some(Arc::new(Version::new(descriptor)));
                let entry = Arc::new(Entry::new(version, highest, Some(origin), at));
                self.hot.insert(service, entry.clone());
                self.count();
                Ok(Ok(entry))
            }
        }
    }

    /// Notes that a service is gone: it is served no longer, and its highest generation is kept. Blocks.
    ///
    /// `None` when it was never held: there is nothing to remember.
    pub(crate) fn bury(&self, service: &ServiceName, at: Moment) -> Result<Option<Arc<Entry>>, StoreError> {
        let _writing = self.lock();
        let Some(held) = self.read_locked(service)? else { return Ok(None) };
        if held.version.is_none() {
            held.confirmed(at);
            return Ok(Some(held));
        }
        let origin = held.origin.unwrap_or_default();
        self.store.put(service.as_str(), &self.record(held.highest, origin, None, at))?;
        tracing::info!(%service, "a service is gone");
        let entry = Arc::new(Entry::new(None, held.highest, held.origin, at));
        self.hot.insert(service.clone(), entry.clone());
        Ok(Some(entry))
    }

    /// Writes the last words that are not on disk yet, in one transaction. Blocks.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        let (now, wall) = (self.clock.now(), SystemTime::now());
        let unwritten: Vec<_> = self.hot.iter().filter(|(_, entry)| entry.take_unwritten()).collect();
        if unwritten.is_empty() {
            return Ok(());
        }
        let words = unwritten.iter().map(|(s, entry)| (s.as_str(), entry.last_word().on_the_wall(now, wall)));
        self.store.put_words(words)
    }

    /// Whether nothing is known of any service.
    pub(crate) fn is_empty(&self) -> bool {
        self.hot.entry_count() == 0 && self.hot.iter().next().is_none()
    }

    /// What is in memory, in no order.
    pub(crate) fn snapshot(&self) -> Vec<(ServiceName, Arc<Entry>)> {
        self.hot.iter().map(|(service, entry)| (ServiceName::clone(&service), entry)).collect()
    }

    fn read_locked(&self, service: &ServiceName) -> Result<Option<Arc<Entry>>, StoreError> {
        if let Some(entry) = self.hot.get(service) {
            return Ok(Some(entry));
        }
        let Some(record) = self.store.get(service.as_str())? else { return Ok(None) };
        let entry = Arc::new(self.entry(service, record));
        self.hot.insert(service.clone(), entry.clone());
        Ok(Some(entry))
    }

    fn entry(&self, service: &ServiceName, record: Record) -> Entry {
        let now = self.clock.now();
        let unknown = now.before(self.parameters.unknown_age());
        let mut last_word = Moment::from_the_wall(record.last_word, now, SystemTime::now()).unwrap_or(unknown);
        let version = record.descriptor.and_then(|bytes| match Descriptor::parse(Bytes::from(bytes)) {
            Ok(descriptor) => Some(Arc::new(Version::new(descriptor))),
            Err(error) => {
                tracing::warn!(%service, %error, "a descriptor in the table cannot be read; the origin will be asked");
                // It is no tombstone: the origin is asked before anything is said of it.
                last_word = unknown;
                None
            }
        });
        Entry::new(version, record.highest, self.origins.find(&record.origin), last_word)
    }

    fn record(&self, highest: (u64, u64), origin: OriginId, descriptor: Option<&Bytes>, at: Moment) -> Record {
        Record {
            highest,
            origin: self.origins.name(origin).to_owned(),
            descriptor: descriptor.map(|bytes| bytes.to_vec()),
            last_word: at.on_the_wall(self.clock.now(), SystemTime::now()),
        }
    }

    fn alarm(&self, service: &ServiceName, origin: OriginId, offered: &Descriptor, highest: (u64, u64)) {
        self.metrics.regressions.inc();
        let (generation, revision) = offered.version();
        tracing::error!(
            %service, origin = self.origins.name(origin), generation, revision,
            highest_generation = highest.0, highest_revision = highest.1,
            "an origin offers an older version than was seen before; it is refused and what is held stays \
             (see generation_floor in the origin's configuration)"
        );
    }

    fn count(&self) {
        self.hot.run_pending_tasks();
        self.metrics.entries.set(i64::try_from(self.hot.entry_count()).unwrap_or(i64::MAX));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        // It guards an order of events and holds nothing that a panic could leave half-done.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

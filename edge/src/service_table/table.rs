//! The table: a bounded view in memory over what stands on disk.
//!
//! What changes is on disk before it is served (see `changes`). Last words alone are written later, all together:
//! losing some makes answers look older than they are, never younger.

use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::name::ServiceName;

use super::changes::Queue;
use super::entry::Entry;
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
    queue: Queue,
    origins: Arc<Origins>,
    parameters: Parameters,
    clock: Clock,
    metrics: TableMetrics,
}

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
        let table = Self { hot, store, queue: Queue::default(), origins, parameters, clock, metrics };
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

    /// What is known of a service, in memory or on disk; from now on it is in memory. Blocks.
    pub(crate) fn read(&self, service: &ServiceName) -> Result<Option<Arc<Entry>>, StoreError> {
        if let Some(entry) = self.hot.get(service) {
            return Ok(Some(entry));
        }
        let Some(record) = self.store.get(service.as_str())? else { return Ok(None) };
        // One that was written meanwhile stays.
        let read = || Arc::new(self.entry(service, record));
        Ok(Some(self.hot.entry_by_ref(service).or_insert_with(read).into_value()))
    }

    /// Writes the last words that are not on disk yet, in one transaction. Blocks.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        let (now, wall) = (self.clock.now(), SystemTime::now());
        let unwritten: Vec<_> = self.hot.iter().filter(|(_, entry)| entry.take_unwritten()).collect();
        if unwritten.is_empty() {
            return Ok(());
        }
        let words = unwritten.iter().map(|(s, entry)| (s.as_str(), entry.last_word().on_the_wall(now, wall)));
        let written = self.store.put_words(words);
        if written.is_err() {
            unwritten.iter().for_each(|(_, entry)| entry.confirmed(entry.last_word()));
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

    pub(super) fn store(&self) -> &Store {
        &self.store
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
        origin: OriginId,
        offered: &Descriptor,
        highest: (Generation, u64),
    ) {
        self.metrics.regressions.inc();
        let (generation, revision) = offered.version();
        tracing::error!(
            %service, origin = self.origins.name(origin), generation, revision,
            highest_generation = highest.0, highest_revision = highest.1,
            "an origin offers an older version than was seen before; it is refused and what is held stays \
             (see generation_floor in the origin's configuration)"
        );
    }

    fn entry(&self, service: &ServiceName, record: Record) -> Entry {
        let now = self.clock.now();
        let unknown = now.before(self.parameters.unknown_age());
        let last_word = Moment::from_the_wall(record.last_word, now, SystemTime::now()).unwrap_or(unknown);
        let origin = self.origins.find(&record.origin);
        let Some(bytes) = record.descriptor else { return Entry::new(None, record.highest, origin, last_word) };
        match Descriptor::parse(Bytes::from(bytes)) {
            Ok(descriptor) => Entry::new(Some(Arc::new(Version::new(descriptor))), record.highest, origin, last_word),
            Err(error) => {
                tracing::warn!(%service, %error, "a descriptor in the table cannot be read; the origin will be asked");
                // It is no tombstone: the origin is asked before anything is said of it.
                Entry::unreadable(record.highest, origin, unknown)
            }
        }
    }

    fn count(&self) {
        self.hot.run_pending_tasks();
        self.metrics.entries.set(i64::try_from(self.hot.entry_count()).unwrap_or(i64::MAX));
    }
}

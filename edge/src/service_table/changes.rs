//! Changes to the table, written many at a time.
//!
//! Each change is on disk before it is served, and each write to disk takes as long as the disk takes. What arrives
//! during one write is therefore written by the next one, all together: when a thousand services are asked for for the
//! first time, that is a handful of writes, on one thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use weir_shared::descriptor::Descriptor;
use weir_shared::name::ServiceName;

use super::entry::{Entry, Offer};
use super::store::{Record, StoreError};
use super::table::Table;
use crate::clock::Moment;
use crate::origin_client::OriginId;

/// What an origin said of a service.
#[derive(Debug)]
pub(super) enum Change {
    /// This is what it publishes.
    Take { origin: OriginId, descriptor: Box<Descriptor>, at: Moment },
    /// The service is gone.
    Bury { service: ServiceName, at: Moment },
}

/// What became of a change.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// This is held now.
    Held(Arc<Entry>),
    /// It was refused: a newer version was seen before.
    Regressed,
    /// The service was never held: there is nothing to remember.
    NeverHeld,
}

/// The changes that wait for the thread that writes.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    changes: Vec<(Change, Done)>,
    being_written: bool,
}

type Done = oneshot::Sender<Result<Outcome, Arc<StoreError>>>;

/// What the changes of one write come to, before it is on disk.
#[derive(Default)]
struct Batch {
    records: Vec<(ServiceName, Record)>,
    entries: HashMap<ServiceName, Arc<Entry>>,
}

impl Table {
    /// Applies a change: on disk, then in memory. Waits until it is.
    pub(super) async fn apply(self: &Arc<Self>, change: Change) -> Result<Outcome, Arc<StoreError>> {
        let (done, outcome) = oneshot::channel();
        let begin = {
            let mut waiting = self.queue().waiting();
            waiting.changes.push((change, done));
            !std::mem::replace(&mut waiting.being_written, true)
        };
        if begin {
            let table = self.clone();
            tokio::task::spawn_blocking(move || table.write_all_that_waits());
        }
        outcome.await.unwrap_or_else(|_| Err(StoreError::interrupted().into()))
    }

    fn write_all_that_waits(&self) {
        // Also when this thread panics, the next change finds nobody writing and begins anew.
        let _writing = Writing(self.queue());
        loop {
            let changes = {
                let mut waiting = self.queue().waiting();
                if waiting.changes.is_empty() {
                    waiting.being_written = false;
                    return;
                }
                std::mem::take(&mut waiting.changes)
            };
            self.write(changes);
        }
    }

    fn write(&self, changes: Vec<(Change, Done)>) {
        let mut batch = Batch::default();
        let decided: Vec<_> = changes
            .into_iter()
            .map(|(change, done)| (self.decide(change, &mut batch).map_err(Arc::new), done))
            .collect();
        let written = if batch.records.is_empty() { Ok(()) } else { self.store().put_all(&batch.records) };
        let written = written.map_err(Arc::new);
        if written.is_ok() {
            for (service, entry) in batch.entries {
                self.show(service, entry);
            }
        }
        for (outcome, done) in decided {
            // Whoever asked may be gone.
            let _ = done.send(written.clone().and(outcome));
        }
    }

    fn decide(&self, change: Change, batch: &mut Batch) -> Result<Outcome, StoreError> {
        match change {
            Change::Take { origin, descriptor, at } => {
                let service = descriptor.publication().service.clone();
                let held = self.known(&service, batch)?;
                match held.as_deref().map_or(Offer::Newer, |held| held.offer(&descriptor)) {
                    Offer::Regressed => {
                        let highest = held.map(|held| held.highest).unwrap_or_default();
                        self.alarm(&service, origin, &descriptor, highest);
                        Ok(Outcome::Regressed)
                    }
                    Offer::Same => {
                        let held = held.expect("it is the same as what is held");
                        held.confirmed(at);
                        Ok(Outcome::Held(held))
                    }
                    Offer::Newer => {
                        let publication = descriptor.publication();
                        tracing::info!(
                            %service, generation = publication.generation, revision = descriptor.revision(),
                            digest = %publication.digest, commit = %publication.commit,
                            "a service has a new version"
                        );
                        let record = self.record(descriptor.version(), Some(origin), Some(descriptor.bytes()), at);
                        let entry = Arc::new(Entry::of(*descriptor, origin, at));
                        batch.add(service, record, &entry);
                        Ok(Outcome::Held(entry))
                    }
                }
            }
            Change::Bury { service, at } => {
                let Some(held) = self.known(&service, batch)? else { return Ok(Outcome::NeverHeld) };
                if held.version.is_none() {
                    held.confirmed(at);
                    return Ok(Outcome::Held(held));
                }
                tracing::info!(%service, "a service is gone");
                let record = self.record(held.highest, held.origin, None, at);
                let entry = Arc::new(Entry::new(None, held.highest, held.origin, at));
                batch.add(service, record, &entry);
                Ok(Outcome::Held(entry))
            }
        }
    }

    fn known(&self, service: &ServiceName, batch: &Batch) -> Result<Option<Arc<Entry>>, StoreError> {
        match batch.entries.get(service) {
            Some(entry) => Ok(Some(entry.clone())),
            None => self.read(service),
        }
    }
}

impl Batch {
    fn add(&mut self, service: ServiceName, record: Record, entry: &Arc<Entry>) {
        self.records.push((service.clone(), record));
        self.entries.insert(service, entry.clone());
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that can panic runs while it is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that writes; while it unwinds from a panic, it says that nobody does any more.
struct Writing<'a>(&'a Queue);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.waiting().being_written = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::directory_lock::DirectoryLock;
    use crate::metrics::Metrics;
    use crate::origin_client::Origins;
    use crate::service_table::Store;
    use crate::service_table::entry::tests::descriptor;
    use crate::service_table::freshness::Parameters;
    use std::time::Duration;

    fn table(path: &std::path::Path, bound: u64) -> Arc<Table> {
        let parameters = Parameters {
            fresh: Duration::from_secs(15),
            stale_while_revalidate: Duration::from_secs(60),
            wait: Duration::from_secs(2),
            stale_if_error: None,
        };
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap().table;
        let (lock, _) = DirectoryLock::take(path.parent().unwrap()).unwrap();
        let store = Store::open(path, lock).unwrap();
        let origins = Arc::new(Origins::new(Vec::new()));
        Arc::new(Table::load(store, bound, origins, parameters, Clock::begin(), metrics).unwrap())
    }

    fn take(service: &str, generation: u64) -> Change {
        let descriptor = descriptor(service, generation, 1, b"content").into();
        Change::Take { origin: 0, descriptor, at: Clock::begin().now() }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_changes_at_once_are_all_on_disk_and_the_highest_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.redb");
        // Only a few are held in memory: the others are read from disk when they are compared.
        let first = table(&path, 8);
        let changes = (0..64u64).flat_map(|n| (0..4u64).map(move |g| (format!("s{n}"), 1 + (g * 7 + n) % 4)));
        let tasks: Vec<_> = changes
            .map(|(service, generation)| {
                let table = first.clone();
                tokio::spawn(async move { table.apply(take(&service, generation)).await.unwrap() })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        // The thread that wrote may not have let go of it yet.
        while Arc::strong_count(&first) > 1 {
            tokio::task::yield_now().await;
        }
        drop(first);
        let second = table(&path, 1000);
        for n in 0..64 {
            let entry = second.hot(&format!("s{n}").parse().unwrap()).unwrap();
            assert_eq!(entry.highest, (4, 1), "{n}");
        }
    }

    #[tokio::test]
    async fn a_tombstone_keeps_the_highest_generation_and_what_was_never_held_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir.path().join("table.redb"), 10);
        let at = Clock::begin().now();
        let bury = |service: &str| Change::Bury { service: service.parse().unwrap(), at };
        assert!(matches!(table.apply(bury("a")).await.unwrap(), Outcome::NeverHeld));
        assert!(table.is_empty());
        table.apply(take("a", 5)).await.unwrap();
        table.apply(bury("a")).await.unwrap();
        assert!(matches!(table.apply(take("a", 4)).await.unwrap(), Outcome::Regressed));
        let entry = table.hot(&"a".parse().unwrap()).unwrap();
        assert!(entry.version.is_none() && entry.highest == (5, 1));
        assert!(matches!(table.apply(take("a", 6)).await.unwrap(), Outcome::Held(_)));
    }

    #[tokio::test]
    async fn a_descriptor_of_the_future_is_no_tombstone_and_its_generation_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.redb");
        {
            let (lock, _) = DirectoryLock::take(dir.path()).unwrap();
            let descriptor = Some(b"a newer one".to_vec());
            let record = Record { highest: (7, 1), origin: String::new(), descriptor, last_word: 0 };
            Store::open(&path, lock).unwrap().put_all(&[("a".parse().unwrap(), record)]).unwrap();
        }
        let table = table(&path, 10);
        let entry = table.hot(&"a".parse().unwrap()).unwrap();
        assert!(entry.is_unreadable && entry.version.is_none());
        assert!(matches!(table.apply(take("a", 6)).await.unwrap(), Outcome::Regressed));
        assert!(matches!(table.apply(take("a", 7)).await.unwrap(), Outcome::Held(entry) if !entry.is_unreadable));
    }
}

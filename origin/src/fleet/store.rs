//! Reads and writes the records, and publishes what applies.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex, watch};
use weir_model::Bounds;
use weir_protocol::access_list::{Entries, Fleet};
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::issuer::Issuer;
use weir_publish::unix_milliseconds;
use weir_runtime::shutdown::Drain;
use weir_store::{PutOutcome, Records};
use weir_upstream::DefinedBy;

use super::edit::{decide, defined_by};
use super::error::FleetError;
use super::fleet_entry::FleetEntry;
use super::metrics::FleetMetrics;
use super::record::{Stored, encode};
use crate::catalog::{Outcome, Precondition};

/// How often the records are read again, for changes by other origins.
const REREAD_INTERVAL: Duration = Duration::from_secs(30);

/// How often a change is tried when other origins write the same record.
const ATTEMPTS: usize = 10;

/// Agents, assignments and issuers. Clones are cheap.
#[derive(Clone)]
pub(crate) struct FleetStore {
    inner: Arc<Inner>,
}

struct Inner {
    records: Records,
    current: watch::Sender<Fleet>,
    /// One change at a time; other origins are met by compare-and-set.
    editing: Mutex<()>,
    /// Other origins write the same records.
    is_shared: bool,
    metrics: FleetMetrics,
}

impl FleetStore {
    /// Reads the records and begins to follow them. A record that cannot be read is no error: it is read again, and edges
    /// use what they have.
    pub(crate) async fn start(
        records: Records,
        file: Fleet,
        is_shared: bool,
        (metrics, bounds): (FleetMetrics, &Bounds),
        drain: &Drain,
    ) -> Self {
        let inner = Inner { records, current: watch::Sender::new(file), editing: Mutex::default(), is_shared, metrics };
        let store = Self { inner: Arc::new(inner) };
        bound::<Agent>(&store, bounds);
        bound::<Assignment>(&store, bounds);
        bound::<Issuer>(&store, bounds);
        let error = store.read_all().await.err();
        store.warn_of_overridden();
        drain.spawn(store.clone().run(error, drain.clone()));
        store
    }

    /// What applies, as it changes.
    pub(crate) fn follow(&self) -> watch::Receiver<Fleet> {
        self.inner.current.subscribe()
    }

    /// What applies.
    pub(crate) fn current(&self) -> Fleet {
        self.inner.current.borrow().clone()
    }

    /// An entry that applies, with its author.
    pub(crate) fn get<T: FleetEntry>(&self, name: &T::Name) -> Option<(T, DefinedBy)> {
        let fleet = self.inner.current.borrow();
        let entries = T::of(&fleet);
        entries.get(name).map(|entry| (entry.clone(), defined_by(entries, name)))
    }

    /// Replaces the entries of the configuration file.
    pub(crate) fn set_file(&self, file: &Fleet) {
        fn of<T: FleetEntry>(now: &mut Fleet, file: &Fleet) {
            let (entries, file) = (T::of(now), T::of(file).file().cloned());
            let changed = Entries::new(entries.revision(), entries.documents().cloned(), file);
            *T::of_mut(now) = changed.expect("both were within their bounds");
        }
        self.inner.current.send_if_modified(|now| {
            let before = now.clone();
            of::<Agent>(now, file);
            of::<Assignment>(now, file);
            of::<Issuer>(now, file);
            *now != before
        });
        self.inner.metrics.set(&self.inner.current.borrow());
        self.warn_of_overridden();
    }

    /// Creates or replaces an entry.
    pub(crate) async fn put<T: FleetEntry>(
        &self,
        entry: T,
        precondition: &Precondition,
    ) -> Result<Outcome, FleetError> {
        self.edit(entry.name(), Some(&entry), precondition).await
    }

    /// Deletes an entry.
    pub(crate) async fn delete<T: FleetEntry>(
        &self,
        name: &T::Name,
        precondition: &Precondition,
    ) -> Result<(), FleetError> {
        self.edit::<T>(name, None, precondition).await.map(drop)
    }

    async fn edit<T: FleetEntry>(
        &self,
        name: &T::Name,
        new: Option<&T>,
        precondition: &Precondition,
    ) -> Result<Outcome, FleetError> {
        let inner = &*self.inner;
        let _one_at_a_time = inner.editing.lock().await;
        for _ in 0..ATTEMPTS {
            let stored = self.read::<T>().await?;
            let entries = T::of(&inner.current.borrow()).clone();
            let (outcome, changed) = decide(&entries, name, new, precondition, unix_milliseconds(SystemTime::now()))?;
            let Some(changed) = changed else { return Ok(outcome) };
            let bytes = encode(&changed)?;
            match inner.records.put(&T::key(), bytes.clone(), stored.expect).await {
                PutOutcome::Done(_) => {}
                PutOutcome::Conflict => continue,
                PutOutcome::Unknown(error) => match inner.records.get(&T::key()).await {
                    Ok(Some(record)) if record.bytes == bytes => {}
                    _ => return Err(FleetError::Unknown(error.to_string())),
                },
            }
            self.show(&changed);
            tracing::info!(kind = T::ONE, %name, outcome = outcome.into_str(), "an entry was changed");
            return Ok(outcome);
        }
        Err(FleetError::Contended(T::KIND))
    }

    /// Reads the record of a kind again, so that a read right after a change at another origin sees it.
    pub(crate) async fn read_again<T: FleetEntry>(&self) -> Result<(), FleetError> {
        if !self.inner.is_shared {
            return Ok(());
        }
        let _no_change_meanwhile = self.inner.editing.lock().await;
        self.read::<T>().await.map(drop)
    }

    /// Reads a record and shows its documents. The caller changes nothing meanwhile, so that an older read shows nothing.
    async fn read<T: FleetEntry>(&self) -> Result<Stored<T>, FleetError> {
        let mut stored = Stored::<T>::of(self.inner.records.get(&T::key()).await)?;
        let current = T::of(&self.inner.current.borrow()).clone();
        if stored.revision < current.revision() {
            // The record was lost, or its previous copy is read: what this origin has seen is newer, and is kept.
            (stored.revision, stored.documents) = (current.revision(), current.documents().cloned().collect());
        }
        if stored.revision != current.revision() {
            let documents = stored.documents.iter().cloned();
            let entries = Entries::new(stored.revision, documents, current.file().cloned());
            self.show(&entries.map_err(|error| FleetError::Unreadable(format!("{}: {error}", T::key())))?);
        }
        Ok(stored)
    }

    fn show<T: FleetEntry>(&self, entries: &Entries<T>) {
        self.inner.current.send_modify(|fleet| {
            // The file may have been reloaded meanwhile.
            let file: Vec<T> = T::of(fleet).file().cloned().collect();
            let shown = Entries::new(entries.revision(), entries.documents().cloned(), file);
            *T::of_mut(fleet) = shown.expect("both were within their bounds");
        });
        self.inner.metrics.set(&self.inner.current.borrow());
    }

    async fn read_all(&self) -> Result<(), FleetError> {
        let _no_change_meanwhile = self.inner.editing.lock().await;
        let agents = self.read::<Agent>().await.map(drop);
        let assignments = self.read::<Assignment>().await.map(drop);
        let outcome = agents.and(assignments).and(self.read::<Issuer>().await.map(drop));
        self.inner.metrics.set(&self.inner.current.borrow());
        self.inner.metrics.readable.set(outcome.is_ok().into());
        outcome
    }

    /// Reads the records again until the drain: always if other origins write them, else until they could be read.
    async fn run(self, mut error: Option<FleetError>, drain: Drain) {
        // The last logged error, so that each is logged once.
        let mut logged = String::new();
        while self.inner.is_shared || error.is_some() {
            let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
            if !text.is_empty() && text != logged {
                tracing::error!(
                    error = text,
                    "agents, assignments or issuers cannot be read; edges use what they have"
                );
            }
            logged = text;
            tokio::select! {
                () = tokio::time::sleep(REREAD_INTERVAL) => {}
                () = drain.begun() => return,
            }
            error = tokio::select! {
                read = self.read_all() => read.err(),
                () = drain.begun() => return,
            };
        }
    }

    /// Tells of documents that a file overrides.
    fn warn_of_overridden(&self) {
        fn of<T: FleetEntry>(fleet: &Fleet) {
            let entries = T::of(fleet);
            let is_document = |entry: &&T| entries.documents().any(|document| document.name() == entry.name());
            for entry in entries.file().filter(is_document) {
                tracing::warn!(
                    kind = T::ONE,
                    name = %entry.name(),
                    "the configuration file and a document of operators define this: the file takes precedence"
                );
            }
        }
        let fleet = self.inner.current.borrow();
        of::<Agent>(&fleet);
        of::<Assignment>(&fleet);
        of::<Issuer>(&fleet);
    }
}

/// Shows the number of documents of a kind beside its limit.
fn bound<T: FleetEntry>(store: &FleetStore, bounds: &Bounds) {
    let watched = store.inner.current.subscribe();
    bounds.show(T::KIND, T::LIMIT, move || T::of(&watched.borrow()).documents().count());
}

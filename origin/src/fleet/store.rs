//! Reads and writes the records, and publishes what applies.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use weir_protocol::access_list::{Fleet, Table, shard_of};
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::issuer::Issuer;
use weir_publish::unix_milliseconds;
use weir_runtime::bounds::Bounds;
use weir_runtime::shutdown::Drain;
use weir_store::Records;
use weir_upstream::DefinedBy;

use super::edit::{decide, defined_by};
use super::error::FleetError;
use super::fleet_entry::{FleetBounds, FleetEntry, Tables};
use super::metrics::FleetMetrics;
use super::stored::{AllStored, MayShard, Stored, Written};
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
    stored: AllStored,
    current: watch::Sender<Tables>,
    /// Other origins write the same records.
    is_shared: bool,
    bounds: FleetBounds,
    metrics: FleetMetrics,
}

/// A change of an entry: what it is then, or `None` if it is deleted.
pub(super) struct Change<'a, T: FleetEntry> {
    pub(super) name: &'a T::Name,
    pub(super) new: Option<&'a T>,
    pub(super) precondition: &'a Precondition,
    /// It is right if the entry is like that already, whatever the precondition says: a batch that broke off is sent again.
    pub(super) may_be_done: bool,
}

impl FleetStore {
    /// Reads the records and begins to follow them. A record that cannot be read is no error: it is read again, and edges
    /// use what they have. `may_shard`: `None` without other origins.
    pub(crate) async fn start(
        records: Records,
        file: &Fleet,
        may_shard: Option<MayShard>,
        bounds: FleetBounds,
        (metrics, shown): (FleetMetrics, &Bounds),
        drain: &Drain,
    ) -> Self {
        let is_shared = may_shard.is_some();
        let stored = AllStored::new(&records, is_shared, &may_shard.unwrap_or_else(|| Arc::new(|| true)));
        let mut tables = Tables::default();
        tables.set_file(file);
        let inner = Inner { stored, current: watch::Sender::new(tables), is_shared, bounds, metrics };
        let store = Self { inner: Arc::new(inner) };
        show_bound::<Agent>(&store, shown);
        show_bound::<Assignment>(&store, shown);
        show_bound::<Issuer>(&store, shown);
        let watched = store.follow();
        shown.show("fleet_bytes", bounds.bytes, move || watched.borrow().bytes());
        let watched = store.follow();
        shown.show("issuer_urls", bounds.issuer_urls, move || fetched(&watched.borrow().issuers));
        let error = store.read_all().await.err();
        store.warn_of_overridden();
        drain.spawn(store.clone().run(error, drain.clone()));
        store
    }

    /// What applies, as it changes.
    pub(crate) fn follow(&self) -> watch::Receiver<Tables> {
        self.inner.current.subscribe()
    }

    /// What applies.
    pub(crate) fn current(&self) -> Tables {
        self.inner.current.borrow().clone()
    }

    /// The metrics of agents, assignments and issuers.
    pub(crate) fn metrics(&self) -> &FleetMetrics {
        &self.inner.metrics
    }

    /// An entry that applies, with its author.
    pub(crate) fn get<T: FleetEntry>(&self, name: &T::Name) -> Option<(T, DefinedBy)> {
        let tables = self.inner.current.borrow();
        let table = T::of(&tables);
        table.get(name).map(|entry| (entry.clone(), defined_by(table, name)))
    }

    /// Replaces the entries of the configuration file.
    pub(crate) fn set_file(&self, file: &Fleet) {
        self.inner.current.send_if_modified(|now| {
            let before = now.clone();
            now.set_file(file);
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
        let change = Change { name, new, precondition, may_be_done: false };
        let outcomes = self.edit_shard(shard_of(&name.to_string()), &[change]).await?;
        Ok(outcomes[0])
    }

    /// Makes changes of one shard: all of them, or none.
    pub(super) async fn edit_shard<T: FleetEntry>(
        &self,
        shard: usize,
        changes: &[Change<'_, T>],
    ) -> Result<Vec<Outcome>, FleetError> {
        // One change at a time; other origins are met by compare-and-set.
        let mut stored = T::stored(&self.inner.stored).lock().await;
        for _ in 0..ATTEMPTS {
            let mut table = T::of(&self.inner.current.borrow()).clone();
            stored.read(&mut table).await?;
            self.show(&table);
            let before = table.revision();
            let outcomes =
                changes.iter().map(|change| self.apply(&mut table, change)).collect::<Result<Vec<_>, _>>()?;
            if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Created | Outcome::Changed)) {
                self.within_bounds(&table, stored.is_in_shards(), &outcomes)?;
            }
            if table.revision() != before {
                match stored.write(&table, shard).await? {
                    Written::Done => self.show_written(&mut stored, &mut table, shard).await,
                    Written::Conflict => continue,
                }
            }
            let made = changes.iter().zip(&outcomes).filter(|(_, outcome)| **outcome != Outcome::Unchanged);
            for (Change { name, .. }, outcome) in made {
                tracing::info!(kind = T::ONE, %name, outcome = outcome.into_str(), "an entry was changed");
            }
            return Ok(outcomes);
        }
        Err(FleetError::Contended(T::KIND))
    }

    /// Shows a table of which the shard `index` was written. Edges take the list of the highest revision, so none of an equal or
    /// higher one may lack the change: another origin that wrote another shard meanwhile may not have seen it. If that
    /// shard's version is not below, this one is written again above it. The change itself is stored, whatever fails here.
    async fn show_written<T: FleetEntry>(&self, stored: &mut Stored<T>, table: &mut Table<T>, index: usize) {
        for _ in 0..ATTEMPTS {
            if !stored.is_in_shards() || stored.read(table).await.is_err() {
                break;
            }
            let Some(above) = table.above_others(index) else { break };
            let mut raised = table.clone();
            raised.set_shard(index, above);
            match stored.write(&raised, index).await {
                Ok(Written::Done) => *table = raised,
                // Another origin has changed what this one wrote, or is asked what it has.
                Ok(Written::Conflict) => {}
                Err(_) => break,
            }
        }
        self.show(table);
    }

    /// Makes a change in a table, if it may be made.
    pub(super) fn apply<T: FleetEntry>(
        &self,
        table: &mut Table<T>,
        Change { name, new, precondition, may_be_done }: &Change<'_, T>,
    ) -> Result<Outcome, FleetError> {
        let now = unix_milliseconds(SystemTime::now());
        let is_done = *may_be_done && new.is_some() && table.get(name) == *new;
        let none = Precondition::default();
        let precondition = if is_done { &none } else { *precondition };
        let (outcome, changed) = decide(table, name, *new, precondition, now)?;
        if let Some((index, shard)) = changed {
            table.set_shard(index, shard);
        }
        Ok(outcome)
    }

    /// What all documents of a kind are now, and whether changes are stored in shards.
    pub(super) async fn read_to_change<T: FleetEntry>(&self) -> Result<(Table<T>, bool), FleetError> {
        let mut stored = T::stored(&self.inner.stored).lock().await;
        let mut table = T::of(&self.inner.current.borrow()).clone();
        stored.read(&mut table).await?;
        self.show(&table);
        Ok((table, stored.is_in_shards()))
    }

    /// Checks the bounds of a table that is to be stored.
    pub(super) fn within_bounds<T: FleetEntry>(
        &self,
        table: &Table<T>,
        is_in_shards: bool,
        outcomes: &[Outcome],
    ) -> Result<(), FleetError> {
        let (limit, remedy) = match is_in_shards {
            true => (
                T::bound(&self.inner.bounds),
                format!("remove some, or raise `[limits] {}` of all origins", T::LIMIT_KEY),
            ),
            false => (T::LIMIT, "upgrade the origins of the release before first".to_owned()),
        };
        if table.len() > limit && outcomes.contains(&Outcome::Created) {
            return Err(FleetError::Full(format!("more than {limit} {}: {remedy}", T::KIND)));
        }
        let before = self.current();
        let (urls, urls_before) = (fetched(table), fetched(T::of(&before)));
        if urls > urls_before && !is_in_shards {
            return Err(FleetError::Full(
                "origins of the release before know no `jwks` with a `url`: upgrade them first".to_owned(),
            ));
        }
        let limit = self.inner.bounds.issuer_urls;
        if urls > urls_before && urls > limit {
            return Err(FleetError::Full(format!(
                "more than {limit} {} whose `jwks` has a `url`: send the keys themselves, remove some, or raise `[limits] \
                 max_issuer_urls` of all origins and `[auth] max_issuer_urls` of all edges",
                T::KIND
            )));
        }
        let limit = self.inner.bounds.bytes;
        let bytes = before.bytes() - T::of(&before).bytes() + table.bytes();
        if bytes > limit && bytes > before.bytes() {
            return Err(FleetError::Full(format!(
                "agents, assignments and issuers together would have {bytes} bytes, more than {limit}: remove some, or \
                 raise `[limits] fleet_bytes` of all origins"
            )));
        }
        Ok(())
    }

    /// Reads the records of a kind again, so that a read right after a change at another origin sees it.
    pub(crate) async fn read_again<T: FleetEntry>(&self) -> Result<(), FleetError> {
        if self.inner.is_shared { self.read::<T>().await } else { Ok(()) }
    }

    async fn read<T: FleetEntry>(&self) -> Result<(), FleetError> {
        let mut stored = T::stored(&self.inner.stored).lock().await;
        let mut table = T::of(&self.inner.current.borrow()).clone();
        let outcome = stored.read(&mut table).await;
        self.show(&table);
        outcome
    }

    /// Shows the documents of a table. The caller holds the lock of its records.
    fn show<T: FleetEntry>(&self, table: &Table<T>) {
        // The file may have been reloaded meanwhile.
        let is_other = self.inner.current.send_if_modified(|tables| T::of_mut(tables).take_shards(table));
        if is_other {
            self.inner.metrics.set(&self.inner.current.borrow());
        }
    }

    async fn read_all(&self) -> Result<(), FleetError> {
        let agents = self.read::<Agent>().await;
        let assignments = self.read::<Assignment>().await;
        let outcome = agents.and(assignments).and(self.read::<Issuer>().await);
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
        fn of<T: FleetEntry>(table: &Table<T>) {
            for entry in table.file().filter(|entry| table.document(entry.name()).is_some()) {
                tracing::warn!(
                    kind = T::ONE,
                    name = %entry.name(),
                    "the configuration file and a document of operators define this: the file takes precedence"
                );
            }
        }
        let tables = self.current();
        of(&tables.agents);
        of(&tables.assignments);
        of(&tables.issuers);
    }
}

/// How many entries have keys that edges fetch.
fn fetched<T: FleetEntry>(table: &Table<T>) -> usize {
    table.unsorted().filter(|entry| entry.is_fetched()).count()
}

/// Shows the number of documents of a kind beside its limit.
fn show_bound<T: FleetEntry>(store: &FleetStore, shown: &Bounds) {
    let watched = store.follow();
    shown.show(T::KIND, T::bound(&store.inner.bounds), move || T::of(&watched.borrow()).len());
}

#[cfg(test)]
mod tests;

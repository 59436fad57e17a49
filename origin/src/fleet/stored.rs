//! The records of a kind, as this origin last saw them: reads, writes, and the step from one record to shards.
//!
//! A member of the release before reads and writes one record, so all do while one lives. Then an origin writes the
//! shards, and replaces that record by one that says so. Several may try at the same time: each first reads the versions of
//! the shards, then sees that the one record has not changed, and replaces only these versions. So none replaces a shard that
//! another has changed since.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::Mutex;
use weir_protocol::access_list::{SHARDS, Table};
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::issuer::Issuer;
use weir_store::{Expect, PutOutcome, Record, RecordKey, Records, Version};

use super::error::FleetError;
use super::record::{
    Storable, Whole, decode_shard, decode_whole, encode_in_shards, encode_shard, encode_whole, read, shard_key,
    shards_prefix, whole_key,
};

/// Requests to the store at a time.
const CONCURRENT: usize = 16;

/// Whether all origins that may read the records know shards.
pub(crate) type MayShard = Arc<dyn Fn() -> bool + Send + Sync>;

/// The records of a kind. Locked while it is changed, so that an older read shows nothing.
pub(crate) type OfKind<T> = Mutex<Stored<T>>;

/// The records of all kinds.
pub(crate) struct AllStored {
    pub(super) agents: OfKind<Agent>,
    pub(super) assignments: OfKind<Assignment>,
    pub(super) issuers: OfKind<Issuer>,
}

impl AllStored {
    pub(super) fn new(records: &Records, is_shared: bool, may_shard: &MayShard) -> Self {
        fn of<T: Storable>(records: &Records, is_shared: bool, may_shard: &MayShard) -> OfKind<T> {
            Mutex::new(Stored {
                records: records.clone(),
                is_shared,
                may_shard: may_shard.clone(),
                layout: Layout::Unknown,
                shards: vec![None; SHARDS],
                is_complete: false,
                kind: PhantomData,
            })
        }
        Self {
            agents: of(records, is_shared, may_shard),
            assignments: of(records, is_shared, may_shard),
            issuers: of(records, is_shared, may_shard),
        }
    }
}

/// How the documents are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Layout {
    /// Nothing was read yet.
    Unknown,
    /// In one record. The state that a write replaces.
    Whole(Expect),
    InShards,
}

/// The records of a kind, as this origin last saw them.
pub(crate) struct Stored<T> {
    records: Records,
    /// Other origins write the same records.
    is_shared: bool,
    may_shard: MayShard,
    layout: Layout,
    /// The states that writes of shards replace. `None`: the record has to be read first.
    shards: Vec<Option<Expect>>,
    /// All documents were read.
    is_complete: bool,
    kind: PhantomData<fn() -> T>,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    Done,
    /// Another origin wrote the record: it has to be read again.
    Conflict,
}

impl<T: Storable> Stored<T> {
    /// Whether a change is stored in a shard. Otherwise the bounds of one record apply.
    pub(super) fn is_in_shards(&self) -> bool {
        self.layout == Layout::InShards || (self.may_shard)()
    }

    /// Brings a table up to date, always as a whole: a list with one shard of now and others of before would have the
    /// revision of a new one, and bring back what was deleted in the others. Nothing that is newer in it is replaced: the
    /// record was lost then, or its previous copy is read.
    ///
    /// # Errors
    /// Something cannot be read. The table has no documents until all were read once.
    pub(super) async fn read(&mut self, table: &mut Table<T>) -> Result<(), FleetError> {
        if self.layout != Layout::InShards {
            self.read_whole(table).await?;
        }
        if self.layout != Layout::InShards {
            return Ok(());
        }
        let due = self.changed().await?;
        let mut read = table.clone();
        let outcome = self.read_shards(&mut read, &due).await;
        if outcome.is_err() && !self.is_complete {
            self.shards.fill(None);
            return outcome;
        }
        self.is_complete = true;
        *table = read;
        outcome
    }

    /// Writes the shard `index` of a table, or all of it.
    ///
    /// # Errors
    /// A bound is exceeded, or the outcome is not known.
    pub(super) async fn write(&mut self, table: &Table<T>, index: usize) -> Result<Written, FleetError> {
        if let Layout::Whole(expect) = self.layout.clone() {
            if !self.is_in_shards() {
                let version = self.put(&whole_key::<T>(), encode_whole(table)?, expect).await?;
                return Ok(version.map_or(Written::Conflict, |version| {
                    self.layout = Layout::Whole(version);
                    Written::Done
                }));
            }
            // Shards are made of what was read, and not of a change: another origin may make them at the same time.
            if expect != Expect::Absent || table.len() > table.shards()[index].len() {
                return Ok(Written::Conflict);
            }
            // First, so that of two origins that define something one sees what the other has begun.
            encode_shard(&table.shards()[index])?;
            self.write_in_shards(expect).await?;
            if self.layout != Layout::InShards {
                return Ok(Written::Conflict);
            }
            (self.is_complete, self.shards) = (true, vec![Some(Expect::Absent); SHARDS]);
        }
        let bytes = encode_shard(&table.shards()[index])?;
        // Until the outcome is known.
        let Some(expect) = self.shards[index].take() else { return Ok(Written::Conflict) };
        self.shards[index] = self.put(&shard_key::<T>(index), bytes, expect).await?;
        Ok(if self.shards[index].is_some() { Written::Done } else { Written::Conflict })
    }

    async fn read_whole(&mut self, table: &mut Table<T>) -> Result<(), FleetError> {
        let key = whole_key::<T>();
        let Some(record) = read(&key, self.records.get(&key).await)? else {
            // Shards without this record: it was lost.
            if self.layout == Layout::Unknown && !self.listed().await?.is_empty() {
                return self.write_in_shards(Expect::Absent).await;
            }
            self.layout = Layout::Whole(Expect::Absent);
            // The record was lost while this origin ran.
            return if (self.may_shard)() && !table.is_empty() {
                self.make_shards(table, Expect::Absent).await
            } else {
                Ok(())
            };
        };
        match decode_whole::<T>(&record)? {
            Whole::InShards => {
                (self.layout, self.is_complete) = (Layout::InShards, false);
                Ok(())
            }
            Whole::Documents(revision, documents) => {
                let mut whole = table.clone();
                if revision > table.revision() {
                    let read = Table::new(revision, documents, []);
                    whole.take_shards(&read.map_err(|error| FleetError::Unreadable(format!("{key}: {error}")))?);
                }
                let expect = Expect::Version(record.version);
                self.layout = Layout::Whole(expect.clone());
                let made = if (self.may_shard)() { self.make_shards(&whole, expect).await } else { Ok(()) };
                // Otherwise the shards are read: they may be newer.
                if self.layout != Layout::InShards {
                    *table = whole;
                }
                made
            }
        }
    }

    /// Makes shards of all documents, as of their revision, so that all origins make the same. `whole`: the state of the one
    /// record. If another origin writes at the same time, the layout stays, and everything is to be read again.
    async fn make_shards(&mut self, table: &Table<T>, whole: Expect) -> Result<(), FleetError> {
        let (mut before, key) = (vec![Expect::Absent; SHARDS], whole_key::<T>());
        let mut newest = 0;
        for (index, record) in self.get_shards(&(0..SHARDS).collect::<Vec<_>>()).await {
            let record = record?;
            let shard = record.as_ref().map(|record| decode_shard::<T>(index, record)).transpose()?;
            newest = newest.max(shard.map_or(0, |shard| shard.version()));
            before[index] = expect_of(record.as_ref());
        }
        if expect_of(read(&key, self.records.get(&key).await)?.as_ref()) != whole {
            return Ok(());
        }
        // The record that said that there are shards is damaged, and its previous copy is of before there were any.
        if newest > table.revision() {
            return self.write_in_shards(whole).await;
        }
        let same = Table::new(table.revision(), table.documents().cloned(), []);
        let same = same.map_err(|error| FleetError::Unreadable(format!("{key}: {error}")))?;
        let shards = same.shards();
        // Also the empty ones, whose revision says that documents were deleted.
        for some in (0..SHARDS).collect::<Vec<_>>().chunks(CONCURRENT) {
            let written = some.iter().map(async |index| {
                let bytes = encode_shard(&shards[*index])?;
                self.put(&shard_key::<T>(*index), bytes, before[*index].clone()).await
            });
            for written in join_all(written).await {
                if written?.is_none() {
                    return Ok(());
                }
            }
        }
        self.write_in_shards(whole).await?;
        if self.layout == Layout::InShards {
            tracing::info!(kind = T::KIND, shards = SHARDS, "the documents of a kind are stored in shards now");
        }
        Ok(())
    }

    /// Says that there are shards, which are to be read. If another origin has written the record, the layout stays.
    async fn write_in_shards(&mut self, expect: Expect) -> Result<(), FleetError> {
        if self.put(&whole_key::<T>(), encode_in_shards()?, expect).await?.is_some() {
            (self.layout, self.is_complete) = (Layout::InShards, false);
            self.shards.fill(None);
        }
        Ok(())
    }

    /// The shards that may have another version than this origin knows.
    async fn changed(&self) -> Result<Vec<usize>, FleetError> {
        // Without other writers only what is not known.
        let listed = if self.is_shared { Some(self.listed().await?) } else { None };
        let is_changed = |index: &usize| match (&self.shards[*index], &listed) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(Expect::Absent), Some(listed)) => listed.contains_key(index),
            (Some(Expect::Version(known)), Some(listed)) => listed.get(index) != Some(&Some(known.clone())),
        };
        Ok((0..SHARDS).filter(is_changed).collect())
    }

    /// The shards that are stored, with their versions if the engine lists them.
    async fn listed(&self) -> Result<BTreeMap<usize, Option<Version>>, FleetError> {
        let prefix = shards_prefix::<T>();
        let listed = self.records.list_versions(&prefix).await;
        let listed = listed.map_err(|error| FleetError::Unreadable(error.to_string()))?;
        let index = |key: &RecordKey| usize::from_str_radix(key.as_str().strip_prefix(&prefix)?, 16).ok();
        Ok(listed.into_iter().filter_map(|(key, version)| Some((index(&key)?, version))).collect())
    }

    /// Reads shards into a table. An error of one leaves the others read.
    async fn read_shards(&mut self, table: &mut Table<T>, due: &[usize]) -> Result<(), FleetError> {
        let mut outcome = Ok(());
        for (index, record) in self.get_shards(due).await {
            let shard = record.and_then(|record| {
                let shard = record.as_ref().map(|record| decode_shard::<T>(index, record)).transpose()?;
                Ok((expect_of(record.as_ref()), shard))
            });
            match shard {
                Ok((expect, shard)) => {
                    self.shards[index] = Some(expect);
                    if let Some(shard) = shard.filter(|shard| shard.version() >= table.shards()[index].version())
                        && shard != *table.shards()[index]
                    {
                        table.set_shard(index, shard);
                    }
                }
                Err(error) => {
                    self.shards[index] = None;
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }

    async fn get_shards(&self, indices: &[usize]) -> Vec<(usize, Result<Option<Record>, FleetError>)> {
        let mut all = Vec::with_capacity(indices.len());
        for some in indices.chunks(CONCURRENT) {
            let records = some.iter().map(async |index| {
                let key = shard_key::<T>(*index);
                (*index, read(&key, self.records.get(&key).await))
            });
            all.extend(join_all(records).await);
        }
        all
    }

    /// Replaces a record. `None`: it is in another state.
    async fn put(&self, key: &RecordKey, bytes: Bytes, expect: Expect) -> Result<Option<Expect>, FleetError> {
        match self.records.put(key, bytes.clone(), expect).await {
            PutOutcome::Done(version) => Ok(Some(Expect::Version(version))),
            PutOutcome::Conflict => Ok(None),
            PutOutcome::Unknown(error) => match self.records.get(key).await {
                Ok(Some(record)) if record.bytes == bytes => Ok(Some(Expect::Version(record.version))),
                _ => Err(FleetError::Unknown(error.to_string())),
            },
        }
    }
}

fn expect_of(record: Option<&Record>) -> Expect {
    record.map_or(Expect::Absent, |record| Expect::Version(record.version.clone()))
}

//! The table on disk: what outlives the process. Every call blocks.

use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use weir_shared::descriptor::Generation;
use weir_shared::name::ServiceName;

use crate::directory_lock::DirectoryLock;

/// Service → highest generation and revision seen, `host:port` of its origin, the origin's descriptor bytes. No bytes: a
/// tombstone.
const SERVICES: TableDefinition<&str, Stored<'static>> = TableDefinition::new("services_v1");

/// Service → the origin's last word, in milliseconds since 1970. Apart from the descriptors, because it changes often.
const LAST_WORDS: TableDefinition<&str, u64> = TableDefinition::new("last_words_v1");

type Stored<'a> = (Generation, u64, &'a str, Option<&'a [u8]>);

/// The file.
#[derive(Debug)]
pub(crate) struct Store {
    database: Database,
    /// Let go after the file is closed.
    _lock: DirectoryLock,
}

/// The table cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("the service table cannot be used: {0}")]
pub(crate) struct StoreError(#[source] Box<redb::Error>);

impl StoreError {
    /// The thread that was to write has ended.
    pub(super) fn interrupted() -> Self {
        std::io::Error::from(std::io::ErrorKind::Interrupted).into()
    }
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self(Box::new(error.into()))
    }
}

/// One service, as it stands on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// The highest generation and revision ever seen.
    pub(crate) highest: (Generation, u64),
    /// The name of its origin.
    pub(crate) origin: String,
    /// The origin's bytes; `None` is a tombstone.
    pub(crate) descriptor: Option<Vec<u8>>,
    /// The origin's last word, in milliseconds since 1970.
    pub(crate) last_word: u64,
}

impl Store {
    /// Opens the file, or makes it.
    pub(crate) fn open(path: &Path, lock: DirectoryLock) -> Result<Self, StoreError> {
        let database = Database::create(path)?;
        // Both tables exist from here on: readers need not mind.
        let transaction = database.begin_write()?;
        transaction.open_table(SERVICES)?;
        transaction.open_table(LAST_WORDS)?;
        transaction.commit()?;
        Ok(Self { database, _lock: lock })
    }

    /// Reads one service.
    pub(crate) fn get(&self, service: &str) -> Result<Option<Record>, StoreError> {
        let transaction = self.database.begin_read()?;
        let (services, words) = (transaction.open_table(SERVICES)?, transaction.open_table(LAST_WORDS)?);
        let Some(stored) = services.get(service)? else { return Ok(None) };
        let last_word = words.get(service)?.map_or(0, |word| word.value());
        Ok(Some(Record::from_stored(stored.value(), last_word)))
    }

    /// Reads the first `limit` services.
    pub(crate) fn all(&self, limit: usize) -> Result<Vec<(String, Record)>, StoreError> {
        let transaction = self.database.begin_read()?;
        let (services, words) = (transaction.open_table(SERVICES)?, transaction.open_table(LAST_WORDS)?);
        let mut all = Vec::new();
        for row in services.iter()?.take(limit) {
            let (name, stored) = row?;
            let last_word = words.get(name.value())?.map_or(0, |word| word.value());
            all.push((name.value().to_owned(), Record::from_stored(stored.value(), last_word)));
        }
        Ok(all)
    }

    /// Writes services, durably, all in one transaction.
    pub(crate) fn put_all(&self, records: &[(ServiceName, Record)]) -> Result<(), StoreError> {
        let transaction = self.database.begin_write()?;
        {
            let (mut services, mut words) = (transaction.open_table(SERVICES)?, transaction.open_table(LAST_WORDS)?);
            for (service, record) in records {
                let (generation, revision) = record.highest;
                let stored = (generation, revision, record.origin.as_str(), record.descriptor.as_deref());
                services.insert(service.as_str(), stored)?;
                words.insert(service.as_str(), record.last_word)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// Writes last words only, all in one transaction.
    pub(crate) fn put_words<'a>(&self, words: impl IntoIterator<Item = (&'a str, u64)>) -> Result<(), StoreError> {
        let transaction = self.database.begin_write()?;
        {
            let mut table = transaction.open_table(LAST_WORDS)?;
            for (service, word) in words {
                table.insert(service, word)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

impl Record {
    fn from_stored((generation, revision, origin, descriptor): Stored<'_>, last_word: u64) -> Self {
        Self {
            highest: (generation, revision),
            origin: origin.to_owned(),
            descriptor: descriptor.map(<[u8]>::to_vec),
            last_word,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.redb");
        let held = Record {
            highest: (7, 2),
            origin: "127.0.0.1:7400".to_owned(),
            descriptor: Some(b"{}".to_vec()),
            last_word: 1_000,
        };
        let tombstone = Record { descriptor: None, ..held.clone() };
        {
            let store = Store::open(&path, DirectoryLock::take(dir.path()).unwrap().0).unwrap();
            let records = [("a", &held), ("b", &tombstone)].map(|(name, r)| (name.parse().unwrap(), r.clone()));
            store.put_all(&records).unwrap();
            store.put_words([("a", 2_000)]).unwrap();
        }
        let store = Store::open(&path, DirectoryLock::take(dir.path()).unwrap().0).unwrap();
        assert_eq!(store.get("a").unwrap(), Some(Record { last_word: 2_000, ..held }));
        assert_eq!(store.get("b").unwrap(), Some(tombstone));
        assert_eq!(store.get("c").unwrap(), None);
        assert_eq!(store.all(10).unwrap().len(), 2);
        assert_eq!(store.all(1).unwrap().len(), 1);
    }
}

//! The table on disk: what outlives the process. Every call blocks.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use weir_shared::descriptor::Generation;
use weir_shared::name::ServiceName;
use weir_shared::process::directory_lock::DirectoryLock;

use super::table_file::TableFile;

/// Service → highest generation and revision seen, `host:port` of its origin, the origin's descriptor bytes. No bytes: a
/// tombstone.
const SERVICES: TableDefinition<&str, Stored<'static>> = TableDefinition::new("services_v1");

/// Service → the origin's last word, in milliseconds since 1970. Apart from the descriptors, because it changes often.
const LAST_WORDS: TableDefinition<&str, u64> = TableDefinition::new("last_words_v1");

type Stored<'a> = (Generation, u64, &'a str, Option<&'a [u8]>);

/// The file.
#[derive(Debug)]
pub(crate) struct Store {
    file: TableFile,
    /// Let go after the file is closed.
    _lock: DirectoryLock,
}

/// The table cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// It was tried.
    #[error("the service table cannot be used: {0}")]
    Failed(#[source] Box<redb::Error>),
    /// The disk failed not long ago, and is left alone for a moment.
    #[error("the service table is left alone for a moment: {0}")]
    LeftAlone(String),
}

/// The table cannot be opened.
///
/// It is not made anew by itself: it alone knows the highest generations that were ever served, and an edge without it
/// would take an origin that went back at its word. A person decides that, and the message says how.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The file is there, and it is not, or no longer, a table that this version reads.
    #[error(
        "the service table {} is damaged, or was written by another version of this program ({reason}): put back a \
         copy of it, or start the version that wrote it, or move it away so that the edge begins with an empty one, \
         which forgets the highest generations that were served and asks the origins for everything anew",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file system says no.
    #[error("the service table {} cannot be opened: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it says.
        reason: String,
    },
}

impl StoreError {
    /// The thread that was to write has ended.
    pub(super) fn interrupted() -> Self {
        std::io::Error::from(std::io::ErrorKind::Interrupted).into()
    }

    /// Whether the disk has failed, after which the database is of no use until it is opened anew.
    pub(super) fn is_the_disk_s(&self) -> bool {
        use redb::Error::{DatabaseClosed, Io, LockPoisoned, PreviousIo};
        match self {
            StoreError::Failed(error) => matches!(**error, Io(_) | PreviousIo | LockPoisoned(_) | DatabaseClosed),
            StoreError::LeftAlone(_) => true,
        }
    }
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self::Failed(Box::new(error.into()))
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
    ///
    /// # Errors
    /// It is damaged, of another version, or out of reach. It is never replaced.
    pub(crate) fn open(path: &Path, lock: DirectoryLock) -> Result<Self, OpenError> {
        let io = |error: io::Error| OpenError::Io { path: path.to_owned(), reason: error.to_string() };
        let unreadable = |reason: String| OpenError::Unreadable { path: path.to_owned(), reason };
        if !path.try_exists().map_err(io)? {
            // Made under another name, so that a process that dies meanwhile leaves nothing that looks damaged.
            let unfinished = path.with_extension("unfinished");
            match fs::remove_file(&unfinished) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
                _ => {}
            }
            drop(read_all(&unfinished).map_err(|error| io(io::Error::other(error.to_string())))?);
            fs::rename(&unfinished, path).map_err(io)?;
            if let Some(parent) = path.parent() {
                File::open(parent).and_then(|parent| parent.sync_all()).map_err(io)?;
            }
        }
        if fs::metadata(path).map_err(io)?.len() == 0 {
            return Err(unreadable("it is empty".to_owned()));
        }
        // redb asserts what it expects of its own file; a file that breaks it is a damaged one.
        let opened = std::panic::catch_unwind(|| read_all(path));
        let database = match opened {
            Ok(Ok(database)) => database,
            Ok(Err(error)) => return Err(unreadable(error.to_string())),
            Err(_) => return Err(unreadable("it contradicts itself".to_owned())),
        };
        Ok(Self { file: TableFile::new(path, database), _lock: lock })
    }

    /// For how long no write is tried, because the disk has failed.
    pub(super) fn left_alone_for(&self) -> Duration {
        self.file.left_alone_for()
    }

    /// Reads one service.
    pub(crate) fn get(&self, service: &str) -> Result<Option<Record>, StoreError> {
        self.file.read(|database| {
            let transaction = database.begin_read()?;
            let (services, words) = (transaction.open_table(SERVICES)?, transaction.open_table(LAST_WORDS)?);
            let Some(stored) = services.get(service)? else { return Ok(None) };
            let last_word = words.get(service)?.map_or(0, |word| word.value());
            Ok(Some(Record::from_stored(stored.value(), last_word)))
        })
    }

    /// Reads the first `limit` services.
    pub(crate) fn all(&self, limit: usize) -> Result<Vec<(String, Record)>, StoreError> {
        self.file.read(|database| {
            let transaction = database.begin_read()?;
            let (services, words) = (transaction.open_table(SERVICES)?, transaction.open_table(LAST_WORDS)?);
            let mut all = Vec::new();
            for row in services.iter()?.take(limit) {
                let (name, stored) = row?;
                let last_word = words.get(name.value())?.map_or(0, |word| word.value());
                all.push((name.value().to_owned(), Record::from_stored(stored.value(), last_word)));
            }
            Ok(all)
        })
    }

    /// Shows all services, one after the other.
    pub(crate) fn each(&self, mut look: impl FnMut(&str, Record)) -> Result<(), StoreError> {
        self.file.read_once(|database| {
            let transaction = database.begin_read()?;
            let (services, words) = (transaction.open_table(SERVICES)?, transaction.open_table(LAST_WORDS)?);
            for row in services.iter()? {
                let (name, stored) = row?;
                let last_word = words.get(name.value())?.map_or(0, |word| word.value());
                look(name.value(), Record::from_stored(stored.value(), last_word));
            }
            Ok(())
        })
    }

    /// Writes services, durably, all in one transaction. Of two records of a service the last counts.
    pub(crate) fn put_all(&self, records: &[(ServiceName, Record)]) -> Result<(), StoreError> {
        self.file.write(|database| {
            let transaction = database.begin_write()?;
            {
                let (mut services, mut words) =
                    (transaction.open_table(SERVICES)?, transaction.open_table(LAST_WORDS)?);
                for (service, record) in records {
                    let (generation, revision) = record.highest;
                    let stored = (generation, revision, record.origin.as_str(), record.descriptor.as_deref());
                    services.insert(service.as_str(), stored)?;
                    words.insert(service.as_str(), record.last_word)?;
                }
            }
            transaction.commit()?;
            Ok(())
        })
    }

    /// Writes last words only, all in one transaction.
    pub(crate) fn put_words(&self, words: &[(&str, u64)]) -> Result<(), StoreError> {
        self.file.write(|database| {
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(LAST_WORDS)?;
                for (service, word) in words {
                    table.insert(service, word)?;
                }
            }
            transaction.commit()?;
            Ok(())
        })
    }
}

/// Opens a database and makes sure that both tables exist, so that readers need not mind, and that they can be read.
fn read_all(path: &Path) -> Result<Database, StoreError> {
    let database = Database::create(path)?;
    let transaction = database.begin_write()?;
    for row in transaction.open_table(SERVICES)?.iter()? {
        row?;
    }
    for row in transaction.open_table(LAST_WORDS)?.iter()? {
        row?;
    }
    transaction.commit()?;
    Ok(database)
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
            store.put_words(&[("a", 2_000)]).unwrap();
        }
        let store = Store::open(&path, DirectoryLock::take(dir.path()).unwrap().0).unwrap();
        assert_eq!(store.get("a").unwrap(), Some(Record { last_word: 2_000, ..held }));
        assert_eq!(store.get("b").unwrap(), Some(tombstone));
        assert_eq!(store.get("c").unwrap(), None);
        assert_eq!(store.all(10).unwrap().len(), 2);
        assert_eq!(store.all(1).unwrap().len(), 1);
    }

    #[test]
    fn a_table_that_is_damaged_is_an_error_that_says_what_to_do_and_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.redb");
        let open = || Store::open(&path, DirectoryLock::take(dir.path()).unwrap().0);
        {
            let store = open().unwrap();
            let descriptor = Some(vec![7; 10_000]);
            let record = Record { highest: (7, 2), origin: "o:1".to_owned(), descriptor, last_word: 1 };
            let records: Vec<_> = (0..200).map(|n| (format!("s{n}").parse().unwrap(), record.clone())).collect();
            store.put_all(&records).unwrap();
        }
        let whole = fs::read(&path).unwrap();
        let mut opened = 0;
        for (what, bytes) in [
            ("emptied", Vec::new()),
            ("something else", b"not a table".repeat(1000)),
            ("cut short", whole[..whole.len() / 2].to_vec()),
            ("cut to its header", whole[..512].to_vec()),
            ("a newer format", edited(&whole, 9..64, 0xff)),
            ("a header of noise", edited(&whole, 64..320, 0x5a)),
            ("pages of noise", edited(&whole, 4096..whole.len(), 0xa5)),
            ("pages of nothing", edited(&whole, 4096..whole.len(), 0)),
        ] {
            fs::write(&path, &bytes).unwrap();
            match open() {
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.contains("table.redb") && message.contains("move it away"), "{what}: {message}");
                    assert_eq!(fs::read(&path).unwrap().is_empty(), bytes.is_empty(), "{what}");
                }
                Ok(store) => {
                    assert_eq!(store.all(1000).unwrap().len(), 200, "{what}: nothing is lost without a word");
                    opened += 1;
                }
            }
        }
        assert_eq!(opened, 0);
        fs::remove_file(&path).unwrap();
        fs::write(path.with_extension("unfinished"), "of one that died").unwrap();
        assert_eq!(open().unwrap().all(1).unwrap().len(), 0);
    }

    fn edited(bytes: &[u8], part: std::ops::Range<usize>, with: u8) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes[part].fill(with);
        bytes
    }
}

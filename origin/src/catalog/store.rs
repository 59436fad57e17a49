//! What operators defined at run time, on the disk: one redb file of its own. All of this blocks.
//!
//! Not beside the publications in `state.redb`: those can be made again from Git, and this cannot. It is small, a copy of
//! it is a backup, and it outlives a `state.redb` that has to be thrown away.

use std::path::PathBuf;
use std::sync::Arc;

use redb::{ReadTransaction, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_shared::name::{RepositoryName, ServiceName};

use super::definitions::Documents;
use crate::config::{RepositoryConfig, ServiceConfig};
use crate::data_dir::DataDir;
use crate::database::{DatabaseError, DatabaseFile, OfDatabase};

/// Repository → its document, as JSON.
const REPOSITORY: Rows = TableDefinition::new("repository_v1");
/// Service → its document, as JSON.
const SERVICE: Rows = TableDefinition::new("service_v1");

/// What operators defined.
#[derive(Debug)]
pub(crate) struct Store {
    file: DatabaseFile,
    path: PathBuf,
    /// Given back after the file is closed.
    _data_dir: DataDir,
}

/// What operators defined cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("what operators defined cannot be read or written: {0}")]
    Database(DatabaseError),
    #[error(
        "{kind} `{name}` in {} cannot be read: {cause}. A newer version may have written it: start that one", path.display()
    )]
    Unreadable { kind: &'static str, name: String, path: PathBuf, cause: String },
}

impl<E: Into<DatabaseError>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self::Database(error.into())
    }
}

impl OfDatabase for StoreError {
    fn of_database(&self) -> Option<&DatabaseError> {
        match self {
            Self::Database(error) => Some(error),
            Self::Unreadable { .. } => None,
        }
    }
}

/// One change of what is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    PutRepository(Arc<RepositoryConfig>),
    DeleteRepository(RepositoryName),
    PutService(Arc<ServiceConfig>),
    DeleteService(ServiceName),
}

impl Store {
    /// Opens the file, or makes a new one.
    pub(crate) fn open(data_dir: DataDir) -> Result<Self, StoreError> {
        let path = data_dir.catalog();
        let file = DatabaseFile::open(&path)?;
        file.write(|transaction| -> Result<(), StoreError> {
            transaction.open_table(REPOSITORY)?;
            transaction.open_table(SERVICE)?;
            Ok(())
        })?;
        Ok(Self { file, path, _data_dir: data_dir })
    }

    /// All documents. One that cannot be read is an error: without it a service that agents follow would be taken for
    /// deleted.
    pub(crate) fn documents(&self) -> Result<Documents, StoreError> {
        let repositories: Vec<RepositoryConfig> = self.all(REPOSITORY, "repository")?;
        let services: Vec<ServiceConfig> = self.all(SERVICE, "service")?;
        Ok(Documents::new(&repositories, &services))
    }

    /// Makes changes, all or none. When this returns they are durable.
    pub(crate) fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        self.file.write(|transaction| {
            let mut repositories = transaction.open_table(REPOSITORY)?;
            let mut services = transaction.open_table(SERVICE)?;
            for write in writes {
                match write {
                    Write::PutRepository(it) => drop(repositories.insert(it.name.as_str(), json(&**it).as_slice())?),
                    Write::DeleteRepository(name) => drop(repositories.remove(name.as_str())?),
                    Write::PutService(it) => drop(services.insert(it.name.as_str(), json(&**it).as_slice())?),
                    Write::DeleteService(name) => drop(services.remove(name.as_str())?),
                }
            }
            Ok(())
        })
    }

    fn all<T: Document>(&self, table: Rows, kind: &'static str) -> Result<Vec<T>, StoreError> {
        self.file.read(|transaction| {
            let unreadable = |(name, cause)| StoreError::Unreadable { kind, name, path: self.path.clone(), cause };
            rows(transaction, table)?.into_iter().map(|row| row.map_err(unreadable)).collect()
        })
    }
}

/// A table of documents.
type Rows = TableDefinition<'static, &'static str, &'static [u8]>;

/// The documents in a database that is only looked at; and those that cannot be read, each with its kind and name, and why.
pub(crate) fn inspect(file: &DatabaseFile) -> Result<(Documents, Vec<(String, String)>), StoreError> {
    file.read(|transaction| {
        let mut unreadable = Vec::new();
        let repositories = readable(rows(transaction, REPOSITORY)?, "repository", &mut unreadable);
        let services = readable(rows(transaction, SERVICE)?, "service", &mut unreadable);
        Ok((Documents::new(&repositories, &services), unreadable))
    })
}

/// A document, or its name and why it cannot be read.
type Row<T> = Result<T, (String, String)>;

fn readable<T>(rows: Vec<Row<T>>, kind: &str, unreadable: &mut Vec<(String, String)>) -> Vec<T> {
    let mut documents = Vec::with_capacity(rows.len());
    for row in rows {
        match row {
            Ok(document) => documents.push(document),
            Err((name, cause)) => unreadable.push((format!("{kind} {name}"), cause)),
        }
    }
    documents
}

fn rows<T: Document>(transaction: &ReadTransaction, table: Rows) -> Result<Vec<Row<T>>, StoreError> {
    let mut documents = Vec::new();
    for row in transaction.open_table(table)?.iter()? {
        let (name, json) = row?;
        let name = name.value();
        documents.push(read(name, json.value()).map_err(|cause| (name.to_owned(), cause)));
    }
    Ok(documents)
}

/// What stands under its own name.
trait Document: DeserializeOwned {
    fn name(&self) -> &str;
}

impl Document for RepositoryConfig {
    fn name(&self) -> &str {
        self.name.as_str()
    }
}

impl Document for ServiceConfig {
    fn name(&self) -> &str {
        self.name.as_str()
    }
}

/// Reads a row: the document of this name. The error says why not.
fn read<T: Document>(name: &str, json: &[u8]) -> Result<T, String> {
    let document: T = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if document.name() == name { Ok(document) } else { Err(format!("it is the document of `{}`", document.name())) }
}

/// What fuzzers call: a row is read and written so that it is read back.
#[cfg(fuzzing)]
pub fn fuzz_document_row(bytes: &[u8]) {
    fn again<T: Document + Serialize + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        if let Ok(document) = read::<T>("shop", bytes) {
            assert_eq!(read::<T>("shop", &json(&document)).as_ref(), Ok(&document));
        }
    }
    again::<RepositoryConfig>(bytes);
    again::<ServiceConfig>(bytes);
}

fn json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("a document is made of texts, numbers and lists")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_there_after_a_restart_and_what_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let open = || DataDir::open(dir.path()).unwrap().0;
        let mut repository = RepositoryConfig::new("shop".parse().unwrap(), "https://git.example/shop.git");
        repository.password_file = Some("token".into());
        let mut service = ServiceConfig::new("shop-prod".parse().unwrap(), "shop".parse().unwrap());
        service.revision = "release".parse().unwrap();
        service.include = vec!["**/*.yaml".to_owned()];
        let other = ServiceConfig { name: "shop-test".parse().unwrap(), ..service.clone() };
        {
            let store = Store::open(open()).unwrap();
            let puts = [&service, &other].map(|each| Write::PutService(each.clone().into()));
            store.write(&puts).unwrap();
            store.write(&[Write::PutRepository(repository.clone().into()), Write::DeleteService(other.name)]).unwrap();
        }
        let store = Store::open(open()).unwrap();
        assert_eq!(store.documents().unwrap(), Documents::new(&[repository.clone()], &[service]));
        store.write(&[Write::DeleteRepository(repository.name)]).unwrap();
        assert!(store.documents().unwrap().repositories.is_empty());

        for (row, said) in [
            (&b"{\"name\":\"odd\",\"new_key\":1}"[..], "new_key"),
            (&json(&ServiceConfig::new("even".parse().unwrap(), "shop".parse().unwrap())), "the document of `even`"),
            (b"\xff", "expected value"),
        ] {
            let put = |transaction: &redb::WriteTransaction| -> Result<(), StoreError> {
                transaction.open_table(SERVICE)?.insert("odd", row)?;
                Ok(())
            };
            store.file.write(put).unwrap();
            let error = store.documents().unwrap_err().to_string();
            assert!(error.contains("`odd`") && error.contains(said) && error.contains("newer"), "{error}");
        }
    }
}

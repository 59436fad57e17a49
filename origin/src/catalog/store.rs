//! What operators defined at run time, on the disk: one redb file of its own. All of this blocks.
//!
//! Not beside the publications in `state.redb`: those can be made again from Git, and this cannot. It is small, a copy of
//! it is a backup, and it outlives a `state.redb` that has to be thrown away.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use redb::{ReadTransaction, ReadableTable, TableDefinition};
use serde::Serialize;
use weir_shared::name::{RepositoryName, ServiceName};

use super::definitions::{Definitions, Documents};
use super::written::{Document, Name, Nameless, Written};
use crate::config::{Config, RepositoryConfig, ServiceConfig};
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
    /// Given back after the file is closed.
    _data_dir: DataDir,
}

/// What operators defined cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("what operators defined cannot be read or written: {0}")]
pub(crate) struct StoreError(DatabaseError);

impl<E: Into<DatabaseError>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl OfDatabase for StoreError {
    fn of_database(&self) -> Option<&DatabaseError> {
        Some(&self.0)
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
        let file = DatabaseFile::open(&data_dir.catalog())?;
        file.write(|transaction| -> Result<(), StoreError> {
            transaction.open_table(REPOSITORY)?;
            transaction.open_table(SERVICE)?;
            Ok(())
        })?;
        Ok(Self { file, _data_dir: data_dir })
    }

    /// What a file holds.
    #[cfg(test)]
    pub(super) fn of(file: DatabaseFile, data_dir: DataDir) -> Self {
        Self { file, _data_dir: data_dir }
    }

    /// All documents, those that the rules of now refuse as such.
    pub(crate) fn documents(&self) -> Result<Documents, StoreError> {
        inspect(&self.file)
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
}

/// The documents that operators stored in a data directory and that the rules of this version refuse: each with its kind and
/// name, and why. A copy is read, so that an origin may run on the directory.
///
/// # Errors
/// What is stored cannot be read. Where an origin is at work on it, it can be the next time.
pub fn refused_documents(data_dir: &Path) -> anyhow::Result<Vec<(String, String)>> {
    Ok(stored(data_dir)?.refused())
}

/// The services that operators stored in the data directory of a configuration, and whose repository neither that nor an
/// operator defines: each with the repository's name. A copy is read, so that an origin may run on the directory.
///
/// # Errors
/// As above.
pub fn services_left_alone(config: &Config) -> anyhow::Result<Vec<(ServiceName, RepositoryName)>> {
    let file = Documents::new(&config.repositories, &config.services);
    let defined = Definitions::of(&file, &stored(&config.data_dir)?);
    Ok(defined.left_alone().map(|(service, repository)| (service.clone(), repository.clone())).collect())
}

fn stored(data_dir: &Path) -> anyhow::Result<Documents> {
    let path = DataDir::catalog_in(data_dir);
    if !path.try_exists()? {
        return Ok(Documents::default());
    }
    let file = DatabaseFile::copy_of(&path).map_err(StoreError)?;
    Ok(inspect(&file)?)
}

/// A table of documents.
type Rows = TableDefinition<'static, &'static str, &'static [u8]>;

/// All documents in a database.
pub(crate) fn inspect(file: &DatabaseFile) -> Result<Documents, StoreError> {
    file.read(|transaction| {
        let mut nameless = Vec::new();
        let repositories = rows(transaction, REPOSITORY, &mut nameless)?;
        let services = rows(transaction, SERVICE, &mut nameless)?;
        Ok(Documents { repositories, services, nameless })
    })
}

fn rows<N: Name, T: Document>(
    transaction: &ReadTransaction,
    table: Rows,
    nameless: &mut Vec<Nameless>,
) -> Result<BTreeMap<N, Written<T>>, StoreError> {
    let mut documents = BTreeMap::new();
    for row in transaction.open_table(table)?.iter()? {
        let (key, json) = row?;
        match key.value().parse::<N>() {
            Ok(name) => drop(documents.insert(name, Written::read(key.value(), json.value()))),
            Err(cause) => {
                nameless.push(Nameless { kind: N::KIND, key: key.value().to_owned(), cause: cause.to_string() });
            }
        }
    }
    Ok(documents)
}

fn json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("a document is made of texts, numbers and lists")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_there_after_a_restart_and_what_is_refused_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let open = || DataDir::open(dir.path()).unwrap().0;
        let mut repository = RepositoryConfig::new("shop".parse().unwrap(), "https://git.example/shop.git");
        repository.username = Some("ci".to_owned());
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

        let put = |key: &'static str, row: &'static [u8]| {
            let put = |transaction: &redb::WriteTransaction| -> Result<(), StoreError> {
                transaction.open_table(SERVICE)?.insert(key, row)?;
                Ok(())
            };
            store.file.write(put).unwrap();
        };
        put("odd", b"{\"name\":\"odd\",\"new_key\":1}");
        put("No Name", b"{}");
        let documents = store.documents().unwrap();
        let odd = documents.services["odd"].refused().unwrap();
        assert!(odd.reason.contains("new_key"), "{odd:?}");
        assert_eq!(documents.services.len(), 2, "the others are there");
        let [nameless] = &documents.nameless[..] else { panic!("{documents:?}") };
        assert_eq!((nameless.kind, nameless.key.as_str()), ("service", "No Name"));
    }
}

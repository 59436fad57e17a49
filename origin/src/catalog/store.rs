//! What operators defined at run time, on the disk: one redb file of its own. All of this blocks.
//!
//! Not beside the publications in `state.redb`: those can be made again from Git, and this cannot. It is small, a copy of
//! it is a backup, and it outlives a `state.redb` that has to be thrown away.

use std::path::PathBuf;
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_shared::name::{RepositoryName, ServiceName};

use super::definitions::Documents;
use crate::config::{RepositoryConfig, ServiceConfig};
use crate::data_dir::DataDir;

/// Repository → its document, as JSON.
const REPOSITORY: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("repository_v1");
/// Service → its document, as JSON.
const SERVICE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("service_v1");

/// What operators defined.
#[derive(Debug)]
pub(crate) struct Store {
    database: Database,
    path: PathBuf,
    /// Given back after the file is closed.
    _data_dir: DataDir,
}

/// What operators defined cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("what operators defined cannot be read or written: {0}")]
    Database(Box<redb::Error>),
    #[error(
        "{kind} `{name}` in {} cannot be read: {cause}. A newer version may have written it: start that one", path.display()
    )]
    Unreadable { kind: &'static str, name: String, path: PathBuf, cause: String },
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self::Database(Box::new(error.into()))
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
        let database = Database::create(&path)?;
        let transaction = database.begin_write()?;
        transaction.open_table(REPOSITORY)?;
        transaction.open_table(SERVICE)?;
        transaction.commit()?;
        Ok(Self { database, path, _data_dir: data_dir })
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
        let transaction = self.database.begin_write()?;
        {
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
        }
        Ok(transaction.commit()?)
    }

    fn all<T: DeserializeOwned>(
        &self,
        table: TableDefinition<'_, &'static str, &'static [u8]>,
        kind: &'static str,
    ) -> Result<Vec<T>, StoreError> {
        let table = self.database.begin_read()?.open_table(table)?;
        let mut documents = Vec::new();
        for row in table.iter()? {
            let (name, bytes) = row?;
            let document = serde_json::from_slice(bytes.value()).map_err(|error| StoreError::Unreadable {
                kind,
                name: name.value().to_owned(),
                path: self.path.clone(),
                cause: error.to_string(),
            })?;
            documents.push(document);
        }
        Ok(documents)
    }
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

        let transaction = store.database.begin_write().unwrap();
        transaction.open_table(SERVICE).unwrap().insert("odd", b"{\"name\":\"odd\",\"new_key\":1}".as_slice()).unwrap();
        transaction.commit().unwrap();
        let error = store.documents().unwrap_err().to_string();
        assert!(error.contains("`odd`") && error.contains("new_key") && error.contains("newer"), "{error}");
    }
}

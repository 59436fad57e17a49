//! The operators' definitions, read from the records of repositories.

use std::collections::BTreeMap;

use serde_json::Value;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_store::{Objects, Records};

use super::load::load;
use super::row::Definition;
use crate::error::PublishError;

/// The documents of all repositories and services.
#[derive(Debug, Default)]
pub struct StoredDefinitions {
    /// Of repositories.
    pub repositories: BTreeMap<RepositoryName, Value>,
    /// Each document with the repository whose record holds it.
    pub services: BTreeMap<ServiceName, (RepositoryName, Value)>,
    /// Moved services whose old repository still has a document, which must be removed there.
    pub outdated: Vec<(RepositoryName, ServiceName)>,
}

/// Merges the definitions of repositories. If the process was killed during a move, a service is in two repositories:
/// the newer document counts.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    pub(crate) stored: StoredDefinitions,
    /// When the document that counts was written.
    written_at: BTreeMap<ServiceName, u64>,
}

impl Definitions {
    pub(crate) fn add(
        &mut self,
        repository: &RepositoryName,
        own: Option<Value>,
        services: BTreeMap<ServiceName, Definition>,
    ) {
        self.stored.repositories.extend(own.map(|document| (repository.clone(), document)));
        for (service, Definition { written_at, document }) in services {
            if self.written_at.get(&service).is_some_and(|newer| *newer >= written_at) {
                self.stored.outdated.push((repository.clone(), service));
                continue;
            }
            self.written_at.insert(service.clone(), written_at);
            let before = self.stored.services.insert(service.clone(), (repository.clone(), document));
            self.stored.outdated.extend(before.map(|(home, _)| (home, service)));
        }
    }
}

/// Reads the definitions without writing, so that it can run alongside an origin. Damaged records are skipped.
///
/// # Errors
/// The records cannot be listed.
pub async fn stored_definitions(objects: &Objects, records: &Records) -> Result<StoredDefinitions, PublishError> {
    let mut definitions = Definitions::default();
    for key in records.list("repositories/").await? {
        let Ok(repository) = key.name().parse::<RepositoryName>() else { continue };
        let mut loaded = load(objects, records, &repository, &[]).await;
        let of_services = loaded.definitions();
        definitions.add(&repository, loaded.known.record.definition, of_services);
    }
    Ok(definitions.stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_of_two_documents_holds_whichever_is_read_first() {
        let definition = |written_at, repository: &str| {
            let document = serde_json::json!({ "repository": repository });
            BTreeMap::from([("one".parse().unwrap(), Definition { written_at, document })])
        };
        let both = [("shop", definition(1, "shop")), ("blog", definition(2, "blog"))];
        for pending_change in [both.clone(), {
            let [old, new] = both;
            [new, old]
        }] {
            let mut all = Definitions::default();
            for (repository, services) in pending_change {
                all.add(&repository.parse().unwrap(), None, services);
            }
            assert_eq!(all.stored.services["one"].1["repository"], "blog");
            assert_eq!(all.stored.outdated, [("shop".parse().unwrap(), "one".parse().unwrap())]);
        }
    }
}

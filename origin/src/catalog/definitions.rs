//! What is to be mirrored and published, and who said so: the configuration file, or operators at run time.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use weir_shared::name::{RepositoryName, ServiceName};

use crate::config::{RepositoryConfig, ServiceConfig};

/// Who defined an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefinedBy {
    /// The configuration file: operators cannot change it.
    File,
    /// Operators.
    Api,
}

impl DefinedBy {
    /// Both, as labels of a metric.
    pub(crate) const ALL: [Self; 2] = [Self::File, Self::Api];

    /// The word for documents, `/status` and metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            DefinedBy::File => "file",
            DefinedBy::Api => "api",
        }
    }
}

/// An object's document, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Defined<T> {
    pub(crate) by: DefinedBy,
    pub(crate) document: T,
}

/// Documents of one author.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Documents {
    pub(crate) repositories: BTreeMap<RepositoryName, RepositoryConfig>,
    pub(crate) services: BTreeMap<ServiceName, ServiceConfig>,
}

impl Documents {
    /// The documents of a configuration file.
    pub(crate) fn new(repositories: &[RepositoryConfig], services: &[ServiceConfig]) -> Self {
        Self {
            repositories: repositories.iter().map(|each| (each.name.clone(), each.clone())).collect(),
            services: services.iter().map(|each| (each.name.clone(), each.clone())).collect(),
        }
    }
}

/// All that is defined. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Definitions {
    pub(crate) repositories: Arc<BTreeMap<RepositoryName, Arc<Defined<RepositoryConfig>>>>,
    pub(crate) services: Arc<BTreeMap<ServiceName, Arc<Defined<ServiceConfig>>>>,
}

impl Definitions {
    /// What the file says, and under all other names what operators said: a name in the file is the file's.
    pub(crate) fn of(file: &Documents, api: &Documents) -> Self {
        Self {
            repositories: Arc::new(merged(&file.repositories, &api.repositories)),
            services: Arc::new(merged(&file.services, &api.services)),
        }
    }

    /// The services of a repository.
    pub(crate) fn services_of<'a>(&'a self, repository: &'a RepositoryName) -> impl Iterator<Item = &'a ServiceName> {
        let of_it = move |(name, each): (&'a ServiceName, &'a Arc<Defined<ServiceConfig>>)| {
            (each.document.repository == *repository).then_some(name)
        };
        self.services.iter().filter_map(of_it)
    }
}

fn merged<N: Ord + Clone, T: Clone>(file: &BTreeMap<N, T>, api: &BTreeMap<N, T>) -> BTreeMap<N, Arc<Defined<T>>> {
    let defined =
        |by| move |(name, document): (&N, &T)| (name.clone(), Arc::new(Defined { by, document: document.clone() }));
    let mut merged: BTreeMap<_, _> = api.iter().map(defined(DefinedBy::Api)).collect();
    merged.extend(file.iter().map(defined(DefinedBy::File)));
    merged
}

/// The version of a document: the same for the same document, whoever wrote it and when.
pub(crate) fn version(document: &impl Serialize) -> String {
    let json = serde_json::to_vec(document).expect("a document is made of texts, numbers and lists");
    blake3::hash(&json).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(name: &str, url: &str) -> RepositoryConfig {
        RepositoryConfig::new(name.parse().unwrap(), url)
    }

    #[test]
    fn a_name_in_the_file_is_the_file_s() {
        let file = Documents::new(&[repository("shop", "https://file/x")], &[]);
        let api = Documents::new(&[repository("shop", "https://api/x"), repository("blog", "https://api/y")], &[]);
        let both = Definitions::of(&file, &api);
        let seen: Vec<_> = both
            .repositories
            .iter()
            .map(|(name, defined)| (name.as_str(), defined.by, defined.document.url.as_str()))
            .collect();
        assert_eq!(seen, [("blog", DefinedBy::Api, "https://api/y"), ("shop", DefinedBy::File, "https://file/x")]);
        let without = Definitions::of(&Documents::default(), &api);
        assert_eq!(without.repositories.len(), 2);
        assert!(without.repositories.values().all(|defined| defined.by == DefinedBy::Api), "it is back");
    }

    #[test]
    fn a_version_is_of_the_document_alone() {
        let one = repository("shop", "https://a/x");
        assert_eq!(version(&one), version(&one.clone()));
        assert_ne!(version(&one), version(&repository("shop", "https://b/x")));
        assert_eq!(version(&one).len(), 16);
    }
}

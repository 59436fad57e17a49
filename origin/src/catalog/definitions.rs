//! What is to be mirrored and published, and who said so: the configuration file, or operators at run time.

use std::sync::Arc;

use serde::Serialize;
use weir_protocol::name::{RepositoryName, ServiceName};

use super::Map;
use super::edit::Write;
use super::raw_document::{RawDocument, Refused};
use crate::config::{RepositoryConfig, ServiceConfig};
use crate::publish::StoredDefinitions;

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
    pub(crate) document: RawDocument<T>,
}

/// Documents of one author. Cheap to clone, whatever its size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Documents {
    pub(crate) repositories: Map<RepositoryName, RawDocument<RepositoryConfig>>,
    pub(crate) services: Map<ServiceName, RawDocument<ServiceConfig>>,
}

impl Documents {
    /// The documents of a configuration file.
    pub(crate) fn new(repositories: &[RepositoryConfig], services: &[ServiceConfig]) -> Self {
        Self {
            repositories: repositories.iter().map(|each| (each.name.clone(), each.clone().into())).collect(),
            services: services.iter().map(|each| (each.name.clone(), each.clone().into())).collect(),
        }
    }

    /// What operators stored.
    pub(crate) fn stored(stored: &StoredDefinitions) -> Self {
        let (repositories, services) = (stored.repositories.iter(), stored.services.iter());
        Self {
            repositories: repositories
                .map(|(name, json)| (name.clone(), RawDocument::read(name.as_str(), name, json)))
                .collect(),
            services: services
                .map(|(name, (of, json))| (name.clone(), RawDocument::read(name.as_str(), of, json)))
                .collect(),
        }
    }

    /// Takes over what was written.
    pub(super) fn apply(&mut self, write: &Write) {
        match write {
            Write::PutRepository(it) => self.repositories.insert_mut(it.name.clone(), RawDocument::Taken(it.clone())),
            Write::DeleteRepository(name) => drop(self.repositories.remove_mut(name)),
            Write::PutService(it) => self.services.insert_mut(it.name.clone(), RawDocument::Taken(it.clone())),
            Write::DeleteService(name) => drop(self.services.remove_mut(name)),
        }
    }

    /// Those that are refused, each with its kind and name, and why.
    pub(crate) fn refused(&self) -> Vec<(String, String)> {
        let repositories = self.repositories.iter().filter_map(|(name, each)| Some((name.as_str(), each.refused()?)));
        let services = self.services.iter().filter_map(|(name, each)| Some((name.as_str(), each.refused()?)));
        let told = |kind, (name, refused): (&str, &Arc<Refused>)| (format!("{kind} {name}"), refused.reason.clone());
        repositories.map(|each| told("repository", each)).chain(services.map(|each| told("service", each))).collect()
    }
}

/// All that is defined. Cheap to clone, whatever its size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Definitions {
    pub(crate) repositories: Map<RepositoryName, Defined<RepositoryConfig>>,
    pub(crate) services: Map<ServiceName, Defined<ServiceConfig>>,
}

impl Definitions {
    /// What the file says, and under all other names what operators said: a name in the file is the file's.
    pub(crate) fn of(file: &Documents, api: &Documents) -> Self {
        let mut all = Self::default();
        api.repositories.keys().chain(file.repositories.keys()).for_each(|name| all.update_repository(name, file, api));
        api.services.keys().chain(file.services.keys()).for_each(|name| all.update_service(name, file, api));
        all
    }

    /// Takes over what is said of one repository.
    pub(super) fn update_repository(&mut self, name: &RepositoryName, file: &Documents, api: &Documents) {
        update(&mut self.repositories, name, &file.repositories, &api.repositories);
    }

    /// Takes over what is said of one service.
    pub(super) fn update_service(&mut self, name: &ServiceName, file: &Documents, api: &Documents) {
        update(&mut self.services, name, &file.services, &api.services);
    }

    /// Services of repositories that nobody defines, each with the repository's name. They are at what they were.
    pub(crate) fn left_alone(&self) -> impl Iterator<Item = (&ServiceName, &RepositoryName)> {
        let services = self.services.iter().filter_map(|(name, each)| Some((name, &each.document.taken()?.repository)));
        services.filter(|(_, repository)| !self.repositories.contains_key(*repository))
    }

    /// The services of a repository.
    pub(crate) fn services_of<'a>(&'a self, repository: &'a RepositoryName) -> impl Iterator<Item = &'a ServiceName> {
        let of_it = move |(name, each): (&'a ServiceName, &'a Defined<ServiceConfig>)| {
            (each.document.repository() == repository).then_some(name)
        };
        self.services.iter().filter_map(of_it)
    }
}

fn update<N: Ord + Clone, T: Clone>(
    all: &mut Map<N, Defined<T>>,
    name: &N,
    file: &Map<N, RawDocument<T>>,
    api: &Map<N, RawDocument<T>>,
) {
    let of =
        |by, documents: &Map<N, RawDocument<T>>| documents.get(name).map(|it| Defined { by, document: it.clone() });
    match of(DefinedBy::File, file).or_else(|| of(DefinedBy::Api, api)) {
        Some(defined) => all.insert_mut(name.clone(), defined),
        None => drop(all.remove_mut(name)),
    }
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
            .map(|(name, defined)| (name.as_str(), defined.by, defined.document.taken().unwrap().url.as_str()))
            .collect();
        assert_eq!(seen, [("blog", DefinedBy::Api, "https://api/y"), ("shop", DefinedBy::File, "https://file/x")]);
        let without = Definitions::of(&Documents::default(), &api);
        assert_eq!(without.repositories.size(), 2);
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

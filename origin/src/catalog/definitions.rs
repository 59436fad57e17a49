//! The defined repositories and services, from the configuration file and from operators.

use std::sync::Arc;

use serde::Serialize;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::StoredDefinitions;
use weir_source::{OciChoice, ServiceConfig};
use weir_upstream::{DefinedBy, RepositoryConfig, SourceKind};

use super::Map;
use super::raw_document::{RawDocument, Refused};
use crate::config::OciConfig;

/// A document and its author.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Defined<T> {
    pub(crate) by: DefinedBy,
    pub(crate) document: RawDocument<T>,
}

/// The documents of one author. Clones are cheap at any size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Documents {
    pub(crate) repositories: Map<RepositoryName, RawDocument<RepositoryConfig>>,
    pub(crate) services: Map<ServiceName, RawDocument<ServiceConfig>>,
}

/// A change of the stored documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Write {
    PutRepository(Arc<RepositoryConfig>),
    DeleteRepository(RepositoryName),
    PutService(Arc<ServiceConfig>),
    DeleteService(ServiceName),
}

impl Documents {
    /// The documents of a configuration file.
    pub(crate) fn new(repositories: &[RepositoryConfig], services: &[ServiceConfig]) -> Self {
        let by_name = ServiceConfig::by_name(services);
        Self {
            repositories: repositories.iter().map(|each| (each.name.clone(), each.clone().into())).collect(),
            services: services.iter().map(|each| (each.name.clone(), each.at_home(&by_name).into())).collect(),
        }
    }

    /// The documents of operators, in a cluster or of the only origin.
    pub(crate) fn stored(stored: &StoredDefinitions, is_in_cluster: bool) -> Self {
        let (repositories, services) = (stored.repositories.iter(), stored.services.iter());
        Self {
            repositories: repositories
                .map(|(name, json)| (name.clone(), RawDocument::read(name.as_str(), name, json)))
                .collect(),
            services: services
                .map(|(name, (of, json))| {
                    let document = RawDocument::read(name.as_str(), of, json);
                    let refused = is_in_cluster.then(|| document.refused_in_cluster()).flatten();
                    (name.clone(), refused.unwrap_or(document))
                })
                .collect(),
        }
    }

    /// Applies a write of operators.
    pub(super) fn apply(&mut self, write: &Write) {
        match write {
            Write::PutRepository(it) => self.repositories.insert_mut(it.name.clone(), RawDocument::Valid(it.clone())),
            Write::DeleteRepository(name) => drop(self.repositories.remove_mut(name)),
            Write::PutService(it) => self.services.insert_mut(it.name.clone(), RawDocument::Valid(it.clone())),
            Write::DeleteService(name) => drop(self.services.remove_mut(name)),
        }
    }
}

/// All definitions. Clones are cheap at any size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Definitions {
    pub(crate) repositories: Map<RepositoryName, Defined<RepositoryConfig>>,
    pub(crate) services: Map<ServiceName, Defined<ServiceConfig>>,
}

impl Definitions {
    /// Merges both authors. If both define a name, the file counts.
    pub(crate) fn of(file: &Documents, api: &Documents) -> Self {
        let mut all = Self::default();
        api.repositories.keys().chain(file.repositories.keys()).for_each(|name| all.update_repository(name, file, api));
        api.services.keys().chain(file.services.keys()).for_each(|name| all.update_service(name, file, api));
        all
    }

    /// Merges the definitions of one repository.
    pub(super) fn update_repository(&mut self, name: &RepositoryName, file: &Documents, api: &Documents) {
        update(&mut self.repositories, name, &file.repositories, &api.repositories);
    }

    /// Merges the definitions of one service.
    pub(super) fn update_service(&mut self, name: &ServiceName, file: &Documents, api: &Documents) {
        update(&mut self.services, name, &file.services, &api.services);
        if let Some(defined) = self.services.get(name)
            && let Some(refused) = defined.document.refused_for(|repository| self.kind_of(repository))
        {
            self.services.insert_mut(name.clone(), Defined { by: defined.by, document: refused });
        }
    }

    /// The kind of a repository. `None`: it is not defined.
    pub(crate) fn kind_of(&self, repository: &RepositoryName) -> Option<SourceKind> {
        Some(self.repositories.get(repository)?.document.valid()?.kind)
    }

    /// Whether the versions of a service have an OCI form.
    pub(super) fn oci(&self, service: &ServiceConfig, of_origin: OciConfig) -> OciChoice {
        let home = self.repositories.get(service.home()).and_then(|home| home.document.valid());
        OciChoice::of(service, home.map(|home| &**home), of_origin.enabled)
    }

    /// Services whose repository is not defined, with its name. Their published versions stay.
    pub(crate) fn without_repository(&self) -> impl Iterator<Item = (&ServiceName, &RepositoryName)> {
        let services = self.services.iter().filter_map(|(name, each)| Some((name, each.document.valid()?)));
        let repositories = services.flat_map(|(name, document)| document.repositories().map(move |of| (name, of)));
        repositories.filter(|(_, repository)| !self.repositories.contains_key(*repository))
    }

    /// The invalid documents: kind and name, and the reason.
    pub(crate) fn refused(&self) -> Vec<(String, String)> {
        let repositories =
            self.repositories.iter().filter_map(|(name, each)| Some((name.as_str(), each.document.refused()?)));
        let services = self.services.iter().filter_map(|(name, each)| Some((name.as_str(), each.document.refused()?)));
        let entry = |kind, (name, refused): (&str, &Arc<Refused>)| (format!("{kind} {name}"), refused.reason.clone());
        repositories.map(|each| entry("repository", each)).chain(services.map(|each| entry("service", each))).collect()
    }

    /// The names of services of other repositories with a part of this one, or of a service of it.
    pub(crate) fn composed_of<'a>(&'a self, repository: &'a RepositoryName) -> impl Iterator<Item = &'a ServiceName> {
        let services = self.services.iter().filter(move |(_, each)| each.document.repository() != repository);
        let of_it = move |each: &Defined<ServiceConfig>| {
            let parts = || each.document.part_services(usize::MAX);
            each.document.names(|name| name == repository)
                || parts().iter().any(|part| self.home_of(part).as_ref() == Some(repository))
        };
        services.filter(move |(_, each)| of_it(each)).map(|(name, _)| name)
    }

    /// The names of services of which this one is a part. `first`: is the first part.
    pub(crate) fn composed_with<'a>(
        &'a self,
        service: &'a ServiceName,
        first: bool,
    ) -> impl Iterator<Item = &'a ServiceName> {
        let services = self.services.iter().filter(move |(name, each)| {
            let most = if first { 1 } else { usize::MAX };
            *name != service && each.document.part_services(most).contains(service)
        });
        services.map(|(name, _)| name)
    }

    /// The repository of a service.
    pub(crate) fn home_of(&self, service: &ServiceName) -> Option<RepositoryName> {
        Some(self.services.get(service)?.document.repository().clone())
    }

    /// The names of a repository's services.
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

/// The version of a document: equal for equal documents, in the file and by operators.
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
    fn a_ref_without_a_meaning_for_its_repository_is_refused_and_stays_stored() {
        let mut service = ServiceConfig::new("shop-prod".parse().unwrap(), "shop".parse().unwrap());
        service.followed_ref = "refs/replace/x".parse().unwrap();
        let api = Documents::new(&[repository("shop", "https://api/x")], &[service.clone()]);
        let all = Definitions::of(&Documents::default(), &api);
        let document = &all.services.get(&service.name).unwrap().document;
        let refused = document.refused().expect("it follows nothing");
        assert!(refused.reason.contains("replacement objects"), "{}", refused.reason);
        assert_eq!(serde_json::to_value(document).unwrap(), serde_json::to_value(&service).unwrap());
    }

    #[test]
    fn a_part_without_a_meaning_is_refused_while_the_repository_of_another_one_is_missing() {
        let parts = serde_json::json!([
            { "repository": "charts", "chart": "shop", "ref": "semver:^1", "to": "chart" },
            { "repository": "config", "ref": "main", "to": "values" },
        ]);
        let service: ServiceConfig =
            serde_json::from_value(serde_json::json!({ "name": "shop-prod", "parts": parts })).unwrap();
        let api = Documents::new(&[repository("charts", "https://api/x.git")], std::slice::from_ref(&service));
        let all = Definitions::of(&Documents::default(), &api);
        let document = &all.services.get(&service.name).unwrap().document;
        let refused = document.refused().expect("`chart` has no meaning for Git");
        assert!(refused.reason.contains("part `chart`"), "{}", refused.reason);
    }

    #[test]
    fn a_service_of_several_repositories_is_refused_once_its_origin_joins_a_cluster() {
        let service = |other: &str| {
            let part =
                |repository: &str, to: &str| serde_json::json!({ "repository": repository, "ref": "main", "to": to });
            serde_json::json!({ "name": "shop-prod", "parts": [part("shop", "a"), part(other, "b")] })
        };
        let (name, of): (ServiceName, RepositoryName) = ("shop-prod".parse().unwrap(), "shop".parse().unwrap());
        for (other, is_in_cluster, is_refused) in
            [("config", true, true), ("config", false, false), ("shop", true, false)]
        {
            let services = [(name.clone(), (of.clone(), service(other)))].into();
            let stored = StoredDefinitions { services, ..StoredDefinitions::default() };
            let api = Documents::stored(&stored, is_in_cluster);
            let document = api.services.get(&name).unwrap();
            let reason = document.refused().map(|refused| refused.reason.as_str());
            assert_eq!(
                reason.is_some_and(|reason| reason.contains("`config`, `shop` may have different owners")),
                is_refused
            );
            assert_eq!(document.valid().is_none(), is_refused);
        }
    }

    #[test]
    fn a_name_in_the_file_is_the_file_s() {
        let file = Documents::new(&[repository("shop", "https://file/x")], &[]);
        let api = Documents::new(&[repository("shop", "https://api/x"), repository("blog", "https://api/y")], &[]);
        let both = Definitions::of(&file, &api);
        let seen: Vec<_> = both
            .repositories
            .iter()
            .map(|(name, defined)| (name.as_str(), defined.by, defined.document.valid().unwrap().url.as_str()))
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

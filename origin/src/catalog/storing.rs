//! What an edit changes in the records of repositories, where operators' documents are stored: a repository's own and
//! those of its services. Pure.

use weir_protocol::name::{RepositoryName, ServiceName};

use super::definitions::Documents;
use super::edit::Write;
use crate::publish::DefinitionChange;

/// A change of the record of a repository.
type Change = (RepositoryName, DefinitionChange);

/// What makes the writes of one edit durable.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Plan {
    /// The edit is made when this is durable.
    pub(super) change: Option<Change>,
    /// Then a service that moved is taken out of the repository where it was. Until that is durable both have it, and the
    /// newer document holds.
    pub(super) cleanup: Option<Change>,
}

impl Plan {
    /// What makes writes durable that were decided for these stored documents.
    pub(super) fn of(writes: &[Write], stored: &Documents) -> Self {
        let mut plan = Self::default();
        for write in writes {
            match write {
                Write::PutRepository(it) => plan.change(&it.name).repository = Some(Some(json(&**it))),
                Write::DeleteRepository(name) => plan.change(name).repository = Some(None),
                Write::PutService(it) => {
                    plan.change(&it.repository).services.push((it.name.clone(), Some(json(&**it))));
                    if let Some(before) = home(&it.name, stored).filter(|before| *before != it.repository) {
                        plan.cleanup = Self::removal(before, it.name.clone()).cleanup;
                    }
                }
                Write::DeleteService(name) => {
                    if let Some(home) = home(name, stored) {
                        plan.change(&home).services.push((name.clone(), None));
                    }
                }
            }
        }
        plan
    }

    /// What is left to be done for a service that moved away from a repository.
    pub(super) fn removal(repository: RepositoryName, service: ServiceName) -> Self {
        let removal = DefinitionChange { repository: None, services: vec![(service, None)] };
        Self { change: None, cleanup: Some((repository, removal)) }
    }

    /// Whether a service is to be taken out of where it was.
    pub(super) fn removes(&self, service: &ServiceName) -> bool {
        self.cleanup.iter().flat_map(|(_, change)| &change.services).any(|(name, _)| name == service)
    }

    /// The writes of one edit are all of one repository.
    fn change(&mut self, repository: &RepositoryName) -> &mut DefinitionChange {
        &mut self.change.get_or_insert_with(|| (repository.clone(), DefinitionChange::default())).1
    }
}

/// The repository in whose record a service's document is.
fn home(service: &ServiceName, stored: &Documents) -> Option<RepositoryName> {
    Some(stored.services.get(service)?.repository().clone())
}

fn json(document: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(document).expect("a document is made of texts, numbers and lists")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{RepositoryConfig, ServiceConfig};

    #[test]
    fn a_service_that_moves_is_written_where_it_goes_and_then_removed_where_it_was() {
        let service = |of: &str| ServiceConfig::new("one".parse().unwrap(), of.parse().unwrap());
        let stored = Documents::new(&[], &[service("shop")]);
        let put = |of: &str| Plan::of(&[Write::PutService(service(of).into())], &stored);
        let moved = put("blog");
        let (repository, change) = moved.change.unwrap();
        assert_eq!(
            (repository.as_str(), change.services[0].1.as_ref().unwrap()["repository"].as_str()),
            ("blog", Some("blog"))
        );
        let (repository, change) = moved.cleanup.unwrap();
        assert_eq!((repository.as_str(), change.services), ("shop", vec![("one".parse().unwrap(), None)]));
        assert_eq!(put("shop").cleanup, None);
    }

    #[test]
    fn a_repository_goes_with_its_services_in_one_change() {
        let repository = RepositoryConfig::new("shop".parse().unwrap(), "https://git.example/shop.git");
        let service = ServiceConfig::new("one".parse().unwrap(), "shop".parse().unwrap());
        let stored = Documents::new(&[repository], &[service]);
        let writes = [Write::DeleteService("one".parse().unwrap()), Write::DeleteRepository("shop".parse().unwrap())];
        let (name, change) = Plan::of(&writes, &stored).change.unwrap();
        let both = DefinitionChange { repository: Some(None), services: vec![("one".parse().unwrap(), None)] };
        assert_eq!((name.as_str(), change), ("shop", both));
    }
}

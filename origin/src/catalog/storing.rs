//! Pure: maps an edit to changes of repository records, which store the documents of operators.

use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::DefinitionChange;

use super::definitions::{Documents, Write};

/// A change of one repository's record.
type Change = (RepositoryName, DefinitionChange);

/// The record changes of one edit.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Plan {
    /// Commits the edit.
    pub(super) change: Option<Change>,
    /// Removes a moved service from its old repository afterwards. Until then both store it, and the newer document
    /// counts.
    pub(super) cleanup: Option<Change>,
}

impl Plan {
    /// The changes for writes that were decided on these stored documents.
    pub(super) fn of(writes: &[Write], stored: &Documents) -> Self {
        let mut plan = Self::default();
        for write in writes {
            match write {
                Write::PutRepository(it) => plan.change(&it.name).repository = Some(Some(json(&**it))),
                Write::DeleteRepository(name) => plan.change(name).repository = Some(None),
                Write::PutService(it) => {
                    plan.change(it.home()).services.push((it.name.clone(), Some(json(&**it))));
                    if let Some(before) = home(&it.name, stored).filter(|before| before != it.home()) {
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

    /// Removes a moved service from its old repository.
    pub(super) fn removal(repository: RepositoryName, service: ServiceName) -> Self {
        let removal = DefinitionChange { repository: None, services: vec![(service, None)] };
        Self { change: None, cleanup: Some((repository, removal)) }
    }

    /// All writes of one edit concern one repository.
    fn change(&mut self, repository: &RepositoryName) -> &mut DefinitionChange {
        &mut self.change.get_or_insert_with(|| (repository.clone(), DefinitionChange::default())).1
    }
}

/// The repository whose record stores a service's document.
fn home(service: &ServiceName, stored: &Documents) -> Option<RepositoryName> {
    Some(stored.services.get(service)?.repository().clone())
}

fn json(document: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(document).expect("a document is made of texts, numbers and lists")
}

#[cfg(test)]
mod tests {
    use weir_source::ServiceConfig;
    use weir_upstream::RepositoryConfig;

    use super::*;

    #[test]
    fn a_moved_service_is_written_before_it_is_removed() {
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
    fn a_repository_and_its_services_are_deleted_in_one_change() {
        let repository = RepositoryConfig::new("shop".parse().unwrap(), "https://git.example/shop.git");
        let service = ServiceConfig::new("one".parse().unwrap(), "shop".parse().unwrap());
        let stored = Documents::new(&[repository], &[service]);
        let writes = [Write::DeleteService("one".parse().unwrap()), Write::DeleteRepository("shop".parse().unwrap())];
        let (name, change) = Plan::of(&writes, &stored).change.unwrap();
        let both = DefinitionChange { repository: Some(None), services: vec![("one".parse().unwrap(), None)] };
        assert_eq!((name.as_str(), change), ("shop", both));
    }
}

//! Pure: decides whether an operator's edit is allowed, and what it writes. Begin at [`Edit::decide`].

use std::sync::Arc;

use weir_protocol::name::{RepositoryName, ServiceName};
use weir_source::ServiceConfig;
use weir_upstream::{DefinedBy, RepositoryConfig, SourceKind};

use super::definitions::{Defined, Definitions, Write, version};
use crate::config::LimitsConfig;

/// A requested change. Each of its documents was validated on its own.
#[derive(Debug, Clone, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Edit {
    PutRepository(Arc<RepositoryConfig>),
    DeleteRepository {
        name: RepositoryName,
        /// Delete the services too.
        cascade: bool,
    },
    PutService(Arc<ServiceConfig>),
    DeleteService {
        name: ServiceName,
        /// Also if it is a part of others, which stay.
        cascade: bool,
    },
}

/// The required state of the object. Versions are those of documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Precondition {
    /// `If-Match`.
    pub(crate) matches: Option<Matches>,
    /// `If-None-Match: *`: the object must not exist.
    pub(crate) is_new: bool,
    /// The version that the new document is based on, if it names one.
    pub(crate) based_on: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Matches {
    /// `*`: any version.
    Any,
    Versions(Vec<String>),
}

/// An allowed edit: its outcome and its writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) writes: Vec<Write>,
    pub(super) outcome: Outcome,
}

/// The result of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Outcome {
    Created,
    Changed,
    Unchanged,
    Deleted,
}

/// Why an edit is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("There is no repository `{0}` here.")]
    NoSuchRepository(RepositoryName),
    #[error("There is no service `{0}` here.")]
    NoSuchService(ServiceName),
    #[error("{kind} `{name}` is defined in the origin's configuration file: change it there, then send SIGHUP.")]
    DefinedByFile { kind: &'static str, name: String },
    /// `If-Match` or `If-None-Match` is not met.
    #[error("{kind} `{name}` is not what the request expects: {}. Read it again.", now(current.as_ref()))]
    Precondition { kind: &'static str, name: String, current: Option<String> },
    #[error(
        "the document was made from a version of {kind} `{name}` that is not the current one: {}. Read it again, or leave \
         `version` out to overwrite it.",
        now(current.as_ref())
    )]
    Outdated { kind: &'static str, name: String, current: Option<String> },
    #[error("Repository `{0}` is of `kind = \"{1}\"`, which cannot be changed: delete it, and create it again.")]
    KindChanged(RepositoryName, SourceKind),
    /// With the repository that has the service.
    #[error(
        "Service `{0}` exists in repository `{1}`. Delete it there first, or move it: send the `PUT` without conditions, or with the \
         `ETag` of the service as `If-Match`."
    )]
    ServiceExists(ServiceName, RepositoryName),
    /// The repository still has these services.
    #[error("Delete its services first ({}), or use `?cascade=true`.", first_of(.1))]
    HasServices(RepositoryName, Vec<ServiceName>),
    #[error("`repository`: there is no repository `{1}`: create it first.")]
    MissingRepository(ServiceName, RepositoryName),
    /// Of a service with parts.
    #[error("`parts`: {1}.")]
    WrongPart(ServiceName, String),
    /// These services have it as a part.
    #[error("It is a part of other services ({}), which would keep their last version: change them first, or use `?cascade=true`.", first_of(.0))]
    IsPart(Vec<ServiceName>),
    #[error("It is a part of other services ({}), and a part has no parts itself: change them first.", first_of(.0))]
    PartWithParts(Vec<ServiceName>),
    #[error("It is the first part of other services ({}), which are published by the same repository: change them first.", first_of(.0))]
    PartMoves(Vec<ServiceName>),
    /// These services name the plan.
    #[error("Services name it ({}), of which nothing new would be published: change them first.", first_of(.0))]
    PlanInUse(Vec<ServiceName>),
    /// With the configuration key of the limit.
    #[error("There are {limit} {kind} already, the limit of `{key}` in `[limits]` of the origin's configuration.")]
    TooMany { kind: &'static str, key: &'static str, limit: usize },
}

fn now(current: Option<&String>) -> String {
    current.map_or("it does not exist".to_owned(), |version| format!("it is at version `{version}`"))
}

fn first_of(services: &[ServiceName]) -> String {
    let shown = services.iter().take(10).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match services.len().saturating_sub(10) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl Edit {
    /// The repository whose owner makes the edit. `None`: there is no such service.
    pub(super) fn repository<'a>(&'a self, all: &'a Definitions) -> Option<&'a RepositoryName> {
        match self {
            Edit::PutRepository(document) => Some(&document.name),
            Edit::DeleteRepository { name, .. } => Some(name),
            Edit::PutService(document) => Some(document.home()),
            Edit::DeleteService { name, .. } => Some(all.services.get(name)?.document.repository()),
        }
    }

    /// The service that the edit names.
    pub(super) fn service(&self) -> Option<ServiceName> {
        match self {
            Edit::PutRepository(_) | Edit::DeleteRepository { .. } => None,
            Edit::PutService(document) => Some(document.name.clone()),
            Edit::DeleteService { name, .. } => Some(name.clone()),
        }
    }

    /// The repository from which the edit moves a service. `None`: it moves none.
    ///
    /// # Errors
    /// The edit is refused, whatever the limits are.
    pub(crate) fn moves_from(
        &self,
        precondition: &Precondition,
        all: &Definitions,
    ) -> Result<Option<RepositoryName>, Refusal> {
        self.check(precondition, all)?;
        let Edit::PutService(document) = self else { return Ok(None) };
        let before = all.services.get(&document.name).map(|defined| defined.document.repository());
        Ok(before.filter(|before| *before != document.home()).cloned())
    }

    /// What the edit would do.
    ///
    /// # Errors
    /// The edit is refused, whatever the limits are.
    pub(crate) fn check(&self, precondition: &Precondition, all: &Definitions) -> Result<Outcome, Refusal> {
        let unlimited =
            LimitsConfig { max_repositories: usize::MAX, max_services: usize::MAX, ..LimitsConfig::default() };
        Ok(self.decide(precondition, all, &unlimited)?.outcome)
    }

    /// The services that the edit deletes, and their repository.
    pub(crate) fn deletes(&self, all: &Definitions) -> Option<(RepositoryName, Vec<ServiceName>)> {
        match self {
            Edit::DeleteService { name, .. } => {
                Some((all.services.get(name)?.document.repository().clone(), vec![name.clone()]))
            }
            Edit::DeleteRepository { name, .. } => Some((name.clone(), all.services_of(name).cloned().collect())),
            Edit::PutRepository(_) | Edit::PutService(_) => None,
        }
    }

    /// Decides an edit.
    ///
    /// # Errors
    /// The edit is refused.
    pub(super) fn decide(
        &self,
        precondition: &Precondition,
        all: &Definitions,
        limits: &LimitsConfig,
    ) -> Result<Decision, Refusal> {
        match self {
            Edit::PutRepository(document) => {
                let current = all.repositories.get(&document.name);
                let outcome = put("repository", document.name.as_str(), document, current, precondition)?;
                let kind = current.and_then(|current| Some(current.document.valid()?.kind));
                if let Some(kind) = kind.filter(|kind| *kind != document.kind) {
                    return Err(Refusal::KindChanged(document.name.clone(), kind));
                }
                if outcome == Outcome::Created && all.repositories.size() >= limits.max_repositories {
                    let limit = limits.max_repositories;
                    return Err(Refusal::TooMany { kind: "repositories", key: "max_repositories", limit });
                }
                Ok(Decision::of(outcome, Write::PutRepository(document.clone())))
            }
            Edit::PutService(document) => {
                let current = all.services.get(&document.name);
                if let Some(current) = current.filter(|current| current.by == DefinedBy::Api && precondition.is_new) {
                    let home = current.document.repository();
                    if home != document.home() {
                        return Err(Refusal::ServiceExists(document.name.clone(), home.clone()));
                    }
                }
                let outcome = put("service", document.name.as_str(), document, current, precondition)?;
                if let Some(missing) = document.repositories().find(|name| !all.repositories.contains_key(*name)) {
                    return Err(Refusal::MissingRepository(document.name.clone(), missing.clone()));
                }
                check_parts(document, current, all)?;
                if outcome == Outcome::Created && all.services.size() >= limits.max_services {
                    return Err(Refusal::TooMany { kind: "services", key: "max_services", limit: limits.max_services });
                }
                Ok(Decision::of(outcome, Write::PutService(document.clone())))
            }
            Edit::DeleteRepository { name, cascade } => {
                let current = all.repositories.get(name).ok_or_else(|| Refusal::NoSuchRepository(name.clone()))?;
                changeable("repository", name.as_str(), now_at(Some(current)), precondition)?;
                let services: Vec<ServiceName> = all.services_of(name).cloned().collect();
                let composed = all.composed_of(name).cloned();
                let in_use: Vec<ServiceName> = services.iter().cloned().chain(composed).collect();
                if !in_use.is_empty() && !cascade {
                    return Err(Refusal::HasServices(name.clone(), in_use));
                }
                let mut writes: Vec<Write> = services.into_iter().map(Write::DeleteService).collect();
                writes.push(Write::DeleteRepository(name.clone()));
                Ok(Decision { writes, outcome: Outcome::Deleted })
            }
            Edit::DeleteService { name, cascade } => {
                let current = all.services.get(name).ok_or_else(|| Refusal::NoSuchService(name.clone()))?;
                changeable("service", name.as_str(), now_at(Some(current)), precondition)?;
                let composed: Vec<ServiceName> = all.composed_with(name, false).cloned().collect();
                if !composed.is_empty() && !cascade {
                    return Err(Refusal::IsPart(composed));
                }
                Ok(Decision::of(Outcome::Deleted, Write::DeleteService(name.clone())))
            }
        }
    }
}

/// Whether the parts of a service can be published, and those of which it is a part itself.
fn check_parts(
    document: &ServiceConfig,
    current: Option<&Defined<ServiceConfig>>,
    all: &Definitions,
) -> Result<(), Refusal> {
    let name = &document.name;
    for part in document.part_services() {
        let reason = match all.services.get(part) {
            None => format!("there is no service `{part}`: create it first"),
            Some(defined) if defined.document.has_parts() => {
                format!("service `{part}` has parts itself: name these in place of it")
            }
            Some(_) => continue,
        };
        return Err(Refusal::WrongPart(name.clone(), reason));
    }
    let composed = |first| all.composed_with(name, first).cloned().collect::<Vec<_>>();
    if !document.parts.is_empty() && !composed(false).is_empty() {
        return Err(Refusal::PartWithParts(composed(false)));
    }
    let moves = current.is_some_and(|current| current.document.repository() != document.home());
    if moves && !composed(true).is_empty() {
        return Err(Refusal::PartMoves(composed(true)));
    }
    Ok(())
}

impl Decision {
    fn of(outcome: Outcome, write: Write) -> Self {
        let writes = if outcome == Outcome::Unchanged { Vec::new() } else { vec![write] };
        Self { writes, outcome }
    }
}

fn put<T: serde::Serialize + PartialEq>(
    kind: &'static str,
    name: &str,
    document: &Arc<T>,
    current: Option<&Defined<T>>,
    precondition: &Precondition,
) -> Result<Outcome, Refusal> {
    changeable(kind, name, now_at(current), precondition)?;
    Ok(match current {
        None => Outcome::Created,
        Some(current) if current.document.valid() == Some(document) => Outcome::Unchanged,
        Some(_) => Outcome::Changed,
    })
}

fn now_at<T: serde::Serialize>(current: Option<&Defined<T>>) -> Option<(DefinedBy, String)> {
    current.map(|current| (current.by, version(&current.document)))
}

/// Whether an object may be changed. `current`: its author and its version, if it exists.
pub(crate) fn changeable(
    kind: &'static str,
    name: &str,
    current: Option<(DefinedBy, String)>,
    precondition: &Precondition,
) -> Result<(), Refusal> {
    let name = || name.to_owned();
    if matches!(current, Some((DefinedBy::File, _))) {
        return Err(Refusal::DefinedByFile { kind, name: name() });
    }
    let current = current.map(|(_, version)| version);
    let matches = match &precondition.matches {
        None => true,
        Some(Matches::Any) => current.is_some(),
        Some(Matches::Versions(versions)) => current.as_ref().is_some_and(|current| versions.contains(current)),
    };
    if !matches || (precondition.is_new && current.is_some()) {
        return Err(Refusal::Precondition { kind, name: name(), current });
    }
    if precondition.based_on.is_some() && precondition.based_on != current {
        return Err(Refusal::Outdated { kind, name: name(), current });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Documents;

    fn repository(name: &str) -> RepositoryConfig {
        RepositoryConfig::new(name.parse().unwrap(), format!("https://git.example/{name}.git"))
    }

    fn service(name: &str, repository: &str) -> ServiceConfig {
        ServiceConfig::new(name.parse().unwrap(), repository.parse().unwrap())
    }

    /// The file defines repository `filed` with service `filed`; operators defined `shop` with `one` and `two`.
    fn all() -> Definitions {
        let file = Documents::new(&[repository("filed")], &[service("filed", "filed")]);
        let api = Documents::new(&[repository("shop")], &[service("one", "shop"), service("two", "shop")]);
        Definitions::of(&file, &api)
    }

    fn decide(edit: &Edit, precondition: &Precondition) -> Result<Decision, Refusal> {
        edit.decide(precondition, &all(), &LimitsConfig::default())
    }

    fn delete_service(name: &str) -> Edit {
        Edit::DeleteService { name: name.parse().unwrap(), cascade: false }
    }

    fn delete(name: &str, cascade: bool) -> Edit {
        Edit::DeleteRepository { name: name.parse().unwrap(), cascade }
    }

    #[test]
    fn a_put_creates_changes_or_leaves() {
        let none = Precondition::default();
        let put = Edit::PutService(service("new", "filed").into());
        assert_eq!(decide(&put, &none).unwrap().outcome, Outcome::Created);
        let same = decide(&Edit::PutService(service("one", "shop").into()), &none).unwrap();
        assert_eq!((same.outcome, same.writes.len()), (Outcome::Unchanged, 0));
        let moved = decide(&Edit::PutService(service("one", "filed").into()), &none).unwrap();
        assert_eq!((moved.outcome, moved.writes.len()), (Outcome::Changed, 1));
        let missing = decide(&Edit::PutService(service("new", "nothing").into()), &none);
        assert!(matches!(missing, Err(Refusal::MissingRepository(..))), "{missing:?}");
    }

    #[test]
    fn the_kind_of_a_repository_cannot_be_changed() {
        let helm =
            |name: &str| RepositoryConfig { kind: serde_json::from_str(r#""helm""#).unwrap(), ..repository(name) };
        let put = |name: &str| Edit::PutRepository(helm(name).into());
        assert_eq!(decide(&put("new"), &Precondition::default()).unwrap().outcome, Outcome::Created);
        let refused = decide(&put("shop"), &Precondition::default()).unwrap_err();
        let expected =
            "Repository `shop` is of `kind = \"git\"`, which cannot be changed: delete it, and create it again.";
        assert_eq!(refused.to_string(), expected);
    }

    #[test]
    fn definitions_of_the_file_cannot_be_edited() {
        for edit in [
            Edit::PutRepository(repository("filed").into()),
            Edit::PutService(service("filed", "shop").into()),
            Edit::DeleteService { name: "filed".parse().unwrap(), cascade: true },
            delete("filed", true),
        ] {
            let refused = decide(&edit, &Precondition::default());
            assert!(matches!(refused, Err(Refusal::DefinedByFile { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_repository_is_deleted_with_its_services_or_not_at_all() {
        let Err(Refusal::HasServices(_, services)) = decide(&delete("shop", false), &Precondition::default()) else {
            panic!("it has services");
        };
        assert_eq!(services.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        let writes = decide(&delete("shop", true), &Precondition::default()).unwrap().writes;
        assert_eq!(writes.len(), 3);
        assert_eq!(writes[2], Write::DeleteRepository("shop".parse().unwrap()));
        assert!(matches!(decide(&delete("none", true), &Precondition::default()), Err(Refusal::NoSuchRepository(_))));
    }

    #[test]
    fn a_service_that_is_a_part_has_no_parts_and_is_neither_moved_nor_deleted_by_mistake() {
        let composed = |name: &str, parts: &[&str]| -> ServiceConfig {
            let part = |part: &&str| serde_json::json!({ "service": part, "to": part });
            let parts: Vec<_> = parts.iter().map(part).collect();
            let document = serde_json::json!({ "name": name, "parts": parts });
            let document: ServiceConfig = serde_json::from_value(document).unwrap();
            document.with_home(|_| Some("shop".parse().unwrap()))
        };
        let services = [service("one", "shop"), service("two", "shop"), composed("both", &["one", "two"])];
        let all = Definitions::of(
            &Documents::default(),
            &Documents::new(&[repository("shop"), repository("blog")], &services),
        );
        let decide = |edit: Edit| edit.decide(&Precondition::default(), &all, &LimitsConfig::default());
        let put = |document: ServiceConfig| decide(Edit::PutService(document.into()));
        assert_eq!(put(composed("other", &["two"])).unwrap().outcome, Outcome::Created);
        assert!(put(service("two", "blog")).is_ok(), "it is not the first part");
        for (refused, reason) in [
            (put(composed("other", &["none"])), "there is no service `none`: create it first"),
            (put(composed("other", &["both"])), "service `both` has parts itself"),
            (put(composed("one", &["two"])), "(`both`), and a part has no parts itself"),
            (put(service("one", "blog")), "the first part of other services (`both`)"),
            (decide(delete_service("two")), "a part of other services (`both`)"),
        ] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
        assert!(decide(delete_service("both")).is_ok());
        assert!(decide(Edit::DeleteService { name: "two".parse().unwrap(), cascade: true }).is_ok());
    }

    #[test]
    fn a_lost_update_is_refused() {
        let current = version(&service("one", "shop"));
        let matches = |versions: &[&str]| Precondition {
            matches: Some(Matches::Versions(versions.iter().map(|each| (*each).to_owned()).collect())),
            ..Precondition::default()
        };
        let based_on = |version: &str| Precondition { based_on: Some(version.to_owned()), ..Precondition::default() };
        let is_new = Precondition { is_new: true, ..Precondition::default() };
        let any = Precondition { matches: Some(Matches::Any), ..Precondition::default() };
        let put = |name: &str| Edit::PutService(service(name, "filed").into());
        for (edit, precondition) in [
            (put("one"), matches(&["other", &current])),
            (put("one"), any.clone()),
            (put("one"), based_on(&current)),
            (put("new"), is_new.clone()),
            (delete_service("one"), matches(&[&current])),
        ] {
            assert!(decide(&edit, &precondition).is_ok(), "{edit:?} {precondition:?}");
        }
        for (edit, precondition) in [
            (put("one"), matches(&["other"])),
            (Edit::PutService(service("one", "shop").into()), is_new.clone()),
            (put("new"), any),
            (put("new"), matches(&[&current])),
            (delete_service("one"), matches(&["other"])),
        ] {
            let refused = decide(&edit, &precondition);
            assert!(matches!(refused, Err(Refusal::Precondition { .. })), "{edit:?} {refused:?}");
        }
        let elsewhere = decide(&put("one"), &is_new);
        assert!(matches!(elsewhere, Err(Refusal::ServiceExists(_, home)) if home.as_str() == "shop"));
        for name in ["one", "new"] {
            let refused = decide(&put(name), &based_on("other"));
            assert!(matches!(refused, Err(Refusal::Outdated { .. })), "{refused:?}");
        }
    }

    #[test]
    fn limits_apply_to_new_objects_only() {
        let limits = LimitsConfig { max_repositories: 2, max_services: 3, ..LimitsConfig::default() };
        let decide = |edit: Edit| edit.decide(&Precondition::default(), &all(), &limits);
        for new in [Edit::PutRepository(repository("new").into()), Edit::PutService(service("new", "shop").into())] {
            let refused = decide(new);
            assert!(matches!(refused, Err(Refusal::TooMany { .. })), "{refused:?}");
        }
        assert!(decide(Edit::PutService(service("one", "filed").into())).is_ok());
    }
}

//! The problems of errors of other modules, and those that several requests of operators have, in words for operators. All
//! others are built where they happen.

use std::time::Duration;

use http::StatusCode as S;
use weir_model::ValidationError;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::problem::Problem;
use weir_publish::PublishError;

use crate::catalog::{EditError, Refusal};
use crate::cluster::Unreadable;
use crate::fleet::FleetError;
use crate::versions::VersionError;

/// `Retry-After` of temporary failures.
pub(super) const SOON: Duration = Duration::from_secs(2);

pub(super) fn no_such_repository(name: &RepositoryName) -> Problem {
    let detail = format!("There is no repository `{name}` here.");
    Problem::new(S::NOT_FOUND, "no-such-repository", "No such repository", detail).about("repository", name)
}

pub(super) fn no_such_service(name: &ServiceName) -> Problem {
    let detail = format!("There is no service `{name}` here.");
    Problem::new(S::NOT_FOUND, "no-such-service", "No such service", detail).about("service", name)
}

pub(super) fn invalid_document(kind: &str, name: &impl ToString, errors: &[ValidationError]) -> Problem {
    let problem =
        Problem::new(S::BAD_REQUEST, "invalid-document", "The document is invalid", weir_model::joined(errors));
    problem.about(kind, name).with_errors(serde_json::to_value(errors).unwrap_or_default())
}

/// The content cannot be published: the failed step and the reason.
pub(super) fn not_publishable(service: &ServiceName, step: &str, reason: &str) -> Problem {
    let detail = format!("The upstream's content cannot be published (step: {step}): {reason}");
    Problem::new(S::CONFLICT, "not-publishable", "The content cannot be published", detail).about("service", service)
}

pub(super) fn no_owner(repository: &RepositoryName) -> Problem {
    let detail = format!(
        "No origin owns repository `{repository}` now: it is being handed over, or its owner has just stopped."
    );
    let problem = Problem::new(S::SERVICE_UNAVAILABLE, "no-owner", "No origin owns the repository now", detail);
    problem.about("repository", repository).retry_after(SOON)
}

pub(super) fn busy() -> Problem {
    overloaded("Too many changes, dry runs or forwarded requests are queued, or the origin is stopping.")
}

fn overloaded(detail: impl Into<String>) -> Problem {
    Problem::new(S::SERVICE_UNAVAILABLE, "overloaded", "The origin is overloaded", detail).retry_after(SOON)
}

/// A revision that rows are asked for is in no history, no tag and no mirror.
pub(super) fn unknown_revision(revision: &str) -> Problem {
    let detail = format!(
        "None of the repositories asked about knows `{revision}`: it is in no history, and is neither a tag nor a commit of a \
         mirror. Check it and the names of `service` and `repository`, or ask again when the origin has fetched it."
    );
    Problem::new(S::NOT_FOUND, "unknown-revision", "Nobody knows the revision", detail)
}

/// Several revisions are called so.
pub(super) fn ambiguous(detail: String) -> Problem {
    Problem::new(S::CONFLICT, "ambiguous-revision", "Several revisions are called so", detail)
}

pub(super) fn records_unreadable() -> Problem {
    store_unavailable(
        "The store of records cannot be read now. Check that this origin reaches it (`data_dir`, or the engine of \
         `[cluster]`), and ask again; its log has the reason."
            .to_owned(),
    )
}

fn store_unavailable(detail: String) -> Problem {
    let title = "The store cannot be read just now";
    Problem::new(S::SERVICE_UNAVAILABLE, "store-unavailable", title, detail).retry_after(SOON)
}

pub(super) fn edit_failed(reason: &str) -> Problem {
    origin_failed(format!(
        "The change could not be written: {reason}. It may have been committed: check with `GET` before you try again."
    ))
}

/// A task of the origin panicked, or failed for a reason that the log has.
pub(super) fn failed<E>(_: E) -> Problem {
    origin_failed(
        "The origin failed to do this; its log has the reason. A requested change may have been committed: check with `GET` \
         before you try again."
            .to_owned(),
    )
}

fn origin_failed(detail: String) -> Problem {
    Problem::new(S::SERVICE_UNAVAILABLE, "origin-failed", "The origin failed", detail).retry_after(SOON)
}

/// A change of what is published was not made.
pub(super) fn not_published(error: PublishError) -> Problem {
    match error {
        PublishError::HeldElsewhere { service, by } => Refusal::ServiceExists(service, by).into(),
        PublishError::NotOwner(repository) => no_owner(&repository),
        error => edit_failed(&error.to_string()),
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let detail = refusal.to_string();
        let conflict = |kind, title| Self::new(S::CONFLICT, kind, title, detail.as_str());
        match &refusal {
            Refusal::NoSuchRepository(name) => no_such_repository(name),
            Refusal::NoSuchService(name) => no_such_service(name),
            Refusal::DefinedByFile { kind, name } => {
                conflict("defined-by-file", "It is defined by the configuration file").about(kind, name)
            }
            Refusal::Precondition { kind, name, .. } => {
                let title = "The precondition is not met";
                Self::new(S::PRECONDITION_FAILED, "precondition-failed", title, detail).about(kind, name)
            }
            Refusal::Outdated { kind, name, .. } => {
                conflict("lost-update", "The object was changed meanwhile").about(kind, name)
            }
            Refusal::ServiceExists(name, _) => {
                conflict("service-exists", "Another repository has the service").about("service", name)
            }
            Refusal::KindChanged(name, _) => {
                conflict("kind-changed", "The kind of a repository cannot be changed").about("repository", name)
            }
            Refusal::HasServices(name, _) => {
                conflict("repository-has-services", "The repository has services").about("repository", name)
            }
            Refusal::MissingRepository(name, _) => {
                conflict("repository-missing", "The service's repository does not exist").about("service", name)
            }
            Refusal::WrongPart(name, _) => conflict("wrong-part", "A part cannot be published").about("service", name),
            Refusal::IsPart(_) | Refusal::PartWithParts(_) | Refusal::PartMoves(_) => {
                conflict("service-is-part", "The service is a part of others")
            }
            Refusal::PlanInUse(..) => conflict("rollout-in-use", "Services name the plan"),
            Refusal::TooMany { .. } => limit_reached(detail),
        }
    }
}

fn limit_reached(detail: String) -> Problem {
    Problem::new(S::TOO_MANY_REQUESTS, "limit-reached", "The limit is reached", detail)
}

impl From<EditError> for Problem {
    fn from(error: EditError) -> Self {
        match error {
            EditError::Refused(refusal) => refusal.into(),
            EditError::NotOwner(repository) => no_owner(&repository),
            EditError::Busy => busy(),
            EditError::Failed(reason) => edit_failed(&reason),
        }
    }
}

/// A change of agents, assignments, issuers, freezes or plans was not made.
impl From<FleetError> for Problem {
    fn from(error: FleetError) -> Self {
        let detail = error.to_string();
        match error {
            FleetError::Missing { kind, name } => {
                let (problem, title) = match kind {
                    "agent" => ("no-such-agent", "No such agent"),
                    "issuer" => ("no-such-issuer", "No such issuer"),
                    "rollout" => ("no-such-rollout", "No such plan"),
                    "freeze" => ("no-such-freeze", "No such freeze"),
                    _ => ("no-such-assignment", "No such assignment"),
                };
                Self::new(S::NOT_FOUND, problem, title, detail).about(kind, &name)
            }
            FleetError::Refused(refusal) => refusal.into(),
            FleetError::Conflict { kind, name, .. } => {
                Self::new(S::CONFLICT, "key-in-use", "Another issuer has the key", detail).about(kind, &name)
            }
            FleetError::Full(_) => limit_reached(detail),
            FleetError::Unreadable(_) => store_unavailable(detail),
            FleetError::Unknown(_) => origin_failed(detail),
            FleetError::Contended(_) => overloaded(detail),
        }
    }
}

impl From<Unreadable> for Problem {
    fn from(Unreadable: Unreadable) -> Self {
        records_unreadable()
    }
}

impl From<VersionError> for Problem {
    fn from(error: VersionError) -> Self {
        let detail = format!("{error}.");
        match error {
            VersionError::NoSuchService(name) => no_such_service(&name),
            VersionError::NotRetained(..) => Self::new(S::NOT_FOUND, "no-such-version", "No such version", detail),
            VersionError::Ambiguous { candidates, .. } => {
                ambiguous(detail).with_errors(serde_json::to_value(candidates).unwrap_or_default())
            }
            VersionError::NothingPublished(_) => {
                Self::new(S::CONFLICT, "nothing-published", "Nothing is published", detail)
            }
            VersionError::RolledBack { .. } => {
                Self::new(S::CONFLICT, "already-rolled-back", "The service is rolled back already", detail)
            }
            VersionError::NotStageable { service, .. } => {
                Self::new(S::CONFLICT, "not-stageable", "It cannot be staged or promoted", detail)
                    .about("service", &service)
            }
            VersionError::NothingStaged(service) => {
                Self::new(S::CONFLICT, "nothing-staged", "Nothing is staged", detail).about("service", &service)
            }
            VersionError::GenerationConflict { .. } | VersionError::Withdrawn(_) => {
                Self::new(S::CONFLICT, "lost-update", "The object was changed meanwhile", detail)
            }
            VersionError::Busy(_) => overloaded(detail),
            VersionError::TooLong => {
                Self::new(S::SERVICE_UNAVAILABLE, "too-long", "The comparison takes too long", detail)
            }
            VersionError::Lost(_) => {
                Self::new(S::SERVICE_UNAVAILABLE, "object-unavailable", "The version's bytes are lost", detail)
            }
            VersionError::Panicked => failed(()),
            VersionError::Store(reason) => store_unavailable(format!(
                "The object store cannot be read now: {reason}. Check that this origin reaches it (`[store]`, or the disk of \
                 `data_dir`), and ask again."
            )),
            VersionError::Unreadable(reason) => {
                tracing::error!(reason, "a version cannot be read or written");
                failed(())
            }
        }
    }
}

//! All errors of the operators' listener, and their HTTP responses.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use weir_model::ValidationError;
use weir_protocol::name::{NodeName, RepositoryName, ServiceName};
use weir_protocol::problem::Problem;
use weir_protocol::query::QueryError;
use weir_protocol::route::RouteError;
use weir_runtime::operator_token::NotAdmitted;
use weir_runtime::serve::{Body, RequestBodyError};

use crate::catalog::{EditError, Refusal};
use crate::cluster::Unreadable;
use crate::fleet::FleetError;
use crate::member_client::MemberError;
use crate::publish::PublishError;
use crate::reconcile::Failure;
use crate::versions::VersionError;
use crate::webhook::UnknownProvider;

/// `Retry-After` of temporary failures.
const SOON: Duration = Duration::from_secs(2);

/// Why a request is refused. The text becomes the `detail` of the problem.
#[derive(Debug, thiserror::Error)]
pub(super) enum OperatorError {
    #[error(
        "Connect with a client certificate whose SAN is `spiffe://<trust domain>/operator/<name>`; or set `operator_token_file` in \
         `[operator]` of the origin's configuration to a file with a token of at least 16 bytes, and send it as \
         `Authorization: Bearer <token>`."
    )]
    NoTokenConfigured,
    /// Neither a certificate nor the token was sent.
    #[error(
        "Send the token of `operator_token_file` as `Authorization: Bearer <token>`, or connect with a client certificate \
         whose SAN is `spiffe://<trust domain>/operator/<name>`."
    )]
    Unauthorized,
    #[error("The client certificate has expired: connect with a new one.")]
    CertificateExpired,
    #[error("The file of the operator token cannot be used; the origin's log has the reason.")]
    TokenUnusable,
    #[error("There is no such path.")]
    NoSuchPath,
    #[error("Send webhooks to /v1/webhooks/<provider>/<repository>; {UnknownProvider}.")]
    NoSuchProvider,
    /// With the allowed methods.
    #[error("Use one of these: {0}.")]
    MethodNotAllowed(&'static str),
    #[error("{0}")]
    Malformed(String),
    #[error("The request's body may have at most {0} bytes.")]
    TooLong(usize),
    #[error("The request's body was sent too slowly.")]
    TooSlow,
    #[error("There is no repository `{0}` here.")]
    NoSuchRepository(RepositoryName),
    #[error("There is no service `{0}` here.")]
    NoSuchService(ServiceName),
    /// The kind and the name of what no edge has reported.
    #[error("No origin has heard of {0} `{1}`.")]
    NotObserved(&'static str, String),
    /// An invalid document.
    #[error("{}", weir_model::joined(errors))]
    InvalidDocument { kind: &'static str, name: String, errors: Vec<ValidationError> },
    #[error("{0}")]
    Refused(Refusal),
    /// A change of agents, assignments or issuers was not made.
    #[error("{0}")]
    Fleet(FleetError),
    /// With the last failure, if there was one.
    #[error("{}", not_mirrored(.0, .1.as_ref()))]
    NotMirrored(RepositoryName, Option<Failure>),
    /// The content cannot be published: the failed step and the reason.
    #[error("The upstream's content cannot be published (step: {step}): {reason}")]
    NotPublishable { service: ServiceName, step: &'static str, reason: String },
    #[error("The dry run was stopped after {} s: the folder or the history is large, or the origin is busy.", .0.as_secs())]
    DryRunTooSlow(Duration),
    #[error("{0}.")]
    Version(VersionError),
    /// The same answer for a wrong signature, a missing secret and an unknown repository.
    #[error("The signature is wrong or missing, the repository does not exist, or it has no `webhook_secret_files`.")]
    DeliveryRefused,
    #[error("Too many webhook deliveries are in progress.")]
    TooManyDeliveries,
    #[error("Too many webhook deliveries from this address are in progress: at most {0}.")]
    TooManyDeliveriesOfSource(usize),
    #[error("Too many changes, dry runs or forwarded requests are queued, or the origin is stopping.")]
    Busy,
    #[error("No origin owns repository `{0}` now: it is being handed over, or its owner has just stopped.")]
    NoOwner(RepositoryName),
    /// Nothing was requested that changes anything.
    #[error("Origin `{0}` owns the repository, but {1}. Nothing was changed: try again.")]
    OwnerUnreachable(NodeName, MemberError),
    /// The same for a change.
    #[error(
        "Origin `{0}` owns the repository, but {1}. Whether the change was made is not known: read the object with `GET` (and \
         the history of a service with `GET …/history`) when its owner answers, before you try again."
    )]
    OutcomeUnknown(NodeName, MemberError),
    /// The same for a webhook, which is not in vain: repositories are polled without it.
    #[error(
        "Origin `{0}` owns the repository, but {1}. Whether the delivery was taken is not known: send it again, or wait for \
         the next poll of the repository."
    )]
    DeliveryUnknown(NodeName, MemberError),
    /// What this origin lists and what the owner has are not the same.
    #[error(
        "The configuration file of this origin defines {kind} `{name}` otherwise than that of origin `{owner}`, which owns its \
         repository: give all origins the same file, and send SIGHUP to each. `/status` of the origins names those that differ."
    )]
    ConfigurationsDiffer { kind: &'static str, name: String, owner: NodeName },
    /// It may be defined by the file of another member.
    #[error(
        "There is no {kind} `{name}` here. The configuration files of these members are not this origin's: {}. If one of them \
         defines it, give all origins that file, and send SIGHUP to each.",
        .members.join(", ")
    )]
    NotInThisFile { kind: &'static str, name: String, members: Vec<String> },
    #[error("The records that the origins share cannot be read now; the log of this origin has the reason.")]
    RecordsUnreadable,
    #[error("The change could not be written: {0}. It may have been committed: check with `GET` before you try again.")]
    EditFailed(String),
    #[error(
        "The origin failed to do this; its log has the reason. A requested change may have been committed: check with `GET` before \
         you try again."
    )]
    Failed,
}

impl From<EditError> for OperatorError {
    fn from(error: EditError) -> Self {
        match error {
            EditError::Refused(Refusal::NoSuchRepository(name)) => Self::NoSuchRepository(name),
            EditError::Refused(Refusal::NoSuchService(name)) => Self::NoSuchService(name),
            EditError::Refused(refusal) => Self::Refused(refusal),
            EditError::NotOwner(repository) => Self::NoOwner(repository),
            EditError::Busy => Self::Busy,
            EditError::Failed(reason) => Self::EditFailed(reason),
        }
    }
}

impl From<PublishError> for OperatorError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::HeldElsewhere { service, by } => Self::Refused(Refusal::ServiceExists(service, by)),
            PublishError::NotOwner(repository) => Self::NoOwner(repository),
            error => Self::EditFailed(error.to_string()),
        }
    }
}

impl From<FleetError> for OperatorError {
    fn from(error: FleetError) -> Self {
        match error {
            FleetError::Refused(refusal) => Self::Refused(refusal),
            error => Self::Fleet(error),
        }
    }
}

impl From<Unreadable> for OperatorError {
    fn from(Unreadable: Unreadable) -> Self {
        Self::RecordsUnreadable
    }
}

impl From<NotAdmitted> for OperatorError {
    fn from(not: NotAdmitted) -> Self {
        match not {
            NotAdmitted::Unauthorized => Self::Unauthorized,
            NotAdmitted::Unusable => Self::TokenUnusable,
        }
    }
}

impl From<RouteError> for OperatorError {
    fn from(error: RouteError) -> Self {
        match error {
            RouteError::Unknown => Self::NoSuchPath,
            RouteError::Malformed(detail) => Self::Malformed(detail),
        }
    }
}

impl From<QueryError> for OperatorError {
    fn from(error: QueryError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl From<RequestBodyError> for OperatorError {
    fn from(error: RequestBodyError) -> Self {
        match error {
            RequestBodyError::TooLong(limit) => Self::TooLong(limit),
            RequestBodyError::TooSlow => Self::TooSlow,
            RequestBodyError::BrokeOff => Self::Malformed("the request's body ended early.".to_owned()),
        }
    }
}

impl From<VersionError> for OperatorError {
    fn from(error: VersionError) -> Self {
        match error {
            VersionError::NoSuchService(name) => Self::NoSuchService(name),
            VersionError::Panicked => Self::Failed,
            VersionError::Unreadable(reason) => {
                tracing::error!(reason, "a version cannot be read or written");
                Self::Failed
            }
            error => Self::Version(error),
        }
    }
}

impl OperatorError {
    pub(super) fn into_response(self) -> Response<Body> {
        self.problem().into_response()
    }

    /// The problem on the wire.
    pub(super) fn problem(&self) -> Problem {
        let problem = match self {
            Self::NoSuchPath => return Problem::no_such_path(),
            Self::MethodNotAllowed(methods) => return Problem::method_not_allowed(methods),
            Self::Malformed(detail) => return Problem::malformed(detail.as_str()),
            Self::TooSlow => return Problem::body_too_slow(),
            _ => {
                let (status, kind, title) = self.kind();
                Problem::new(status, kind, title, self.to_string())
            }
        };
        match self {
            Self::Unauthorized => {
                problem.with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"weir\""))
            }
            Self::NoSuchRepository(name) => problem.about("repository", name),
            Self::NotMirrored(name, _) | Self::NoOwner(name) => problem.about("repository", name).retry_after(SOON),
            Self::NotObserved(kind, name) => problem.about(kind, name),
            Self::NoSuchService(name) | Self::NotPublishable { service: name, .. } => problem.about("service", name),
            Self::InvalidDocument { kind, name, errors } => {
                problem.about(kind, name).with_errors(serde_json::to_value(errors).unwrap_or_default())
            }
            Self::ConfigurationsDiffer { kind, name, .. } | Self::NotInThisFile { kind, name, .. } => {
                problem.about(kind, name)
            }
            Self::Refused(refusal) => about(refusal, problem),
            Self::Fleet(FleetError::Missing { kind, name } | FleetError::Conflict { kind, name, .. }) => {
                problem.about(kind, name)
            }
            Self::Fleet(FleetError::Unreadable(_) | FleetError::Unknown(_) | FleetError::Contended(_)) => {
                problem.retry_after(SOON)
            }
            Self::DryRunTooSlow(_)
            | Self::TooManyDeliveries
            | Self::TooManyDeliveriesOfSource(_)
            | Self::Busy
            | Self::OwnerUnreachable(..)
            | Self::OutcomeUnknown(..)
            | Self::DeliveryUnknown(..)
            | Self::RecordsUnreadable
            | Self::Failed
            | Self::EditFailed(_) => problem.retry_after(SOON),
            Self::Version(VersionError::Busy(_)) => problem.retry_after(SOON),
            _ => problem,
        }
    }

    /// The status, type and title of the problem.
    fn kind(&self) -> (StatusCode, &'static str, &'static str) {
        use StatusCode as S;
        match self {
            Self::NoTokenConfigured => (S::FORBIDDEN, "no-operator-token", "No operator token is configured"),
            Self::Unauthorized => (S::UNAUTHORIZED, "unauthorized", "The operator token is missing or wrong"),
            Self::CertificateExpired => (S::UNAUTHORIZED, "unauthorized", "The client certificate has expired"),
            Self::TokenUnusable => {
                (S::SERVICE_UNAVAILABLE, "operator-token-unusable", "The operator token cannot be read")
            }
            Self::NoSuchPath | Self::NoSuchProvider => (S::NOT_FOUND, "no-such-path", "No such path"),
            Self::MethodNotAllowed(_) => {
                (S::METHOD_NOT_ALLOWED, "method-not-allowed", "The method is not allowed here")
            }
            Self::Malformed(_) => (S::BAD_REQUEST, "malformed-request", "The request cannot be read"),
            Self::TooLong(_) => (S::PAYLOAD_TOO_LARGE, "too-large", "The request is too large"),
            Self::TooSlow => (S::REQUEST_TIMEOUT, "too-slow", "The request takes too long"),
            Self::NoSuchRepository(_) => (S::NOT_FOUND, "no-such-repository", "No such repository"),
            Self::NoSuchService(_) => (S::NOT_FOUND, "no-such-service", "No such service"),
            Self::NotObserved("agent", _) => (S::NOT_FOUND, "no-such-agent", "No such agent"),
            Self::NotObserved(..) => (S::NOT_FOUND, "no-such-edge", "No such edge"),
            Self::NotInThisFile { kind: "service", .. } => (S::NOT_FOUND, "no-such-service", "No such service"),
            Self::NotInThisFile { .. } => (S::NOT_FOUND, "no-such-repository", "No such repository"),
            Self::InvalidDocument { .. } => (S::BAD_REQUEST, "invalid-document", "The document is invalid"),
            Self::Refused(refusal) => refused(refusal),
            Self::Fleet(error) => fleet(error),
            Self::NotMirrored(..) => (S::SERVICE_UNAVAILABLE, "not-mirrored", "The repository is not mirrored yet"),
            Self::NotPublishable { .. } => (S::CONFLICT, "not-publishable", "The content cannot be published"),
            Self::DryRunTooSlow(_) => (S::SERVICE_UNAVAILABLE, "dry-run-too-slow", "The dry run took too long"),
            Self::Version(error) => version(error),
            Self::DeliveryRefused => (S::UNAUTHORIZED, "webhook-refused", "The delivery is refused"),
            Self::TooManyDeliveries | Self::TooManyDeliveriesOfSource(_) => {
                (S::TOO_MANY_REQUESTS, "overloaded", "Too many deliveries at once")
            }
            Self::Busy => (S::SERVICE_UNAVAILABLE, "overloaded", "The origin is overloaded"),
            Self::NoOwner(_) => (S::SERVICE_UNAVAILABLE, "no-owner", "No origin owns the repository now"),
            Self::ConfigurationsDiffer { .. } => {
                (S::CONFLICT, "configurations-differ", "The members' configuration files differ")
            }
            Self::OwnerUnreachable(..) | Self::OutcomeUnknown(..) | Self::DeliveryUnknown(..) => {
                (S::SERVICE_UNAVAILABLE, "owner-unreachable", "The repository's owner cannot be reached")
            }
            Self::RecordsUnreadable => {
                (S::SERVICE_UNAVAILABLE, "store-unavailable", "The store cannot be read just now")
            }
            Self::EditFailed(_) | Self::Failed => (S::SERVICE_UNAVAILABLE, "origin-failed", "The origin failed"),
        }
    }
}

fn not_mirrored(repository: &RepositoryName, failure: Option<&Failure>) -> String {
    match failure {
        None => format!("The first clone of repository `{repository}` is under way; its `status` says how far it is."),
        Some(Failure { step, reason, .. }) => {
            format!("Repository `{repository}` could not be cloned yet (step: {step}): {reason}. The origin retries.")
        }
    }
}

/// The status, type and title of a refused edit.
fn refused(refusal: &Refusal) -> (StatusCode, &'static str, &'static str) {
    use StatusCode as S;
    match refusal {
        Refusal::NoSuchRepository(_) => (S::NOT_FOUND, "no-such-repository", "No such repository"),
        Refusal::NoSuchService(_) => (S::NOT_FOUND, "no-such-service", "No such service"),
        Refusal::DefinedByFile { .. } => (S::CONFLICT, "defined-by-file", "It is defined by the configuration file"),
        Refusal::Precondition { .. } => (S::PRECONDITION_FAILED, "precondition-failed", "The precondition is not met"),
        Refusal::Outdated { .. } => (S::CONFLICT, "lost-update", "The object was changed meanwhile"),
        Refusal::ServiceExists(..) => (S::CONFLICT, "service-exists", "Another repository has the service"),
        Refusal::KindChanged(..) => (S::CONFLICT, "kind-changed", "The kind of a repository cannot be changed"),
        Refusal::HasServices(..) => (S::CONFLICT, "repository-has-services", "The repository has services"),
        Refusal::MissingRepository(..) => {
            (S::CONFLICT, "repository-missing", "The service's repository does not exist")
        }
        Refusal::TooMany { .. } => (S::TOO_MANY_REQUESTS, "limit-reached", "The limit is reached"),
    }
}

/// The status, type and title of a change of agents, assignments or issuers that was not made.
fn fleet(error: &FleetError) -> (StatusCode, &'static str, &'static str) {
    use StatusCode as S;
    match error {
        FleetError::Missing { kind: "agent", .. } => (S::NOT_FOUND, "no-such-agent", "No such agent"),
        FleetError::Missing { kind: "issuer", .. } => (S::NOT_FOUND, "no-such-issuer", "No such issuer"),
        FleetError::Missing { .. } => (S::NOT_FOUND, "no-such-assignment", "No such assignment"),
        FleetError::Refused(refusal) => refused(refusal),
        FleetError::Conflict { .. } => (S::CONFLICT, "key-in-use", "Another issuer has the key"),
        FleetError::Full(_) => (S::TOO_MANY_REQUESTS, "limit-reached", "The limit is reached"),
        FleetError::Unreadable(_) => (S::SERVICE_UNAVAILABLE, "store-unavailable", "The store cannot be read just now"),
        FleetError::Unknown(_) => (S::SERVICE_UNAVAILABLE, "origin-failed", "The origin failed"),
        FleetError::Contended(_) => (S::SERVICE_UNAVAILABLE, "overloaded", "The origin is overloaded"),
    }
}

fn about(refusal: &Refusal, problem: Problem) -> Problem {
    match refusal {
        Refusal::DefinedByFile { kind, name }
        | Refusal::Precondition { kind, name, .. }
        | Refusal::Outdated { kind, name, .. } => problem.about(kind, name),
        Refusal::NoSuchRepository(name) | Refusal::HasServices(name, _) | Refusal::KindChanged(name, _) => {
            problem.about("repository", name)
        }
        Refusal::NoSuchService(name) | Refusal::MissingRepository(name, _) | Refusal::ServiceExists(name, _) => {
            problem.about("service", name)
        }
        Refusal::TooMany { .. } => problem,
    }
}

/// The status, type and title of a failed version change.
fn version(error: &VersionError) -> (StatusCode, &'static str, &'static str) {
    use StatusCode as S;
    match error {
        VersionError::NotRetained(..) => (S::NOT_FOUND, "no-such-version", "No such version"),
        VersionError::NothingPublished(_) => (S::CONFLICT, "nothing-published", "Nothing is published"),
        VersionError::GenerationConflict { .. } | VersionError::Withdrawn(_) => {
            (S::CONFLICT, "lost-update", "The object was changed meanwhile")
        }
        VersionError::Busy(_) => (S::SERVICE_UNAVAILABLE, "overloaded", "The origin is overloaded"),
        VersionError::TooLong => (S::SERVICE_UNAVAILABLE, "too-long", "The comparison takes too long"),
        VersionError::Lost(_) => (S::SERVICE_UNAVAILABLE, "object-unavailable", "The version's bytes are lost"),
        VersionError::NoSuchService(_) | VersionError::Unreadable(_) | VersionError::Panicked => {
            (S::SERVICE_UNAVAILABLE, "origin-failed", "The origin failed")
        }
    }
}

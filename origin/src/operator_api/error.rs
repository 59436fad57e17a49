//! What an operator is told when something is refused. All problems of this listener are made here.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use weir_shared::name::{RepositoryName, ServiceName};
use weir_shared::problem::Problem;
use weir_shared::process::operator_token::NotAdmitted;
use weir_shared::process::serve::{Body, RequestBodyError};
use weir_shared::query::QueryError;
use weir_shared::route::RouteError;

use crate::catalog::{EditError, Refusal};
use crate::config::{self, Fault};
use crate::repository_agent::Failure;
use crate::versions::VersionError;
use crate::webhook::UnknownProvider;

/// When to try again what could not be done just now.
const SOON: Duration = Duration::from_secs(2);

/// Why an operator's request is refused.
#[derive(Debug)]
pub(super) enum OperatorError {
    /// Nobody may without a certificate, because no token is configured.
    NoTokenConfigured,
    /// Neither a certificate nor the token.
    Unauthorized,
    /// The token's file cannot be used any more.
    TokenUnusable,
    NoSuchPath,
    /// Of webhooks.
    NoSuchProvider,
    /// With those that are allowed.
    MethodNotAllowed(&'static str),
    Malformed(String),
    /// A body of more than so many bytes.
    TooLong(usize),
    /// The body takes too long to come.
    TooSlow,
    NoSuchRepository(RepositoryName),
    NoSuchService(ServiceName),
    /// A document that cannot be taken.
    Faults {
        kind: &'static str,
        name: String,
        faults: Vec<Fault>,
    },
    Refused(Refusal),
    /// The repository has not been cloned yet; with the failure of the last try, if there was one.
    NotMirrored(RepositoryName, Option<Failure>),
    /// A dry run comes to nothing: where, and why.
    NotPublishable {
        service: ServiceName,
        step: &'static str,
        reason: String,
    },
    /// A dry run took longer than this.
    DryRunTooSlow(Duration),
    Version(VersionError),
    /// The signature of a webhook's delivery is wrong, or nobody can tell.
    DeliveryRefused,
    /// As many deliveries are being read as may be.
    TooManyDeliveries,
    /// Too many changes wait already.
    Busy,
    /// What operators define could not be written: why.
    EditFailed(String),
    /// The origin itself failed.
    Failed,
}

impl From<EditError> for OperatorError {
    fn from(error: EditError) -> Self {
        match error {
            EditError::Refused(Refusal::NoSuchRepository(name)) => Self::NoSuchRepository(name),
            EditError::Refused(Refusal::NoSuchService(name)) => Self::NoSuchService(name),
            EditError::Refused(refusal) => Self::Refused(refusal),
            EditError::Busy => Self::Busy,
            EditError::Failed(reason) => Self::EditFailed(reason),
        }
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
            RequestBodyError::BrokeOff => Self::Malformed("the request's body broke off.".to_owned()),
        }
    }
}

impl From<VersionError> for OperatorError {
    fn from(error: VersionError) -> Self {
        match error {
            VersionError::NoSuchService(name) => Self::NoSuchService(name),
            VersionError::Fault => Self::Failed,
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
        let extra = match &self {
            Self::MethodNotAllowed(methods) => Some((header::ALLOW, HeaderValue::from_static(methods))),
            Self::Unauthorized => Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"weir\""))),
            _ => None,
        };
        let mut response = self.problem().into_response();
        response.headers_mut().extend(extra);
        response
    }

    /// What it comes to on the wire.
    pub(super) fn problem(&self) -> Problem {
        match self {
            Self::NoTokenConfigured => Problem::new(
                StatusCode::FORBIDDEN,
                "no-operator-token",
                "No operator token is configured",
                "Connect with a client certificate whose SAN is `spiffe://weir/operator/<name>`; or set \
                 `operator_token_file` in `[operator]` of the origin's configuration to a file with a token of at least \
                 16 bytes, and send it as `Authorization: Bearer <token>`.",
            ),
            Self::Unauthorized => Problem::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "The operator token is missing or wrong",
                "Send the token of `operator_token_file` as `Authorization: Bearer <token>`, or connect with a client \
                 certificate whose SAN is `spiffe://weir/operator/<name>`.",
            ),
            Self::TokenUnusable => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "operator-token-unusable",
                "The operator token cannot be read",
                "The file of the operator token cannot be used any more; the origin's log says why.",
            ),
            Self::NoSuchPath => Problem::no_such_path(),
            Self::NoSuchProvider => Problem::new(
                StatusCode::NOT_FOUND,
                "no-such-path",
                "No such path",
                format!("Webhooks come to /v1/webhooks/<provider>/<repository>; {UnknownProvider}."),
            ),
            Self::MethodNotAllowed(_) => Problem::method_not_allowed(),
            Self::Malformed(detail) => Problem::malformed(detail.as_str()),
            Self::TooLong(limit) => Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too-large",
                "The request is too large",
                format!("The request's body may have {limit} bytes."),
            ),
            Self::TooSlow => Problem::body_too_slow(),
            Self::NoSuchRepository(name) => Problem::new(
                StatusCode::NOT_FOUND,
                "no-such-repository",
                "No such repository",
                format!("There is no repository `{name}` here."),
            )
            .about("repository", name),
            Self::Faults { kind, name, faults } => {
                let detail = config::told(faults);
                let errors = serde_json::to_value(faults).unwrap_or_default();
                let title = "The document cannot be taken";
                Problem::new(StatusCode::BAD_REQUEST, "invalid-document", title, detail)
                    .about(kind, name)
                    .with_errors(errors)
            }
            Self::Refused(refusal) => refused(refusal),
            Self::NotMirrored(repository, failure) => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "not-mirrored",
                "The repository is not mirrored yet",
                match failure {
                    None => format!(
                        "The first clone of repository `{repository}` is under way; its `status` says how far it is."
                    ),
                    Some(Failure { step, reason, .. }) => format!(
                        "Repository `{repository}` could not be cloned yet (step: {step}): {reason}. It is tried again."
                    ),
                },
            )
            .about("repository", repository)
            .retry_after(SOON),
            Self::NotPublishable { service, step, reason } => Problem::new(
                StatusCode::CONFLICT,
                "not-publishable",
                "Nothing could be published",
                format!("The upstream's content could not be published (step: {step}): {reason}"),
            )
            .about("service", service),
            Self::DryRunTooSlow(deadline) => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "dry-run-too-slow",
                "The dry run took too long",
                format!(
                    "It was stopped after {} s: the folder or the history is large, or the origin busy.",
                    deadline.as_secs()
                ),
            )
            .retry_after(SOON),
            Self::Version(error) => version(error),
            // One answer for a wrong signature, for no secret and for no repository.
            Self::DeliveryRefused => Problem::new(
                StatusCode::UNAUTHORIZED,
                "webhook-refused",
                "The delivery is refused",
                "Its signature is wrong or missing, there is no such repository, or that has no `webhook_secret_files`.",
            ),
            Self::TooManyDeliveries => Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "overloaded",
                "Too many deliveries at once",
                "As many deliveries of webhooks are being read as may be at a time.",
            )
            .retry_after(SOON),
            Self::Busy => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "The origin has too much to do",
                "Too many changes or dry runs wait already, or the origin is about to end.",
            )
            .retry_after(SOON),
            Self::Failed => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "origin-failed",
                "The origin failed",
                "The origin itself cannot do this just now; its log says why. A change that was asked for may have been \
                 made all the same: look at what `GET` says before you try again.",
            )
            .retry_after(SOON),
            Self::EditFailed(reason) => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "origin-failed",
                "The origin failed",
                format!(
                    "The change could not be written: {reason}. It may have landed all the same: look at what `GET` says \
                     before you try again."
                ),
            )
            .retry_after(SOON),
            Self::NoSuchService(name) => Problem::new(
                StatusCode::NOT_FOUND,
                "no-such-service",
                "No such service",
                format!("There is no service `{name}` here."),
            )
            .about("service", name),
        }
    }
}

/// Why an edit is not made.
fn refused(refusal: &Refusal) -> Problem {
    let now = |current: &Option<String>| match current {
        Some(version) => format!("it is at version `{version}`"),
        None => "it does not exist".to_owned(),
    };
    match refusal {
        Refusal::NoSuchRepository(name) => OperatorError::NoSuchRepository(name.clone()).problem(),
        Refusal::NoSuchService(name) => OperatorError::NoSuchService(name.clone()).problem(),
        Refusal::OfTheFile { kind, name } => Problem::new(
            StatusCode::CONFLICT,
            "defined-by-file",
            "It stands in the configuration file",
            format!("{kind} `{name}` stands in the origin's configuration file: change it there, and send SIGHUP."),
        )
        .about(kind, name),
        Refusal::Precondition { kind, name, current } => Problem::new(
            StatusCode::PRECONDITION_FAILED,
            "precondition-failed",
            "The precondition is not met",
            format!("{kind} `{name}` is not what the request expects: {}. Read it again.", now(current)),
        )
        .about(kind, name),
        Refusal::Lost { kind, name, current } => Problem::new(
            StatusCode::CONFLICT,
            "lost-update",
            "A newer write was first",
            format!(
                "the document was made from a version of {kind} `{name}` that is not the current one: {}. Read it again, \
                 or leave `version` out to overwrite it.",
                now(current)
            ),
        )
        .about(kind, name),
        Refusal::HasServices(repository, services) => {
            let shown = services.iter().take(10).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let more = services.len().saturating_sub(10);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            Problem::new(
                StatusCode::CONFLICT,
                "repository-has-services",
                "The repository has services",
                format!("Delete its services first ({shown}{more}), or ask for `?cascade=true`."),
            )
            .about("repository", repository)
        }
        Refusal::MissingRepository(service, repository) => Problem::new(
            StatusCode::CONFLICT,
            "repository-missing",
            "The service's repository does not exist",
            format!("`repository`: there is no repository `{repository}`: put that first."),
        )
        .about("service", service),
        Refusal::TooMany { kind, key, limit } => Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "limit-reached",
            "There are as many as there may be",
            format!("There are {limit} {kind}, which is `{key}` in `[limits]` of the origin's configuration."),
        ),
    }
}

/// Why nothing can be done with a version.
fn version(error: &VersionError) -> Problem {
    let (status, kind, title) = match error {
        VersionError::NotRetained(..) => (StatusCode::NOT_FOUND, "no-such-version", "No such version"),
        VersionError::NothingPublished(_) => (StatusCode::CONFLICT, "nothing-published", "Nothing is published"),
        VersionError::GenerationConflict { .. } | VersionError::Withdrawn(_) => {
            (StatusCode::CONFLICT, "lost-update", "A newer write was first")
        }
        VersionError::Busy(_) => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "The origin has too much to do"),
        VersionError::TooLong => (StatusCode::SERVICE_UNAVAILABLE, "too-long", "The comparison takes too long"),
        VersionError::Lost(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, "object-unavailable", "The version's bytes are lost")
        }
        VersionError::NoSuchService(_) | VersionError::Unreadable(_) | VersionError::Fault => {
            (StatusCode::SERVICE_UNAVAILABLE, "origin-failed", "The origin failed")
        }
    };
    let problem = Problem::new(status, kind, title, format!("{error}."));
    if matches!(error, VersionError::Busy(_)) { problem.retry_after(SOON) } else { problem }
}

//! Every way in which an edge's request fails, and its form in HTTP: decided here alone.

use std::time::{Duration, SystemTime};

use http::{HeaderValue, Response, StatusCode, header};
use weir_shared::digest::{ObjectDigest, TarballDigest};
use weir_shared::name::{RepositoryName, ServiceName};
use weir_shared::problem::Problem;
use weir_shared::process::serve::Body;

use crate::repository_agent::{Health, Phase, RepositoryState};
use crate::service::Condition;

/// When to ask again for what is being made just now.
const SOON: Duration = Duration::from_secs(2);

/// When to ask again for what an upstream stands in the way of, unless its next poll is known to be later.
const LATER: Duration = Duration::from_secs(10);

/// The longest `Retry-After`.
const LATEST: Duration = Duration::from_secs(120);

/// Why a request is not answered with what it asked for.
#[derive(Debug)]
pub(super) enum Failure {
    /// The certificate is not an edge's.
    NotAnEdge,
    NoSuchPath,
    MethodNotAllowed,
    Malformed(String),
    NoSuchService(ServiceName),
    NoSuchVersion(ServiceName, TarballDigest),
    /// It is not stored, and no version refers to it.
    NoSuchObject(RepositoryName, ObjectDigest),
    /// It is not defined, and what operators defined may not all be known: why.
    DefinitionsMissing(ServiceName, &'static str),
    /// Nothing was ever published; the state of things tells why.
    NotPublished(ServiceName, Unpublished),
    /// A version refers to it, and it cannot be read just now.
    ObjectUnavailable(ObjectDigest),
    /// Too many objects are being sent already.
    Overloaded,
    /// The store cannot be read just now.
    Unreadable,
    /// As many event streams as may be are open.
    TooManyStreams,
}

/// Why nothing was ever published of a service.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unpublished {
    /// It is being made.
    Coming { detail: String },
    /// The upstream, or what it holds, stands in the way.
    Failing { timeout: bool, detail: String, retry_after: Duration },
}

impl Unpublished {
    /// Reads it from the repository's state and the service's condition.
    pub(super) fn of(repository: Option<&RepositoryState>, condition: &Condition, now: SystemTime) -> Self {
        let retry_after = repository
            .and_then(|repository| repository.next_poll)
            .and_then(|next| next.duration_since(now).ok())
            .map_or(LATER, |wait| wait.clamp(Duration::from_secs(1), LATEST));
        if let Condition::Unhealthy { step, reason, .. } = condition {
            let detail = format!("the upstream's content cannot be published (step: {step}): {reason}");
            return Self::Failing { timeout: false, detail, retry_after };
        }
        // One ref that cannot be followed is no reason for the others.
        let is_polled = |repository: &&RepositoryState| repository.mirrored && repository.consecutive_failures == 0;
        if let Some(Health::Unhealthy { failure, .. }) =
            repository.filter(|repository| !is_polled(repository)).map(|repository| &repository.health)
        {
            let detail = format!("the upstream could not be polled (step: {}): {}", failure.step, failure.reason);
            return Self::Failing { timeout: failure.timeout, detail, retry_after };
        }
        let detail = match repository.map_or(&Phase::Idle, |repository| &repository.phase) {
            Phase::Cloning { progress } => {
                let of = progress.total.map_or(String::new(), |total| format!(" of {total}"));
                format!(
                    "the repository is cloned for the first time: {}, {}{of}, {} bytes received",
                    progress.phase, progress.done, progress.bytes
                )
            }
            Phase::Building { service } => format!("the tarball of `{service}` is being built"),
            _ if repository.is_some_and(|repository| repository.lfs.is_some()) => {
                "LFS objects are being fetched".to_owned()
            }
            Phase::Polling { .. } | Phase::Overdue => "the repository is being polled".to_owned(),
            Phase::Examining => "the mirror of the repository gave trouble, and is looked at".to_owned(),
            Phase::Idle => "the repository is about to be polled".to_owned(),
        };
        Self::Coming { detail }
    }
}

impl Failure {
    fn problem(&self) -> Problem {
        match self {
            Self::NotAnEdge => Problem::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "The certificate opens nothing here",
                "Connect with a client certificate whose SAN is `spiffe://weir/edge/<name>`.",
            ),
            Self::NoSuchPath => Problem::no_such_path(),
            Self::MethodNotAllowed => Problem::method_not_allowed(),
            Self::Malformed(detail) => Problem::malformed(detail.as_str()),
            Self::NoSuchService(service) => Problem::no_such_service(service),
            Self::NoSuchVersion(service, digest) => Problem::new(
                StatusCode::NOT_FOUND,
                "no-such-version",
                "No such version",
                format!("`{service}` has no version {digest}, or it is not kept any more."),
            )
            .about("service", service),
            Self::NoSuchObject(repository, object) => Problem::new(
                StatusCode::NOT_FOUND,
                "no-such-object",
                "No such object",
                format!("No version of repository `{repository}` refers to this object (any more): request the descriptor again."),
            )
            .about("object", object),
            Self::DefinitionsMissing(service, why) => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "definitions-missing",
                "The origin may not know all that operators defined",
                format!("`{service}` is not defined here, but {why}."),
            )
            .about("service", service)
            .retry_after(LATER),
            Self::NotPublished(service, Unpublished::Coming { detail }) => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "not-published-yet",
                "The service is not published yet",
                format!("`{service}` is not published yet: {detail}."),
            )
            .about("service", service)
            .retry_after(SOON),
            Self::NotPublished(service, Unpublished::Failing { timeout, detail, retry_after }) => Problem::new(
                if *timeout { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::BAD_GATEWAY },
                if *timeout { "upstream-timeout" } else { "upstream-failure" },
                "The service was never published and its upstream fails",
                format!("`{service}` was never published: {detail}."),
            )
            .about("service", service)
            .retry_after(*retry_after),
            Self::ObjectUnavailable(object) => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "object-unavailable",
                "The object cannot be read just now",
                "The object is missing or damaged and is being rebuilt, or the store does not answer.",
            )
            .about("object", object)
            .retry_after(SOON),
            Self::Overloaded => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "The origin has too much to do",
                "Too many objects are being sent or looked for at this moment.",
            )
            .retry_after(SOON),
            Self::Unreadable => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unavailable",
                "The store cannot be read just now",
                "What is stored of this service cannot be read; the origin's log says why.",
            )
            .retry_after(LATER),
            Self::TooManyStreams => Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too-many-streams",
                "Too many event streams are open",
                "The origin serves as many event streams as its limit allows: poll, and try again later.",
            )
            .retry_after(LATER),
        }
    }

    /// The answer.
    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = self.problem().into_response();
        if matches!(self, Self::MethodNotAllowed) {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        response
    }
}

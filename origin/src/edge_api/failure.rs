//! Every way in which an edge's request fails, and its form in HTTP: decided here alone.

use std::time::{Duration, SystemTime};

use http::{HeaderValue, Response, StatusCode, header};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::problem::Problem;
use weir_runtime::serve::Body;

use crate::reconcile::{Health, Phase, RepositoryState};
use crate::service::Condition;

/// When to ask again for what is being made just now.
const SOON: Duration = Duration::from_secs(2);

/// When to ask again for what an upstream stands in the way of, unless its next poll is known to be later.
const LATER: Duration = Duration::from_secs(10);

/// The longest `Retry-After`.
const LATEST: Duration = Duration::from_secs(120);

/// Why a request is not answered with what it asked for: its text is what the problem says in detail.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("Connect with a client certificate whose SAN is `spiffe://weir/edge/<name>`.")]
    NotAnEdge,
    #[error("This path leads nowhere.")]
    NoSuchPath,
    #[error("Use GET or HEAD.")]
    MethodNotAllowed,
    #[error("{0}")]
    Malformed(String),
    #[error("There is no service `{0}` here.")]
    NoSuchService(ServiceName),
    #[error("`{0}` has no version {1}, or it is not kept any more.")]
    NoSuchVersion(ServiceName, TarballDigest),
    /// It is not stored, and no version refers to it.
    #[error("No version of repository `{0}` refers to this object: request the descriptor again.")]
    NoSuchObject(RepositoryName, ObjectDigest),
    /// It is not defined, and what operators defined may not all be known: why.
    #[error("`{0}` is not defined here, but {1}.")]
    DefinitionsMissing(ServiceName, &'static str),
    /// Nothing was ever published; the state of things tells why.
    #[error("`{0}` {1}.")]
    NotPublished(ServiceName, Unpublished),
    /// A version refers to it, and it cannot be read just now.
    #[error("The object is missing or damaged and is being rebuilt, or the store does not answer.")]
    ObjectUnavailable(ObjectDigest),
    #[error("Too many objects are being sent or looked for at this moment.")]
    Overloaded,
    #[error("What is stored of this service cannot be read; the origin's log says why.")]
    Unreadable,
    #[error("The origin serves as many event streams as its limit allows: poll, and try again later.")]
    TooManyStreams,
}

/// Why nothing was ever published of a service.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unpublished {
    /// It is being made.
    #[error("is not published yet: {detail}")]
    Coming { detail: String },
    /// The upstream, or what it holds, stands in the way.
    #[error("was never published: {detail}")]
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
            _ if repository.is_some_and(|repository| !repository.building.is_empty()) => {
                "tarballs of the repository are being built".to_owned()
            }
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
        use StatusCode as S;
        let (status, kind, title) = match self {
            Self::NoSuchPath => return Problem::no_such_path(),
            Self::MethodNotAllowed => return Problem::method_not_allowed(),
            Self::Malformed(detail) => return Problem::malformed(detail.as_str()),
            Self::NoSuchService(service) => return Problem::no_such_service(service),
            Self::NotAnEdge => (S::UNAUTHORIZED, "unauthorized", "The certificate opens nothing here"),
            Self::NoSuchVersion(..) => (S::NOT_FOUND, "no-such-version", "No such version"),
            Self::NoSuchObject(..) => (S::NOT_FOUND, "no-such-object", "No such object"),
            Self::DefinitionsMissing(..) => {
                let title = "The origin may not know all that operators defined";
                (S::SERVICE_UNAVAILABLE, "definitions-missing", title)
            }
            Self::NotPublished(_, Unpublished::Coming { .. }) => {
                (S::SERVICE_UNAVAILABLE, "not-published-yet", "The service is not published yet")
            }
            Self::NotPublished(_, Unpublished::Failing { timeout, .. }) => {
                let title = "The service was never published and its upstream fails";
                let timed_out = (S::GATEWAY_TIMEOUT, "upstream-timeout", title);
                if *timeout { timed_out } else { (S::BAD_GATEWAY, "upstream-failure", title) }
            }
            Self::ObjectUnavailable(_) => {
                (S::SERVICE_UNAVAILABLE, "object-unavailable", "The object cannot be read just now")
            }
            Self::Overloaded => (S::SERVICE_UNAVAILABLE, "overloaded", "The origin has too much to do"),
            Self::Unreadable => (S::SERVICE_UNAVAILABLE, "store-unavailable", "The store cannot be read just now"),
            Self::TooManyStreams => (S::TOO_MANY_REQUESTS, "too-many-streams", "Too many event streams are open"),
        };
        let problem = Problem::new(status, kind, title, self.to_string());
        match self {
            Self::NoSuchVersion(service, _) => problem.about("service", service),
            Self::NoSuchObject(_, object) => problem.about("object", object),
            Self::ObjectUnavailable(object) => problem.about("object", object).retry_after(SOON),
            Self::DefinitionsMissing(service, _) => problem.about("service", service).retry_after(LATER),
            Self::NotPublished(service, unpublished) => {
                let retry_after = match unpublished {
                    Unpublished::Coming { .. } => SOON,
                    Unpublished::Failing { retry_after, .. } => *retry_after,
                };
                problem.about("service", service).retry_after(retry_after)
            }
            Self::Overloaded => problem.retry_after(SOON),
            Self::Unreadable | Self::TooManyStreams => problem.retry_after(LATER),
            _ => problem,
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

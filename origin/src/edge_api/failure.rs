//! All errors of the edge API, and their HTTP responses.

use std::time::{Duration, SystemTime};

use http::{Response, StatusCode};
use weir_observed::Rejected;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{NodeName, RepositoryName, ServiceName};
use weir_protocol::problem::Problem;
use weir_runtime::serve::Body;
use weir_source::Condition;

use crate::reconcile::{Health, Phase, RepositoryState};

/// `Retry-After` while content is being built.
const SOON: Duration = Duration::from_secs(2);

/// `Retry-After` while an upstream fails, unless its next poll is known to be later.
const LATER: Duration = Duration::from_secs(10);

/// The longest `Retry-After`.
const LATEST: Duration = Duration::from_secs(120);

/// Why a request failed. The text becomes the `detail` of the problem.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("Connect with a client certificate whose SAN is `spiffe://<trust domain>/edge/<name>`.")]
    NotAnEdge,
    #[error("The client certificate has expired: connect with a new one.")]
    CertificateExpired,
    #[error("There is no such path.")]
    NoSuchPath,
    #[error("Use GET or HEAD.")]
    MethodNotAllowed,
    #[error("Use POST.")]
    UsePost,
    #[error("{0}")]
    Malformed(String),
    #[error("There is no service `{0}` here.")]
    NoSuchService(ServiceName),
    #[error("Service `{0}` has no retained version {1}.")]
    NoSuchVersion(ServiceName, TarballDigest),
    /// It is not stored, and no version references it.
    #[error("No version of repository `{0}` references this object: request the descriptor again.")]
    NoSuchObject(RepositoryName, ObjectDigest),
    /// The service is not defined, but some definitions may be missing: the reason.
    #[error("`{0}` is not defined here, but {1}.")]
    DefinitionsMissing(ServiceName, &'static str),
    /// The service was never published.
    #[error("`{0}` {1}.")]
    NotPublished(ServiceName, Unpublished),
    /// A version references the object, but it cannot be read now.
    #[error("The object is missing or damaged and is being rebuilt, or the store does not answer.")]
    ObjectUnavailable(ObjectDigest),
    #[error("Too many objects are being sent or looked up.")]
    Overloaded,
    #[error("The stored state of this service cannot be read; the origin's log has the reason.")]
    Unreadable,
    #[error("The message names edge `{0}`, but the certificate is that of edge `{1}`.")]
    NotThisEdge(NodeName, NodeName),
    #[error("{0}.")]
    Observed(Rejected),
    #[error("The origin has reached its limit of event streams: poll, and retry later.")]
    TooManyStreams,
}

/// Why a service was never published.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unpublished {
    /// Its first publication is in progress.
    #[error("is not published yet: {detail}")]
    Coming { detail: String },
    /// The upstream fails, or its content cannot be published.
    #[error("was never published: {detail}")]
    Failing { timeout: bool, detail: String, retry_after: Duration },
}

impl Unpublished {
    /// Derives the reason from the repository's state and the service's condition.
    pub(super) fn of(repository: Option<&RepositoryState>, condition: &Condition, now: SystemTime) -> Self {
        let retry_after = repository
            .and_then(|repository| repository.next_poll)
            .and_then(|next| next.duration_since(now).ok())
            .map_or(LATER, |wait| wait.clamp(Duration::from_secs(1), LATEST));
        if let Condition::Unhealthy { step, reason, .. } = condition {
            let detail = format!("the upstream's content cannot be published (step: {step}): {reason}");
            return Self::Failing { timeout: false, detail, retry_after };
        }
        // One ref that cannot be followed does not count as a failure of the others.
        let is_polled = |repository: &&RepositoryState| repository.mirrored && repository.consecutive_failures == 0;
        if let Some(Health::Unhealthy { failure, .. }) =
            repository.filter(|repository| !is_polled(repository)).map(|repository| &repository.health)
        {
            let detail = format!("the upstream could not be polled (step: {}): {}", failure.step, failure.reason);
            return Self::Failing { timeout: failure.timeout, detail, retry_after };
        }
        let detail = match repository.map_or(&Phase::Idle, |repository| &repository.phase) {
            Phase::Fetching { progress } => {
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
            Phase::Examining => "the mirror of the repository failed and is being examined".to_owned(),
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
            Self::MethodNotAllowed => return Problem::method_not_allowed("GET, HEAD"),
            Self::UsePost => return Problem::method_not_allowed("POST"),
            Self::Malformed(detail) => return Problem::malformed(detail.as_str()),
            Self::NoSuchService(service) => return Problem::no_such_service(service),
            Self::NotAnEdge | Self::CertificateExpired => {
                (S::UNAUTHORIZED, "unauthorized", "The certificate opens nothing here")
            }
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
            Self::Overloaded => (S::SERVICE_UNAVAILABLE, "overloaded", "The origin is overloaded"),
            Self::Unreadable => (S::SERVICE_UNAVAILABLE, "store-unavailable", "The store cannot be read just now"),
            Self::NotThisEdge(..) => (S::FORBIDDEN, "not-this-edge", "The certificate is that of another edge"),
            Self::Observed(Rejected::Resync) => (S::CONFLICT, "resync", "What came before is missing"),
            Self::Observed(Rejected::Edges) => (S::TOO_MANY_REQUESTS, "limit-reached", "The limit is reached"),
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
            Self::Observed(Rejected::Edges) => problem.retry_after(LATEST),
            Self::Unreadable | Self::TooManyStreams => problem.retry_after(LATER),
            _ => problem,
        }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        self.problem().into_response()
    }
}

//! What an agent is told when it does not get what it asked for. All problems of this listener are made here.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use weir_shared::digest::TarballDigest;
use weir_shared::name::ServiceName;
use weir_shared::problem::Problem;
use weir_shared::process::serve::Body;
use weir_shared::route::RouteError;

use crate::access::Refusal;
use crate::cache::FetchError;
use crate::catalog::LookupError;
use crate::origin_client::OriginError;

/// When to try again, where nobody knows better.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Why an agent does not get what it asked for.
#[derive(Debug)]
pub(super) enum ApiError {
    Unauthorized(Refusal),
    NoSuchPath,
    Malformed(String),
    MethodNotAllowed,
    NotAcceptable(ServiceName),
    PreconditionFailed,
    Unsatisfiable { length: u64 },
    NoSuchVersion(ServiceName, TarballDigest),
    Lookup(ServiceName, LookupError),
    Body(ServiceName, FetchError),
    NoSlot(ServiceName),
}

impl From<RouteError> for ApiError {
    fn from(error: RouteError) -> Self {
        match error {
            RouteError::Unknown => ApiError::NoSuchPath,
            RouteError::Malformed(reason) => ApiError::Malformed(reason),
        }
    }
}

impl ApiError {
    pub(super) fn into_response(self) -> Response<Body> {
        let extra = match &self {
            ApiError::Unauthorized(refusal) => Some((header::WWW_AUTHENTICATE, challenge(*refusal))),
            ApiError::MethodNotAllowed => Some((header::ALLOW, HeaderValue::from_static("GET, HEAD"))),
            ApiError::Unsatisfiable { length } => Some((
                header::CONTENT_RANGE,
                HeaderValue::try_from(format!("bytes */{length}")).expect("digits are visible ASCII"),
            )),
            _ => None,
        };
        let mut response = self.problem().into_response();
        response.headers_mut().extend(extra);
        response
    }

    fn problem(self) -> Problem {
        match self {
            ApiError::Unauthorized(refusal) => {
                Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "The reader is not known", refusal.reason())
            }
            ApiError::NoSuchPath => Problem::no_such_path(),
            ApiError::Malformed(reason) => Problem::malformed(reason),
            ApiError::MethodNotAllowed => Problem::method_not_allowed(),
            ApiError::NotAcceptable(service) => Problem::new(
                StatusCode::NOT_ACCEPTABLE,
                "not-acceptable",
                "No acceptable content coding is left",
                "The tarball can be had as `zstd`, `gzip` or `identity`; `Accept-Encoding` excludes them all.",
            )
            .about("service", &service),
            ApiError::PreconditionFailed => Problem::new(
                StatusCode::PRECONDITION_FAILED,
                "precondition-failed",
                "The precondition does not hold",
                "`If-Match` names another version or representation than the current one.",
            ),
            ApiError::Unsatisfiable { length } => Problem::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "range-not-satisfiable",
                "The range cannot be met",
                format!("The range begins beyond the end: the representation has {length} bytes."),
            ),
            ApiError::NoSuchVersion(service, digest) => Problem::new(
                StatusCode::NOT_FOUND,
                "no-such-version",
                "No such version",
                format!("`{service}` has no version {digest} (any more), or the service may not be seen."),
            )
            .about("tarball", &digest),
            ApiError::Lookup(service, error) => lookup(&service, error),
            ApiError::Body(service, error) => body(&service, &error),
            ApiError::NoSlot(service) => overloaded(
                "Too many tarballs are being decoded or made gzip; one that is accepted as `zstd` needs neither here.",
            )
            .about("service", &service)
            .retry_after(RETRY_AFTER),
        }
    }
}

/// What is asked for (RFC 6750 section 3): whoever showed nothing is told no error.
fn challenge(refusal: Refusal) -> HeaderValue {
    match refusal {
        Refusal::NoCredential => HeaderValue::from_static("Bearer realm=\"weir\""),
        bad => {
            let reason = bad.reason();
            let text = format!("Bearer realm=\"weir\", error=\"invalid_token\", error_description=\"{reason}\"");
            HeaderValue::try_from(text).expect("reasons are visible ASCII")
        }
    }
}

fn lookup(service: &ServiceName, error: LookupError) -> Problem {
    let problem = match error {
        LookupError::Absent => return Problem::no_such_service(service),
        LookupError::Origin(OriginError::Refused { status, detail, retry_after }) => {
            return passed_on(status, detail, retry_after).about("service", service);
        }
        LookupError::Origin(error @ OriginError::TimedOut { .. }) => Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            "origin-timeout",
            "The origin does not answer",
            format!("Nothing is held of `{service}` here, and {error}."),
        ),
        LookupError::Origin(error) => Problem::new(
            StatusCode::BAD_GATEWAY,
            "origin-failed",
            "The origin cannot be asked",
            format!("Nothing is held of `{service}` here, and {error}."),
        ),
        LookupError::TooSlow => Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            "origin-timeout",
            "The origin does not answer",
            format!("Nothing is held of `{service}` here, and the origin has not answered yet."),
        ),
        LookupError::Expired(reason) => Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            "too-stale",
            "What is held is too old",
            format!("What is held of `{service}` is older than this edge may serve, and {reason}."),
        ),
        LookupError::Regressed => Problem::new(
            StatusCode::BAD_GATEWAY,
            "generation-regressed",
            "The origin went back",
            format!("Nothing is held of `{service}` here, and {}.", LookupError::Regressed.reason()),
        ),
        LookupError::Full => overloaded("Too many services are being asked for at their origins."),
        LookupError::Internal => internal(),
    };
    problem.about("service", service).retry_after(RETRY_AFTER)
}

fn body(service: &ServiceName, error: &FetchError) -> Problem {
    let problem = match error {
        FetchError::Overloaded => overloaded("Too many tarballs are being fetched from origins, or waited for."),
        FetchError::Abandoned => internal(),
        FetchError::NotFound
        | FetchError::Origin(_)
        | FetchError::Broken(_)
        | FetchError::Slow
        | FetchError::Corrupt
        | FetchError::BadManifest(_)
        | FetchError::TimedOut => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "tarball-unavailable",
            "The tarball cannot be had just now",
            format!("The version of `{service}` is known, but its bytes cannot be had just now: {error}."),
        ),
    };
    problem.about("service", service).retry_after(RETRY_AFTER)
}

/// An origin's own problem, with its meaning kept.
fn passed_on(status: u16, detail: String, retry_after: Option<Duration>) -> Problem {
    let (status, kind, title) = match status {
        502 => (StatusCode::BAD_GATEWAY, "upstream-failed", "The upstream fails"),
        503 => (StatusCode::SERVICE_UNAVAILABLE, "not-available-yet", "Not available yet"),
        _ => (StatusCode::GATEWAY_TIMEOUT, "upstream-timeout", "The upstream does not answer"),
    };
    Problem::new(status, kind, title, detail).retry_after(retry_after.unwrap_or(RETRY_AFTER))
}

fn overloaded(detail: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "The edge is overloaded", detail)
}

fn internal() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "edge-failed",
        "The edge failed",
        "The edge itself cannot answer just now; its log says why.",
    )
}

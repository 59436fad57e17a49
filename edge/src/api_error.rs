//! The errors of requests of agents and of other edges, and their problem documents.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use weir_cache::{FillError, OriginError};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::problem::Problem;
use weir_protocol::route::RouteError;
use weir_runtime::serve::{Body, RequestBodyError};

use crate::access::Refusal;
use crate::catalog::LookupError;

/// `Retry-After` where nothing better is known.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// `Retry-After` where memory of the edge is used up.
const ROOM_RETRY_AFTER: Duration = Duration::from_secs(60);

/// A kind of problem: status, name, title.
type Kind = (StatusCode, &'static str, &'static str);

const UNAUTHORIZED: Kind = (StatusCode::UNAUTHORIZED, "unauthorized", "The client is not authenticated");
const NOT_ACCEPTABLE: Kind = (StatusCode::NOT_ACCEPTABLE, "not-acceptable", "No acceptable content coding is left");
const PRECONDITION: Kind = (StatusCode::PRECONDITION_FAILED, "precondition-failed", "The precondition does not hold");
const RANGE: Kind = (StatusCode::RANGE_NOT_SATISFIABLE, "range-not-satisfiable", "The range cannot be satisfied");
const NO_VERSION: Kind = (StatusCode::NOT_FOUND, "no-such-version", "No such version");
const ORIGIN_TIMEOUT: Kind = (StatusCode::GATEWAY_TIMEOUT, "origin-timeout", "The origin does not answer");
const ORIGIN_FAILED: Kind = (StatusCode::BAD_GATEWAY, "origin-failed", "The request to the origin failed");
const TOO_STALE: Kind = (StatusCode::GATEWAY_TIMEOUT, "too-stale", "The cached version is too old");
const REGRESSED: Kind = (StatusCode::BAD_GATEWAY, "generation-regressed", "The origin offers an older version");
const UNAVAILABLE: Kind =
    (StatusCode::SERVICE_UNAVAILABLE, "tarball-unavailable", "The tarball is temporarily unavailable");
const UPSTREAM_FAILED: Kind = (StatusCode::BAD_GATEWAY, "upstream-failed", "The upstream failed");
const NOT_YET: Kind = (StatusCode::SERVICE_UNAVAILABLE, "not-available-yet", "Not available yet");
const UPSTREAM_TIMEOUT: Kind = (StatusCode::GATEWAY_TIMEOUT, "upstream-timeout", "The upstream does not answer");
const OVERLOADED: Kind = (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "The edge is overloaded");
const NO_SELF: Kind = (StatusCode::NOT_FOUND, "no-self", "The client is nobody that this edge can name");
const TOO_MANY_SERVICES: Kind = (StatusCode::UNPROCESSABLE_ENTITY, "too-many-services", "Too many services");
const TOO_MANY_STREAMS: Kind = (StatusCode::TOO_MANY_REQUESTS, "too-many-streams", "Too many event streams are open");
const TOO_MANY_POLLS: Kind = (StatusCode::TOO_MANY_REQUESTS, "too-many-polls", "Too many polls of this agent");
const TOO_MANY_MESSAGES: Kind = (StatusCode::TOO_MANY_REQUESTS, "too-many-messages", "Too many messages of this agent");
const RESYNC: Kind = (StatusCode::CONFLICT, "resync", "An earlier message is missing");
const NO_ROOM: Kind = (StatusCode::TOO_MANY_REQUESTS, "no-room", "There is no room for what the agent runs");
const TOO_LONG: Kind = (StatusCode::PAYLOAD_TOO_LARGE, "too-long", "The request is too long");
const EDGE_FAILED: Kind = (StatusCode::SERVICE_UNAVAILABLE, "edge-failed", "The edge failed");

fn problem((status, kind, title): Kind, detail: impl Into<String>) -> Problem {
    Problem::new(status, kind, title, detail)
}

/// Why an agent's request failed.
#[derive(Debug)]
pub(crate) enum ApiError {
    Unauthorized(Refusal),
    NoSuchPath,
    Malformed(String),
    /// The methods that are.
    MethodNotAllowed(&'static str),
    NotAcceptable(ServiceName),
    PreconditionFailed,
    Unsatisfiable {
        length: u64,
    },
    NoSuchVersion(ServiceName, TarballDigest),
    /// The body of the version is one frame, which has no manifest.
    OneFrame(ServiceName),
    Lookup(ServiceName, LookupError),
    Body(ServiceName, FillError),
    NoSlot(ServiceName),
    /// A request of an agent about itself, by nobody who can be named.
    NoSelf,
    /// No origin has said yet which services are assigned.
    NoAssignmentsYet,
    TooManyServices(String),
    TooManyStreams,
    /// Of agents with one name.
    TooManyPolls,
    /// About what agents with one name run.
    TooManyMessages,
    /// What an agent says that it runs does not follow what the edge has.
    ObservedResync,
    NoRoomForObserved,
    Request(RequestBodyError),
}

impl From<RequestBodyError> for ApiError {
    fn from(error: RequestBodyError) -> Self {
        ApiError::Request(error)
    }
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
    pub(crate) fn into_response(self) -> Response<Body> {
        Problem::from(self).into_response()
    }
}

impl From<ApiError> for Problem {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Unauthorized(refusal) => {
                problem(UNAUTHORIZED, refusal.reason()).with_header(header::WWW_AUTHENTICATE, challenge(refusal))
            }
            ApiError::NoSuchPath => Problem::no_such_path(),
            ApiError::Malformed(reason) => Problem::malformed(reason),
            ApiError::MethodNotAllowed(methods) => Problem::method_not_allowed(methods),
            ApiError::NotAcceptable(service) => {
                let detail = "The tarball is available as `zstd`, `gzip` and `identity`, and `Accept-Encoding` excludes them all.";
                problem(NOT_ACCEPTABLE, detail).about("service", &service)
            }
            ApiError::PreconditionFailed => {
                problem(PRECONDITION, "`If-Match` does not match the current version in this representation.")
            }
            ApiError::Unsatisfiable { length } => {
                let range = HeaderValue::try_from(format!("bytes */{length}")).expect("digits are visible ASCII");
                problem(RANGE, format!("The range begins beyond the end: the representation has {length} bytes."))
                    .with_header(header::CONTENT_RANGE, range)
            }
            ApiError::NoSuchVersion(service, digest) => {
                let detail = format!("`{service}` has no version {digest}, or this client may not read the service.");
                problem(NO_VERSION, detail).about("tarball", &digest)
            }
            ApiError::OneFrame(service) => {
                problem(NO_VERSION, "The body of this version is one frame, which has no manifest: request the body.")
                    .about("service", &service)
            }
            ApiError::Lookup(service, error) => lookup(&service, error),
            ApiError::Body(service, error) => {
                body(&service, &error).about("service", &service).retry_after(RETRY_AFTER)
            }
            ApiError::NoSelf => problem(
                NO_SELF,
                "This endpoint describes the agent that sends the request: send the token or the client certificate of an agent.",
            ),
            ApiError::NoAssignmentsYet => {
                problem(NOT_YET, "This edge has not received the lists of services and assignments from its origins yet.")
                    .retry_after(RETRY_AFTER)
            }
            ApiError::TooManyServices(reason) => {
                problem(TOO_MANY_SERVICES, format!("{reason}: narrow the assignments, or the patterns in `services`."))
            }
            error @ (ApiError::TooManyStreams | ApiError::TooManyPolls | ApiError::TooManyMessages) => too_many(&error),
            ApiError::ObservedResync => {
                problem(RESYNC, "This edge lacks an earlier message of this agent: send all rows, with `full`.")
            }
            ApiError::NoRoomForObserved => problem(
                NO_ROOM,
                "The edge has no memory left for the services of agents (`observed_bytes`), or this agent has too many: send the same again later.",
            )
            .retry_after(ROOM_RETRY_AFTER),
            ApiError::Request(RequestBodyError::TooLong(limit)) => {
                problem(TOO_LONG, format!("The request's body has more than {limit} bytes."))
            }
            ApiError::Request(error) => Problem::malformed(format!("{error}.")),
            ApiError::NoSlot(service) => {
                let detail = "Too many tarballs are being decoded or made gzip; one that is accepted as `zstd` needs \
                              neither here.";
                problem(OVERLOADED, detail).about("service", &service).retry_after(RETRY_AFTER)
            }
        }
    }
}

/// What agents may do again later.
fn too_many(error: &ApiError) -> Problem {
    let (kind, detail) = match error {
        ApiError::TooManyPolls => (
            TOO_MANY_POLLS,
            "Other batch polls of agents with this name are in progress: await their answers, and give each cluster a name of its own.",
        ),
        ApiError::TooManyMessages => (
            TOO_MANY_MESSAGES,
            "Agents with this name send more messages than one a second about what they run: send changes together, and give each cluster its own name.",
        ),
        _ => (TOO_MANY_STREAMS, "The edge has reached its limit of event streams: poll, and retry later."),
    };
    problem(kind, detail).retry_after(RETRY_AFTER)
}

/// The challenge (RFC 6750 section 3): without a credential there is no error code.
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
    let nothing = |why: &dyn std::fmt::Display| format!("No version of `{service}` is cached, and {why}.");
    let problem = match error {
        LookupError::Absent => return Problem::no_such_service(service),
        LookupError::Origin(OriginError::Refused { status, detail, retry_after, .. }) => {
            let retry_after = retry_after.unwrap_or(RETRY_AFTER);
            return forwarded(status, detail).about("service", service).retry_after(retry_after);
        }
        LookupError::Origin(error @ OriginError::TimedOut { .. }) => problem(ORIGIN_TIMEOUT, nothing(&error)),
        LookupError::Origin(error) => problem(ORIGIN_FAILED, nothing(&error)),
        LookupError::TooSlow => problem(ORIGIN_TIMEOUT, nothing(&"the origin has not answered yet")),
        LookupError::Expired(reason) => problem(
            TOO_STALE,
            format!("The cached version of `{service}` is older than `stale_if_error` allows, and {reason}."),
        ),
        LookupError::Regressed => problem(REGRESSED, nothing(&LookupError::Regressed.reason())),
        LookupError::Overloaded => problem(OVERLOADED, "Too many queries to origins are in flight."),
        LookupError::Internal => internal(),
    };
    problem.about("service", service).retry_after(RETRY_AFTER)
}

fn body(service: &ServiceName, error: &FillError) -> Problem {
    match error {
        FillError::Overloaded => problem(OVERLOADED, "Too many fills from origins are in flight."),
        FillError::Abandoned => internal(),
        FillError::NotFound
        | FillError::Origin(_)
        | FillError::Broken(_)
        | FillError::Slow
        | FillError::Corrupt
        | FillError::BadManifest(_)
        | FillError::TimedOut => {
            problem(UNAVAILABLE, format!("The tarball of `{service}` cannot be fetched: {error}."))
        }
    }
}

/// The problem of an origin, with its meaning preserved.
fn forwarded(status: u16, detail: String) -> Problem {
    let kind = match status {
        502 => UPSTREAM_FAILED,
        503 => NOT_YET,
        _ => UPSTREAM_TIMEOUT,
    };
    problem(kind, detail)
}

fn internal() -> Problem {
    problem(EDGE_FAILED, "The edge failed; its log has the reason.")
}

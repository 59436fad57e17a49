//! Error responses: `application/problem+json` (RFC 9457).
//!
//! A problem never contains a stack trace, a file path, a credential or an upstream's URL.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde::{Deserialize, Serialize};

use crate::query::QueryError;
use crate::route::RouteError;

/// The object that a problem is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemObject {
    /// `service`, `repository`, `tarball`, …
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// An error response. Small, so that it can be the error of a function.
#[derive(Debug, Clone)]
pub struct Problem(Box<Content>);

#[derive(Debug, Clone)]
struct Content {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
    object: Option<ProblemObject>,
    errors: Option<serde_json::Value>,
    retry_after: Option<Duration>,
    header: Option<(HeaderName, HeaderValue)>,
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: &'a Option<ProblemObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: &'a Option<serde_json::Value>,
}

impl Problem {
    /// A problem of a kind (the last part of `urn:weir:problem:<kind>`), with a detail that says what to do.
    pub fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self(Box::new(Content {
            status,
            kind,
            title,
            detail: detail.into(),
            object: None,
            errors: None,
            retry_after: None,
            header: None,
        }))
    }

    /// Names the object that it is about.
    pub fn about(mut self, kind: &str, name: &impl ToString) -> Self {
        self.0.object = Some(ProblemObject { kind: kind.to_owned(), name: name.to_string() });
        self
    }

    /// Adds a list of errors, one entry each.
    pub fn with_errors(mut self, errors: serde_json::Value) -> Self {
        self.0.errors = Some(errors);
        self
    }

    /// Adds `Retry-After`: whole seconds, at least one.
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// Adds a header to the response; the last one counts.
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.header = Some((name, value));
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// The kind: the last part of its type.
    pub fn kind(&self) -> &'static str {
        self.0.kind
    }

    /// The detail.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// `400`: the request is malformed.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed-request", "The request cannot be read", detail)
    }

    /// `404`: no resource has this path.
    pub fn no_such_path() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "no-such-path",
            "No such path",
            "No resource has this path; see the list of requests in the protocol.",
        )
    }

    /// `404`: the access list has no such shard, or no longer.
    pub fn no_such_shard(digest: &crate::digest::ObjectDigest) -> Self {
        let detail = "The access list has no such shard now: its next event names those that it has.";
        Self::new(StatusCode::NOT_FOUND, "no-such-shard", "No such shard", detail).about("shard", digest)
    }

    /// `404`: the service does not exist, or the client may not see it. Both look alike.
    pub fn no_such_service(service: &crate::name::ServiceName) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "no-such-service",
            "No such service",
            format!("There is no service `{service}`, or this client may not read it."),
        )
        .about("service", service)
    }

    /// `408`: the request body did not arrive in time.
    pub fn body_too_slow() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "too-slow",
            "The request took too long",
            "The request's body did not come in time.",
        )
    }

    /// `405`: the path has these methods.
    pub fn method_not_allowed(methods: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "The method is not allowed here",
            "Use one of the methods in `Allow`.",
        )
        .with_header(header::ALLOW, HeaderValue::from_str(methods).expect("methods are visible ASCII"))
    }

    /// The response with its body. For HEAD the server drops the body.
    pub fn into_response<B: From<Vec<u8>>>(self) -> Response<B> {
        let retryable = self.0.retry_after.is_some() || matches!(self.0.status.as_u16(), 429 | 502 | 503 | 504);
        let document = Document {
            r#type: format!("urn:weir:problem:{}", self.0.kind),
            title: self.0.title,
            status: self.0.status.as_u16(),
            detail: &self.0.detail,
            retryable,
            object: &self.0.object,
            errors: &self.0.errors,
        };
        let body = serde_json::to_vec(&document).expect("a problem is plain data");
        let mut response = Response::new(B::from(body));
        *response.status_mut() = self.0.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.0.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        headers.extend(self.0.header);
        response
    }
}

impl From<RouteError> for Problem {
    fn from(error: RouteError) -> Self {
        match error {
            RouteError::Unknown => Self::no_such_path(),
            RouteError::Malformed(detail) => Self::malformed(detail),
        }
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        Self::malformed(error.to_string())
    }
}

//! Errors in the form of the distribution specification.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use serde_json::json;
use weir_protocol::name::ServiceName;
use weir_protocol::problem::Problem;
use weir_runtime::serve::Body;

use super::repository;
use crate::api_error::ApiError;
use crate::catalog::LookupError;

/// Why a request failed.
#[derive(Debug)]
pub(super) struct OciError(Box<Content>);

#[derive(Debug)]
struct Content {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// Besides those that all errors have.
    headers: HeaderMap,
}

impl OciError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Content { status, code, message: message.into(), headers: HeaderMap::new() }))
    }

    fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    pub(super) fn no_such_path() -> Self {
        let message = "No resource has this path: repositories are named `weir/<service>`, and are not listed.";
        Self::not_found("NAME_UNKNOWN", message)
    }

    /// The service does not exist, or the client may not see it. Both look alike.
    pub(super) fn no_such_repository(service: &ServiceName) -> Self {
        let message = format!("There is no service `{service}`, or this client may not read it.");
        Self::not_found("NAME_UNKNOWN", message)
    }

    pub(super) fn no_such_manifest(service: &ServiceName, reference: &str) -> Self {
        let message =
            format!("`{}` has no manifest `{reference}`; `latest` is the version in force.", repository(service));
        Self::not_found("MANIFEST_UNKNOWN", message)
    }

    pub(super) fn no_such_blob(service: &ServiceName) -> Self {
        let message = format!(
            "No version of `{}` that can be pulled has this blob: pull its manifest again.",
            repository(service)
        );
        Self::not_found("BLOB_UNKNOWN", message)
    }

    /// The version has no OCI form.
    pub(super) fn no_form(service: &ServiceName) -> Self {
        let message = format!(
            "The current version of `{service}` cannot be pulled as an artifact: set `oci = true` for the service at its \
             origin, and wait until it has polled."
        );
        Self::not_found("MANIFEST_UNKNOWN", message)
    }

    /// The staged version has no OCI form.
    pub(super) fn no_staged_form(service: &ServiceName) -> Self {
        let message = format!(
            "The staged version of `{service}` cannot be pulled as an artifact, because it was published without \
             `oci = true`: stage another one, or pull `latest`, the version in force."
        );
        Self::not_found("MANIFEST_UNKNOWN", message)
    }

    pub(super) fn malformed_digest() -> Self {
        let message = "A digest is `sha256:` and 64 lower-case hexadecimal digits.";
        Self::new(StatusCode::BAD_REQUEST, "DIGEST_INVALID", message)
    }

    pub(super) fn malformed_page(reason: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "PAGINATION_NUMBER_INVALID", reason)
    }

    pub(super) fn read_only() -> Self {
        let message = "Artifacts cannot be pushed to or deleted from an edge: it serves what its origins publish.";
        let error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", message);
        error.with_header(header::ALLOW, HeaderValue::from_static("GET, HEAD"))
    }

    pub(super) fn lookup(service: &ServiceName, error: LookupError) -> Self {
        match error {
            LookupError::Absent => Self::no_such_repository(service),
            error => ApiError::Lookup(service.clone(), error).into(),
        }
    }

    /// No version that is known has it, and the origin cannot be asked for others.
    pub(super) fn not_known(service: &ServiceName, error: LookupError) -> Self {
        let message = format!("No cached version of `{}` has this, and {}.", repository(service), error.reason());
        let mut failed = Self::lookup(service, error);
        failed.0.message = message;
        failed
    }

    /// Adds a header, also beside another one of this name.
    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.append(name, value);
        self
    }

    #[cfg(test)]
    pub(super) fn code(&self) -> &'static str {
        self.0.code
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let Content { status, code, message, headers } = *self.0;
        let document = json!({ "errors": [{ "code": code, "message": message }] });
        let mut response = super::json("application/json", document.to_string());
        *response.status_mut() = status;
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response.headers_mut().extend(headers);
        response
    }
}

/// What fails as for agents: with its status, its detail and what clients may do about it.
impl From<ApiError> for OciError {
    fn from(error: ApiError) -> Self {
        let problem = Problem::from(error);
        let code = match problem.status() {
            StatusCode::UNAUTHORIZED => "UNAUTHORIZED",
            StatusCode::TOO_MANY_REQUESTS => "TOOMANYREQUESTS",
            StatusCode::RANGE_NOT_SATISFIABLE => "RANGE_INVALID",
            status if status.is_server_error() => "UNAVAILABLE",
            _ => "UNSUPPORTED",
        };
        let mut failed = Self::new(problem.status(), code, problem.detail());
        let headers = problem.into_response::<Vec<u8>>().into_parts().0.headers;
        failed.0.headers = [header::RETRY_AFTER, header::CONTENT_RANGE]
            .into_iter()
            .filter_map(|name| Some((name.clone(), headers.get(name)?.clone())))
            .collect();
        failed
    }
}

//! The errors of the operator API, and their problem documents.

use http::{HeaderValue, Response, StatusCode, header};
use weir_protocol::name::ServiceName;
use weir_protocol::problem::Problem;
use weir_protocol::query::QueryError;
use weir_runtime::operator_token::NotAdmitted;
use weir_runtime::serve::{Body, RequestBodyError};

use super::MAX_PURGE_REQUEST_BYTES;

#[derive(Debug)]
pub(super) enum OperatorError {
    /// No operator token is configured.
    NoTokenConfigured,
    /// The token is missing or wrong.
    Unauthorized,
    /// The token file cannot be read.
    TokenUnusable,
    MethodNotAllowed(&'static str),
    Malformed(String),
    TooLong,
    /// Nothing is known here of this service.
    UnknownService(ServiceName),
    /// No agent of this name has said here what it runs.
    UnknownAgent(String),
    /// The request body did not arrive in time.
    TooSlow,
    /// A bug in the edge.
    Failed,
}

impl From<QueryError> for OperatorError {
    fn from(error: QueryError) -> Self {
        OperatorError::Malformed(error.to_string())
    }
}

impl From<NotAdmitted> for OperatorError {
    fn from(not: NotAdmitted) -> Self {
        match not {
            NotAdmitted::Unauthorized => OperatorError::Unauthorized,
            NotAdmitted::Unusable => OperatorError::TokenUnusable,
        }
    }
}

impl From<RequestBodyError> for OperatorError {
    fn from(error: RequestBodyError) -> Self {
        match error {
            RequestBodyError::TooLong(_) => OperatorError::TooLong,
            RequestBodyError::TooSlow => OperatorError::TooSlow,
            RequestBodyError::BrokeOff => OperatorError::Malformed("the request's body was cut off.".to_owned()),
        }
    }
}

impl OperatorError {
    pub(super) fn into_response(self) -> Response<Body> {
        let extra = match &self {
            OperatorError::MethodNotAllowed(methods) => Some((header::ALLOW, HeaderValue::from_static(methods))),
            OperatorError::Unauthorized => Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            _ => None,
        };
        let mut response = self.problem().into_response();
        response.headers_mut().extend(extra);
        response
    }

    fn problem(self) -> Problem {
        match self {
            OperatorError::NoTokenConfigured => Problem::new(
                StatusCode::FORBIDDEN,
                "no-operator-token",
                "No operator token is configured",
                "Set `operator_token_file` in `[admin]` of the edge's configuration to a file with a token of at least \
                 16 bytes, and send it as `Authorization: Bearer <token>`.",
            ),
            OperatorError::Unauthorized => Problem::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "The operator token is missing or wrong",
                "Send the token of `operator_token_file` as `Authorization: Bearer <token>`.",
            ),
            OperatorError::TokenUnusable => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "operator-token-unusable",
                "The operator token cannot be read",
                "The file of the operator token cannot be read; the edge's log has the reason.",
            ),
            OperatorError::MethodNotAllowed(_) => Problem::method_not_allowed(),
            OperatorError::Malformed(detail) => Problem::malformed(detail),
            OperatorError::TooLong => Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too-large",
                "The request is too large",
                format!("A purge request has at most {MAX_PURGE_REQUEST_BYTES} bytes."),
            ),
            OperatorError::UnknownService(service) => Problem::new(
                StatusCode::NOT_FOUND,
                "no-such-service",
                "No such service",
                format!(
                    "This edge knows nothing of `{service}`: check the name. `/status` lists the services that it has; the \
                     first request for another one queries the origins."
                ),
            )
            .about("service", &service),
            OperatorError::UnknownAgent(agent) => Problem::new(
                StatusCode::NOT_FOUND,
                "no-such-agent",
                "No such agent",
                format!(
                    "No agent `{agent}` has told this edge what it runs within a day: check the name, or ask another edge."
                ),
            )
            .about("agent", &agent),
            OperatorError::TooSlow => Problem::body_too_slow(),
            OperatorError::Failed => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "edge-failed",
                "The edge failed",
                "The edge failed; its log has the reason.",
            ),
        }
    }
}

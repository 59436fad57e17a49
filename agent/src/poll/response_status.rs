//! What the status of an edge's response means for a poll.

use std::path::Path;

use http::StatusCode;

use super::error::PollError;
use crate::edge_client::{Edge, Response};
use crate::fetch::{problem_detail, retry_after};

/// The response, if its status is a success or `304`.
pub(super) async fn succeeded(edge: &Edge, response: Response) -> Result<Response, PollError> {
    if response.status == StatusCode::UNAUTHORIZED {
        let detail = problem_detail(&response.headers, response.body).await;
        return Err(PollError::Unauthorized { detail, advice: advice(edge.token_file()) });
    }
    if !matches!(response.status, StatusCode::OK | StatusCode::NOT_MODIFIED) {
        return Err(PollError::Status {
            status: response.status,
            retry_after: retry_after(&response.headers),
            detail: problem_detail(&response.headers, response.body).await,
        });
    }
    Ok(response)
}

/// What an operator can do about a `401`.
fn advice(token_file: Option<&Path>) -> String {
    match token_file {
        Some(path) => format!("Put a token that it accepts into {}: it is read for each request", path.display()),
        None => "Give this agent a token (`token_file`), or a client certificate that the edge accepts".to_owned(),
    }
}

/// Whether to request the problem document with a GET; not when the edge is overloaded.
pub(super) fn needs_problem_body(status: StatusCode) -> bool {
    (status.is_client_error() || status.is_server_error())
        && !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

//! The errors of the API for edges, and their problem documents.

use std::time::Duration;

use http::{Response, StatusCode};
use weir_cache::FillError;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::problem::Problem;
use weir_runtime::serve::Body;

use crate::agent_api::ApiError;

/// `Retry-After` where nothing better is known.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Why an edge's request failed.
#[derive(Debug)]
pub(super) enum PeerError {
    /// As an agent's request for the same thing would.
    Api(ApiError),
    Object(ObjectDigest, FillError),
    TooManyStreams,
    /// The event streams of the origins are not followed now.
    NotFollowing,
}

impl PeerError {
    pub(super) fn into_response(self) -> Response<Body> {
        let (status, kind, title, detail) = match self {
            PeerError::Api(error) => return error.into_response(),
            PeerError::Object(digest, error) => return object(digest, &error).into_response(),
            PeerError::TooManyStreams => (
                StatusCode::TOO_MANY_REQUESTS,
                "too-many-streams",
                "Too many event streams are open",
                "The edge has reached its limit of event streams: poll, and retry later.",
            ),
            PeerError::NotFollowing => (
                StatusCode::SERVICE_UNAVAILABLE,
                "not-following",
                "The edge does not follow its origins now",
                "This edge does not follow the event streams of all origins, so it cannot validate versions: follow the origins directly.",
            ),
        };
        Problem::new(status, kind, title, detail).retry_after(RETRY_AFTER).into_response()
    }
}

fn object(digest: ObjectDigest, error: &FillError) -> Problem {
    let (status, kind, title) = match error {
        FillError::NotFound => {
            let detail = "No origin has this object: request the descriptor again.";
            let problem = Problem::new(StatusCode::NOT_FOUND, "no-such-object", "No such object", detail);
            return problem.about("object", &digest);
        }
        FillError::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "The edge is overloaded"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "object-unavailable", "The object cannot be read just now"),
    };
    let detail = format!("The object cannot be fetched: {error}.");
    Problem::new(status, kind, title, detail).about("object", &digest).retry_after(RETRY_AFTER)
}

//! The problem documents of the API for edges, besides those of agents' requests for the same things.

use std::time::Duration;

use http::StatusCode;
use weir_cache::FillError;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::NodeName;
use weir_protocol::observed::NAME_TWICE;
use weir_protocol::problem::Problem;

/// `Retry-After` where nothing better is known.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The same for an edge whose name another one has, as an origin says it.
const NAME_TWICE_RETRY_AFTER: Duration = Duration::from_secs(120);

pub(super) fn too_many_streams() -> Problem {
    let detail = "The edge has reached its limit of event streams: poll, and retry later.";
    let title = "Too many event streams are open";
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-streams", title, detail).retry_after(RETRY_AFTER)
}

/// The event streams of the origins are not followed now.
pub(super) fn not_following() -> Problem {
    let detail = "This edge does not follow the event streams of all origins, so it cannot validate versions: follow the origins directly.";
    let title = "The edge does not follow its origins now";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-following", title, detail).retry_after(RETRY_AFTER)
}

pub(super) fn too_many_shards() -> Problem {
    let detail = "Too many shards of access lists are being sent: request it again.";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "The edge is overloaded", detail)
        .retry_after(RETRY_AFTER)
}

pub(super) fn too_many_messages() -> Problem {
    let detail = "Too many messages about agents are being passed on: send this one again later.";
    let title = "Too many messages of edges";
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-messages", title, detail).retry_after(RETRY_AFTER)
}

pub(super) fn not_this_edge(named: &NodeName) -> Problem {
    let detail = format!("The message names edge `{named}`, but the certificate has another identity.");
    let title = "The certificate is that of another edge";
    Problem::new(StatusCode::FORBIDDEN, "not-this-edge", title, detail)
}

pub(super) fn name_twice() -> Problem {
    let detail = "At the origins another edge sends messages under the same name: give each a `name` or a certificate of its own.";
    Problem::new(StatusCode::TOO_MANY_REQUESTS, NAME_TWICE, "Another edge has this name", detail)
        .retry_after(NAME_TWICE_RETRY_AFTER)
}

/// No origin has what an edge says of its agents.
pub(super) fn not_passed_on() -> Problem {
    let detail = "No origin of this shield has accepted the message: send it again later.";
    let title = "No origin accepts what agents run";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-passed-on", title, detail).retry_after(RETRY_AFTER)
}

pub(super) fn object(digest: ObjectDigest, error: &FillError) -> Problem {
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

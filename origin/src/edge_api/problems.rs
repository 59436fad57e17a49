//! The problems that several requests of edges have. All others are built where they happen.

use std::time::{Duration, SystemTime};

use http::StatusCode as S;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::problem::Problem;
use weir_source::Condition;

use crate::reconcile::{Health, Phase, RepositoryState};

/// `Retry-After` while content is being built.
const SOON: Duration = Duration::from_secs(2);

/// `Retry-After` while an upstream fails, unless its next poll is known to be later.
pub(super) const LATER: Duration = Duration::from_secs(10);

/// The longest `Retry-After`.
pub(super) const LATEST: Duration = Duration::from_secs(120);

pub(super) fn not_an_edge() -> Problem {
    unauthorized("Connect with a client certificate whose SAN is `spiffe://<trust domain>/edge/<name>`.")
}

pub(super) fn unauthorized(detail: &str) -> Problem {
    Problem::new(S::UNAUTHORIZED, "unauthorized", "The certificate opens nothing here", detail)
}

/// A version references the object, but it cannot be read now.
pub(super) fn object_unavailable(object: &ObjectDigest) -> Problem {
    let detail = "The object is missing or damaged and is being rebuilt, or the store does not answer.";
    let title = "The object cannot be read just now";
    let problem = Problem::new(S::SERVICE_UNAVAILABLE, "object-unavailable", title, detail);
    problem.about("object", object).retry_after(SOON)
}

pub(super) fn overloaded() -> Problem {
    let detail = "Too many objects are being sent or looked up.";
    Problem::new(S::SERVICE_UNAVAILABLE, "overloaded", "The origin is overloaded", detail).retry_after(SOON)
}

pub(super) fn too_many_messages() -> Problem {
    let detail = "Too many messages of edges with this identity wait: send the messages of an edge one after another.";
    Problem::new(S::TOO_MANY_REQUESTS, "too-many-messages", "Too many messages of this edge", detail).retry_after(SOON)
}

pub(super) fn unreadable() -> Problem {
    let detail = "The stored state of this service cannot be read; the origin's log has the reason.";
    let title = "The store cannot be read just now";
    Problem::new(S::SERVICE_UNAVAILABLE, "store-unavailable", title, detail).retry_after(LATER)
}

/// The service was never published: the reason is derived from the repository's state and the service's condition.
pub(super) fn not_published(
    service: &ServiceName,
    repository: Option<&RepositoryState>,
    condition: &Condition,
    now: SystemTime,
) -> Problem {
    let retry_after = repository
        .and_then(|repository| repository.next_poll)
        .and_then(|next| next.duration_since(now).ok())
        .map_or(LATER, |wait| wait.clamp(Duration::from_secs(1), LATEST));
    let failing = |(status, kind), detail: String| {
        let (title, detail) = (
            "The service was never published and its upstream fails",
            format!("`{service}` was never published: {detail}."),
        );
        Problem::new(status, kind, title, detail).about("service", service).retry_after(retry_after)
    };
    let failure = (S::BAD_GATEWAY, "upstream-failure");
    if let Condition::Unhealthy { step, reason, .. } = condition {
        let detail = format!("the upstream's content cannot be published (step: {step}): {reason}");
        return failing(failure, detail);
    }
    // One ref that cannot be followed does not count as a failure of the others.
    let is_polled = |repository: &&RepositoryState| repository.mirrored && repository.consecutive_failures == 0;
    if let Some(Health::Unhealthy { failure: poll, .. }) =
        repository.filter(|repository| !is_polled(repository)).map(|repository| &repository.health)
    {
        let detail = format!("the upstream could not be polled (step: {}): {}", poll.step, poll.reason);
        let timeout = (S::GATEWAY_TIMEOUT, "upstream-timeout");
        return failing(if poll.timeout { timeout } else { failure }, detail);
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
    let (title, detail) = ("The service is not published yet", format!("`{service}` is not published yet: {detail}."));
    let problem = Problem::new(S::SERVICE_UNAVAILABLE, "not-published-yet", title, detail);
    problem.about("service", service).retry_after(SOON)
}

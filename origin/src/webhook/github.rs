//! GitHub: `X-Hub-Signature-256` over the body, the event in `X-GitHub-Event`.

use http::HeaderMap;
use serde::Deserialize;

use super::signature::Proof;
use super::{Notification, full_name, moved};

pub(super) fn proof(headers: &HeaderMap) -> Proof {
    Proof::hex(headers, &["x-hub-signature-256"])
}

#[derive(Deserialize)]
struct Push {
    #[serde(rename = "ref")]
    name: String,
}

/// A branch or tag was created or deleted. GitHub also sends a push.
#[derive(Deserialize)]
struct CreateOrDelete {
    #[serde(rename = "ref")]
    name: String,
    ref_type: String,
}

#[derive(Deserialize)]
struct PullRequest {
    number: u64,
}

pub(super) fn parse(event: &str, body: &[u8]) -> Notification {
    let read = match event {
        "ping" => return Notification::Ping,
        "push" => weir_protocol::json::from_slice(body).map(|push: Push| moved(push.name)),
        "create" | "delete" => weir_protocol::json::from_slice(body).map(|made: CreateOrDelete| {
            full_name(&made.ref_type, &made.name)
                .map_or(Notification::Unclear, |name| Notification::RefsMoved(vec![name]))
        }),
        "pull_request" => weir_protocol::json::from_slice(body).map(|pull: PullRequest| {
            Notification::RefsMoved(["head", "merge"].map(|end| format!("refs/pull/{}/{end}", pull.number)).into())
        }),
        // The default branch may have changed.
        "" | "repository" => return Notification::Unclear,
        _ => return Notification::OtherEvent,
    };
    read.unwrap_or(Notification::Unclear)
}
